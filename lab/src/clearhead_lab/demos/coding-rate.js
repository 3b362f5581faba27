/* The coding rate of points: e^R is the area of an ellipse around them, in units of the error ball. */

const REACH = 2.4;
const START = {
  points: [[1.4, 0.5], [1.7, 0.9], [0.9, 0.5], [-1.1, -0.3], [-0.3, 1.5], [-0.5, 1.0], [0.2, -1.4], [0.4, -0.8]],
  labels: [0, 0, 0, 0, 1, 1, 1, 1],
};
const state = { points: START.points.map((point) => point.slice()), labels: START.labels, eps: 0.5 };

function moments(points) {
  const sum = [[0, 0], [0, 0]];
  for (const [x, y] of points) {
    sum[0][0] += x * x;
    sum[0][1] += x * y;
    sum[1][0] += x * y;
    sum[1][1] += y * y;
  }
  return sum.map((row) => row.map((value) => value / points.length));
}

/* R = 1/2 log det(I + d / (n eps^2) Z'Z), in nats, d = 2. */
function rate(points, eps) {
  const [[a, b], [, c]] = moments(points).map((row) => row.map((value) => (2 * value) / (eps * eps)));
  return 0.5 * Math.log((1 + a) * (1 + c) - b * b);
}

function compute({ points, labels, eps }) {
  const groups = [0, 1].map((label) => points.filter((_, i) => labels[i] === label));
  const rates = groups.map((group) => rate(group, eps));
  const within = groups.reduce((sum, group, i) => sum + (group.length / points.length) * rates[i], 0);
  const all = rate(points, eps);
  return { all, rates, within, reduction: all - within };
}

const svg = picture("stage", "10 10 420 420", "Points of two classes and ellipses around them");
const side = picture("side", "450 10 300 420", "Rates");
const map = plane(20, 20, 400, REACH);
axes(svg, map, REACH);
const shapes = make("g", {}, svg);
const ball = make("circle", { class: "ball", cx: map.x(0), cy: map.y(0) }, svg);
const bars = make("g", {}, side);
const points = state.points.map((_, i) => {
  const point = make("circle", { class: `point group-${state.labels[i]}`, r: 9, role: "button", id: `point-${i}`, "aria-label": `point ${i + 1}` }, svg);
  draggable(svg, point, () => [map.x(state.points[i][0]), map.y(state.points[i][1])], (x, y) => {
    state.points[i] = map.back(x, y);
    render();
  });
  return point;
});
const controls = document.getElementById("controls");
const setEps = slider(controls, { id: "eps", label: "error ε", min: 0.2, max: 1.5, step: 0.05, value: state.eps, show: (v) => number(v, 2) },
  (value) => { state.eps = value; render(); });
button(controls, "Compress each class to a line", () => {
  const lines = [0, 1].map((label) => eigenpairs(moments(state.points.filter((_, i) => state.labels[i] === label))).vectors[0]);
  state.points = state.points.map((point, i) => {
    const line = lines[state.labels[i]], along = dot(point, line), across = dot(point, [-line[1], line[0]]) / 2;
    return [along * line[0] - across * line[1], along * line[1] + across * line[0]];
  });
  render();
});
button(controls, "Reset", () => {
  state.points = START.points.map((point) => point.slice());
  setEps(0.5);
});

/* The ellipse of the second moments plus eps^2 / d, whose area is e^R times that of the ball of radius eps / sqrt(d). */
function ellipse(group, name) {
  const grown = moments(group).map((row, i) => row.map((value, j) => value + (i === j ? (state.eps * state.eps) / 2 : 0)));
  const { values, vectors } = eigenpairs(grown);
  const unit = map.x(1) - map.x(0);
  const angle = (-Math.atan2(vectors[0][1], vectors[0][0]) * 180) / Math.PI;
  make("ellipse", {
    class: name, rx: unit * Math.sqrt(values[0]), ry: unit * Math.sqrt(values[1]),
    transform: `translate(${map.x(0)} ${map.y(0)}) rotate(${angle})`,
  }, shapes);
}

function render() {
  const found = compute(state);
  points.forEach((point, i) => {
    point.setAttribute("cx", map.x(state.points[i][0]));
    point.setAttribute("cy", map.y(state.points[i][1]));
  });
  shapes.replaceChildren();
  ellipse(state.points, "shape whole");
  [0, 1].forEach((label) => ellipse(state.points.filter((_, i) => state.labels[i] === label), `shape group-${label}`));
  ball.setAttribute("r", (map.x(1) - map.x(0)) * (state.eps / Math.SQRT2));
  bars.replaceChildren();
  const rows = [["R, all points", found.all, "whole"], ["R, first class", found.rates[0], "group-0"], ["R, second class", found.rates[1], "group-1"],
    ["Rᶜ, mean over classes", found.within, "within"], ["ΔR = R − Rᶜ", found.reduction, "reduction"]];
  const longest = Math.max(...rows.map((row) => row[1]), 1e-9);
  rows.forEach(([label, value, name], i) => {
    const y = 60 + i * 64;
    make("text", { class: "label", x: 470, y }, bars, `${label}: ${number(value)} nats`);
    make("rect", { class: `bar ${name}`, x: 470, y: y + 8, width: (260 * Math.max(value, 0)) / longest, height: 20 }, bars);
  });
  fact("rate", `${number(found.all)} nats`);
  fact("volume", `${number(Math.exp(found.all))} times`);
  fact("reduction", `${number(found.reduction)} nats`);
}

window.demo = { state, compute, rate, render };
render();
