/* Kernel PCA of keys in the plane: attention with the theorem's values projects every query on a principal axis. */

const REACH = 2.4;
const START = [[-1.4, 0.9], [-1.0, 1.3], [-0.6, 0.8], [0.9, 0.4], [1.3, -0.3], [0.4, -1.2], [-0.2, -1.6], [1.5, 1.2]];
const state = { keys: START.map((key) => key.slice()), scale: 0.7, axis: 0 };

/* Return what the theorem says: energies N lambda of the principal axes, the values, and the share of each axis. */
function compute({ keys, scale }) {
  const n = keys.length;
  const kernel = keys.map((a) => keys.map((b) => Math.exp(scale * dot(a, b))));
  const g = kernel.map((row) => row.reduce((sum, value) => sum + value, 0));
  const gram = kernel.map((row, i) => row.map((value, j) => value / (g[i] * g[j])));
  const means = gram.map((row) => row.reduce((sum, value) => sum + value, 0) / n);
  const mean = means.reduce((sum, value) => sum + value, 0) / n;
  const centred = gram.map((row, i) => row.map((value, j) => value - means[i] - means[j] + mean));
  const { values: energies, vectors } = eigenpairs(centred);
  const axes = vectors.slice(0, n - 1).map((vector, d) => {
    const sign = vector.reduce((best, x) => (Math.abs(x) > Math.abs(best) ? x : best), 0) < 0 ? -1 : 1;
    return vector.map((x) => (sign * x) / Math.sqrt(Math.max(energies[d], 1e-300)));
  });
  const values = axes.map((a) => {
    const centre = a.reduce((sum, x) => sum + x, 0) / n;
    return a.map((x, j) => (x - centre) / g[j]);
  });
  return { energies: energies.slice(0, n - 1), axes, values, g };
}

/* Attention of one query with values v. */
function attend(query, keys, scale, v) {
  return dot(softmax(keys.map((key) => scale * dot(query, key))), v);
}

/* The projection of the query's features on an axis, by inner products in feature space. */
function project(query, keys, scale, found, d) {
  const kernel = keys.map((key) => Math.exp(scale * dot(query, key)));
  const total = kernel.reduce((sum, value) => sum + value, 0);
  const features = kernel.map((value, j) => value / (total * found.g[j]));
  const mean = features.reduce((sum, value) => sum + value, 0) / features.length;
  return features.reduce((sum, value, j) => sum + found.axes[d][j] * (value - mean), 0);
}

const svg = picture("stage", "10 10 420 420", "Keys in the plane");
const side = picture("side", "450 10 300 420", "The spectrum");
const map = plane(20, 20, 400, REACH);
const CELLS = 30;
const field = make("g", {}, svg);
const cells = [];
for (let row = 0; row < CELLS; row += 1) {
  for (let column = 0; column < CELLS; column += 1) {
    const side = 400 / CELLS;
    const cell = make("rect", { x: 20 + column * side, y: 20 + row * side, width: side, height: side, "shape-rendering": "crispEdges" }, field);
    cells.push([cell, map.back(20 + (column + 0.5) * side, 20 + (row + 0.5) * side)]);
  }
}
axes(svg, map, REACH);
const bars = make("g", {}, side);
make("text", { class: "label", x: 470, y: 38 }, side, "Variance on each principal axis");
const points = state.keys.map((_, i) => {
  const point = make("circle", { class: "point", r: 9, role: "button", "aria-label": `key ${i + 1}`, id: `key-${i}` }, svg);
  draggable(svg, point, () => [map.x(state.keys[i][0]), map.y(state.keys[i][1])], (x, y) => {
    state.keys[i] = map.back(x, y);
    render();
  });
  return point;
});
const controls = document.getElementById("controls");
const setScale = slider(controls, { id: "scale", label: "scale of the scores", min: 0.1, max: 2, step: 0.05, value: state.scale, show: (v) => number(v, 2) },
  (value) => { state.scale = value; render(); });
const setAxis = slider(controls, { id: "axis", label: "principal axis", min: 1, max: 4, step: 1, value: 1, show: String },
  (value) => { state.axis = value - 1; render(); });
button(controls, "Reset", () => {
  state.keys = START.map((key) => key.slice());
  setScale(0.7);
  setAxis(1);
});

function render() {
  const found = compute(state);
  points.forEach((point, i) => {
    point.setAttribute("cx", map.x(state.keys[i][0]));
    point.setAttribute("cy", map.y(state.keys[i][1]));
  });
  const v = found.values[state.axis];
  const heights = cells.map(([, query]) => attend(query, state.keys, state.scale, v));
  const largest = Math.max(...heights.map(Math.abs), 1e-300);
  let difference = 0;
  cells.forEach(([cell, query], i) => {
    cell.setAttribute("class", heights[i] >= 0 ? "positive" : "negative");
    cell.setAttribute("fill-opacity", (0.85 * Math.abs(heights[i]) / largest).toFixed(3));
    if (i % 7 === 0) difference = Math.max(difference, Math.abs(heights[i] - project(query, state.keys, state.scale, found, state.axis)));
  });
  const total = found.energies.reduce((sum, energy) => sum + Math.max(energy, 0), 0);
  bars.replaceChildren();
  found.energies.forEach((energy, d) => {
    const height = (300 * Math.max(energy, 0)) / found.energies[0];
    const x = 470 + d * 38;
    make("rect", { class: d === state.axis ? "bar chosen" : "bar", x, y: 380 - height, width: 26, height }, bars);
    make("text", { class: "label middle", x: x + 13, y: 398 }, bars, String(d + 1));
    make("text", { class: "label middle", x: x + 13, y: 372 - height }, bars, `${Math.round((100 * Math.max(energy, 0)) / total)}%`);
  });
  fact("share", `${number((100 * Math.max(found.energies[state.axis], 0)) / total)} %`);
  fact("difference", number(difference / largest, 1));
}

window.demo = { state, compute, attend, render };
render();
