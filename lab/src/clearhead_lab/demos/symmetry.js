/* Permute tokens: self-attention permutes its outputs, a learned query gives the same output, a convolution neither. */

const TOKENS = [[1.2, -0.4], [-0.7, 0.9], [0.3, 1.4], [-1.3, -0.8], [0.8, 0.2]];
const QUERY = [[1.1, -0.3], [0.4, 0.9]];
const KEY = [[0.7, 0.5], [-0.6, 1.2]];
const VALUE = [[0.9, -0.2], [0.3, 1.1]];
const LEARNED = [0.8, -0.5];
const KERNEL = [[[0.5, -0.3], [0.2, 0.4]], [[0.9, 0.1], [-0.2, 0.8]], [[-0.4, 0.6], [0.3, -0.5]]];
const CODES = [[0.6, 0.0], [0.2, 0.5], [-0.3, 0.4], [-0.6, -0.1], [-0.1, -0.6]];
const state = { order: [0, 1, 2, 3, 4], codes: false };

function tokens(order, codes) {
  return order.map((token, i) => TOKENS[token].map((x, j) => x + (codes ? CODES[i][j] : 0)));
}

function selfAttention(x) {
  const [q, k, v] = [QUERY, KEY, VALUE].map((map) => product(x, map));
  return q.map((query) => product([softmax(k.map((key) => dot(query, key) / Math.SQRT2))], v)[0]);
}

function learnedQuery(x) {
  const [k, v] = [KEY, VALUE].map((map) => product(x, map));
  return product([softmax(k.map((key) => dot(LEARNED, key) / Math.SQRT2))], v)[0];
}

/* Three neighbours, with zeros beyond the ends. */
function convolution(x) {
  return x.map((_, i) => KERNEL.reduce((sum, map, offset) => {
    const neighbour = x[i + offset - 1];
    return neighbour ? product([neighbour], map)[0].map((value, j) => value + sum[j]) : sum;
  }, [0, 0]));
}

function distance(a, b) {
  const flat = (rows) => rows.flat();
  const size = Math.hypot(...flat(b));
  return Math.hypot(...flat(a).map((value, i) => value - flat(b)[i])) / size;
}

/* Outputs, and errors relative to what each symmetry predicts from the outputs of the first order. */
function compute({ order, codes }) {
  const first = tokens([0, 1, 2, 3, 4], codes);
  const x = tokens(order, codes);
  const permuted = (rows) => order.map((token) => rows[token]);
  const attention = selfAttention(x), learned = learnedQuery(x), convolved = convolution(x);
  return {
    attention, learned, convolved,
    errors: {
      attention: distance(attention, permuted(selfAttention(first))),
      learned: distance([learned], [learnedQuery(first)]),
      convolved: distance(convolved, permuted(convolution(first))),
    },
  };
}

const svg = picture("stage", "0 0 560 520", "Tokens in a row, and three outputs");
const LEFT = 60, STEP = 108, WIDTH = 84;
const ROWS = { tokens: 70, attention: 200, convolved: 330, learned: 460 };
for (const [name, label] of [["tokens", "Tokens: drag them"], ["attention", "Self-attention"], ["convolved", "Convolution"], ["learned", "Learned query"]]) {
  make("text", { class: "name", x: LEFT - WIDTH / 2, y: ROWS[name] - 48 }, svg, label);
}
const outputs = make("g", {}, svg);
const cards = TOKENS.map((_, token) => {
  const card = make("g", { role: "button", id: `token-${token}`, "aria-label": `token ${token + 1}` }, svg);
  make("rect", { class: `card group-${token}`, x: -WIDTH / 2, y: -38, width: WIDTH, height: 76, rx: 8 }, card);
  columns(card, TOKENS[token], 34);
  make("text", { class: "label", x: -WIDTH / 2 + 6, y: -24 }, card, String(token + 1));
  let at = null;
  draggable(svg, card, () => [LEFT + STEP * state.order.indexOf(token), ROWS.tokens], (x) => {
    at = Math.max(LEFT - 30, Math.min(LEFT + 4 * STEP + 30, x));
    const place = Math.max(0, Math.min(4, Math.round((at - LEFT) / STEP)));
    const from = state.order.indexOf(token);
    if (place !== from) {
      state.order.splice(from, 1);
      state.order.splice(place, 0, token);
    }
    render();
    card.setAttribute("transform", `translate(${at} ${ROWS.tokens})`);
  }, render);
  card.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const from = state.order.indexOf(token), place = Math.max(0, Math.min(4, from + step));
    state.order.splice(from, 1);
    state.order.splice(place, 0, token);
    render();
  });
  return card;
});

/* Two bars that show a vector. */
function columns(parent, vector, reach) {
  make("line", { class: "zero", x1: -30, x2: 30, y1: 0, y2: 0 }, parent);
  vector.forEach((value, j) => {
    const height = (Math.min(Math.abs(value), 1.6) / 1.6) * reach;
    make("rect", { class: `entry entry-${j}`, x: j === 0 ? -22 : 4, y: value >= 0 ? -height : 0, width: 18, height }, parent);
  });
}

const controls = document.getElementById("controls");
button(controls, "Reverse the order", () => { state.order.reverse(); render(); });
button(controls, "Add position codes", () => { state.codes = !state.codes; render(); });
button(controls, "Reset", () => { state.order = [0, 1, 2, 3, 4]; state.codes = false; render(); });

function render() {
  const found = compute(state);
  state.order.forEach((token, i) => cards[token].setAttribute("transform", `translate(${LEFT + STEP * i} ${ROWS.tokens})`));
  outputs.replaceChildren();
  for (const name of ["attention", "convolved"]) {
    found[name].forEach((vector, i) => {
      const group = make("g", { transform: `translate(${LEFT + STEP * i} ${ROWS[name]})` }, outputs);
      make("rect", { class: `card group-${state.order[i]}`, x: -WIDTH / 2, y: -38, width: WIDTH, height: 76, rx: 8 }, group);
      columns(group, vector, 34);
    });
  }
  const group = make("g", { transform: `translate(${LEFT} ${ROWS.learned})` }, outputs);
  make("rect", { class: "card single", x: -WIDTH / 2, y: -38, width: WIDTH, height: 76, rx: 8 }, group);
  columns(group, found.learned, 34);
  for (const name of ["attention", "learned", "convolved"]) fact(`error-${name}`, number(found.errors[name], 2));
  fact("codes", state.codes ? "added" : "none");
}

window.demo = { state, compute, constants: { TOKENS, QUERY, KEY, VALUE, LEARNED, KERNEL, CODES }, render };
render();
