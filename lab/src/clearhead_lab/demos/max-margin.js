/* Gradient descent on attention: its direction turns to the one that separates the best tokens by the largest margin. */

const REACH = 3.2;
const STEPS = 2000;
const RATE = 0.05;
const START = [
  [[2.2, -0.7], [0.9, -2.3], [2.4, -1.2], [1.2, -0.3]],
  [[0.3, -0.3], [1.6, -1.4], [-0.8, 0.0], [-0.6, -2.0]],
  [[-0.3, -0.6], [-0.7, 1.0], [-1.1, -1.0], [-1.7, 2.3]],
];
const HEAD = [0.21, -0.98];
const state = { tokens: START.map((sequence) => sequence.map((token) => token.slice())), step: 0 };

/* Tokens of highest score in each sequence: those that attention should select. */
function best(tokens) {
  return tokens.map((sequence) => sequence.reduce((top, token, t) => (dot(token, HEAD) > dot(sequence[top], HEAD) ? t : top), 0));
}

/* Directions of normalised gradient descent on the mean logistic loss of the head's score of attention's output. */
function train(tokens, steps = STEPS) {
  let p = [0, 0];
  const path = [p];
  for (let step = 0; step < steps; step += 1) {
    const gradient = [0, 0];
    for (const sequence of tokens) {
      const weights = softmax(sequence.map((token) => dot(token, p)));
      const scores = sequence.map((token) => dot(token, HEAD));
      const slope = -1 / (1 + Math.exp(dot(weights, scores)));
      sequence.forEach((token, t) => {
        /* The score minus its mean, without the cancellation that would stop saturated attention. */
        const excess = scores.reduce((sum, score, s) => sum + weights[s] * (scores[t] - score), 0);
        const factor = (slope * weights[t] * excess) / tokens.length;
        gradient[0] += factor * token[0];
        gradient[1] += factor * token[1];
      });
    }
    const size = Math.hypot(...gradient);
    if (!(size > 1e-300)) break;
    p = [p[0] - (RATE * gradient[0]) / size, p[1] - (RATE * gradient[1]) / size];
    path.push(p);
  }
  return path;
}

/* The shortest p with (best token - other token) . p >= 1 for all others; null if there is none. */
function supportVectorMachine(tokens) {
  const selected = best(tokens);
  const constraints = tokens.flatMap((sequence, i) =>
    sequence.flatMap((token, t) => (t === selected[i] ? [] : [{ i, t, d: [sequence[selected[i]][0] - token[0], sequence[selected[i]][1] - token[1]] }])));
  const candidates = [];
  constraints.forEach((a, first) => {
    const square = dot(a.d, a.d);
    if (square > 0) candidates.push([a.d[0] / square, a.d[1] / square]);
    constraints.slice(first + 1).forEach((b) => {
      const determinant = a.d[0] * b.d[1] - a.d[1] * b.d[0];
      if (Math.abs(determinant) > 1e-12) candidates.push([(b.d[1] - a.d[1]) / determinant, (a.d[0] - b.d[0]) / determinant]);
    });
  });
  const feasible = candidates.filter((p) => constraints.every(({ d }) => dot(d, p) >= 1 - 1e-9));
  if (!feasible.length) return { selected, p: null, support: [] };
  const p = feasible.reduce((shortest, next) => (dot(next, next) < dot(shortest, shortest) ? next : shortest));
  const support = constraints.filter(({ d }) => dot(d, p) < 1 + 1e-6).map(({ i, t }) => [i, t]);
  return { selected, p, margin: 1 / Math.hypot(...p), support };
}

function cosine(a, b) {
  const size = Math.hypot(...a) * Math.hypot(...b);
  return size > 0 ? dot(a, b) / size : 0;
}

const svg = picture("stage", "10 10 420 420", "Tokens of three sequences, and directions");
const side = picture("side", "450 10 300 420", "Cosine by step");
const map = plane(20, 20, 400, REACH);
axes(svg, map, REACH);
const machineLine = make("line", { class: "machine", x1: map.x(0), y1: map.y(0) }, svg);
const descentLine = make("line", { class: "descent", x1: map.x(0), y1: map.y(0) }, svg);
const rings = make("g", {}, svg);
const chart = make("g", {}, side);
make("text", { class: "label", x: 470, y: 38 }, side, "Cosine to the support vector machine");
const points = state.tokens.map((sequence, i) => sequence.map((_, t) => {
  const point = make("circle", { class: `point group-${i}`, role: "button", id: `token-${i}-${t}`, "aria-label": `sequence ${i + 1}, token ${t + 1}` }, svg);
  draggable(svg, point, () => [map.x(state.tokens[i][t][0]), map.y(state.tokens[i][t][1])], (x, y) => {
    state.tokens[i][t] = map.back(x, y);
    path = train(state.tokens);
    render();
  });
  return point;
}));
let path = train(state.tokens);
const controls = document.getElementById("controls");
const setStep = slider(controls, { id: "step", label: "gradient steps", min: 0, max: 100, step: 1, value: 0, show: (v) => String(stepOf(v)) },
  (value) => { state.step = stepOf(value); render(); });
button(controls, "Reset", () => {
  state.tokens = START.map((sequence) => sequence.map((token) => token.slice()));
  path = train(state.tokens);
  setStep(0);
});

/* The slider is logarithmic: most of the turning happens early. */
function stepOf(position) {
  return position === 0 ? 0 : Math.round(Math.exp((position / 100) * Math.log(STEPS)));
}

function render() {
  const machine = supportVectorMachine(state.tokens);
  const p = path[Math.min(state.step, path.length - 1)];
  const weights = state.tokens.map((sequence) => softmax(sequence.map((token) => dot(token, p))));
  rings.replaceChildren();
  points.forEach((row, i) => row.forEach((point, t) => {
    const [x, y] = state.tokens[i][t];
    point.setAttribute("cx", map.x(x));
    point.setAttribute("cy", map.y(y));
    point.setAttribute("r", (5 + 11 * weights[i][t]).toFixed(2));
    if (machine.selected[i] === t) make("circle", { class: "ring", cx: map.x(x), cy: map.y(y), r: 20 }, rings);
  }));
  for (const [i, t] of machine.support) {
    make("circle", { class: "ring support", cx: map.x(state.tokens[i][t][0]), cy: map.y(state.tokens[i][t][1]), r: 20 }, rings);
  }
  for (const [line, direction] of [[machineLine, machine.p], [descentLine, p]]) {
    const size = direction ? Math.hypot(...direction) : 0;
    const end = size > 0 ? [(2.9 * direction[0]) / size, (2.9 * direction[1]) / size] : [0, 0];
    line.setAttribute("x2", map.x(end[0]));
    line.setAttribute("y2", map.y(end[1]));
  }
  const left = 470, width = 260, top = 60, height = 280;
  chart.replaceChildren();
  make("rect", { class: "frame", x: left, y: top, width, height }, chart);
  const at = (step) => left + (step > 0 ? (Math.log(step) / Math.log(STEPS)) * width : 0);
  if (machine.p) {
    const curve = [];
    for (let position = 1; position <= 100; position += 1) {
      const step = Math.min(stepOf(position), path.length - 1);
      curve.push(`${at(Math.max(step, 1)).toFixed(1)} ${(top + height - Math.max(cosine(path[step], machine.p), 0) * height).toFixed(1)}`);
    }
    make("path", { class: "curve", d: `M${curve.join("L")}` }, chart);
  }
  const y = top + height - Math.max(machine.p ? cosine(p, machine.p) : 0, 0) * height;
  make("circle", { class: "now", cx: at(Math.max(state.step, 1)), cy: y, r: 6 }, chart);
  make("text", { class: "label", x: left, y: top + height + 20 }, chart, "1 step");
  make("text", { class: "label end", x: left + width, y: top + height + 20 }, chart, `${STEPS} steps`);
  make("text", { class: "label end", x: left - 6, y: top + 10 }, chart, "1");
  make("text", { class: "label end", x: left - 6, y: top + height }, chart, "0");
  const known = machine.p ? (state.step > 0 ? number(cosine(p, machine.p), 4) : "-") : "no direction selects these tokens";
  fact("cosine", known);
  fact("margin", machine.p ? number(machine.margin) : "-");
  fact("weight", `${number(100 * Math.min(...machine.selected.map((t, i) => weights[i][t])))} %`);
}

window.demo = { state, train, supportVectorMachine, cosine, HEAD, RATE, render, get path() { return path; } };
render();
