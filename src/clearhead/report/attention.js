// The attention of one head on one input: a matrix, and the tokens shaded by what one of them attends to.
const attention = drawer.querySelector(".attention");
const matrix = attention.querySelector("canvas");
const tokensBox = attention.querySelector(".tokens");
const inputSelect = attention.querySelector(".input");
let attentionOf = null;

const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const decoded = new Map();
const weightsOf = (input, layer) => {
  if (!decoded.has(layer)) decoded.set(layer, bytes(layer.weights));
  return decoded.get(layer);
};
// Bytes are roots of weights, in 255ths.
const shadeOf = (byte) => byte / 255;
const percent = (byte) => {
  const share = 100 * (byte / 255) ** 2;
  return share < 0.1 ? "under 0.1%" : `${share < 9.5 ? share.toFixed(1) : Math.round(share)}%`;
};
const heat = () => getComputedStyle(document.documentElement).getPropertyValue("--heat").trim();

// The input's entry with the numbers of one head; null if the layer was not recorded.
const attentionAt = (input, layerNumber, head) => {
  const layer = input && input.layers[layerNumber];
  if (!layer || head >= layer.shape[0]) return null;
  const [, rows, columns] = layer.shape;
  const start = head * rows * columns;
  return { input, rows, columns, weights: weightsOf(input, layer).subarray(start, start + rows * columns), pictures: layer.pictures };
};

const paintMatrix = (view, row) => {
  const patches = view.input.grid;
  const [height, width] = patches || [view.rows, view.columns];
  const size = Math.max(4, Math.floor(280 / Math.max(width, height)));
  matrix.width = width * size;
  matrix.height = height * size;
  matrix.setAttribute("aria-label", patches ? "Attention over the patches of the image" : "Attention matrix: rows attend to columns");
  const ink = matrix.getContext("2d");
  ink.clearRect(0, 0, matrix.width, matrix.height);
  const colours = patches && view.input.colours ? bytes(view.input.colours) : null;
  const others = patches ? view.columns - height * width : 0;
  const largest = Math.max(1, ...view.weights.subarray(row * view.columns + others, (row + 1) * view.columns));
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const weight = patches ? view.weights[row * view.columns + others + y * width + x] : view.weights[y * view.columns + x];
      const at = 3 * (y * width + x);
      if (colours) {
        ink.fillStyle = `rgb(${colours[at]} ${colours[at + 1]} ${colours[at + 2]})`;
        ink.fillRect(x * size, y * size, size, size);
      }
      // Patches that get less attention are darker; the brightest gets most.
      ink.fillStyle = patches ? `rgb(0 0 0 / ${0.85 * (1 - weight / largest)})` : `rgb(${heat()} / ${shadeOf(weight)})`;
      ink.fillRect(x * size, y * size, size, size);
    }
  }
  ink.strokeStyle = patches ? "#ffffff" : getComputedStyle(document.documentElement).color;
  ink.lineWidth = 2;
  const position = view.input.queries[row];
  if (!patches) ink.strokeRect(1, row * size, matrix.width - 2, size);
  else if (position >= others) ink.strokeRect(((position - others) % width) * size, Math.floor((position - others) / width) * size, size, size);
};

const chooseQuery = (row) => {
  const view = attentionOf;
  if (!view || row < 0 || row >= view.rows) return;
  view.row = row;
  paintMatrix(view, row);
  const weights = [...view.weights.subarray(row * view.columns, (row + 1) * view.columns)];
  for (const button of tokensBox.children) {
    const position = Number(button.dataset.position);
    button.style.backgroundColor = `rgb(${heat()} / ${shadeOf(weights[position] || 0)})`;
    button.setAttribute("aria-pressed", String(view.input.queries[row] === position));
  }
  const names = view.input.tokens;
  const largest = weights.map((weight, i) => [weight, i]).filter(([weight]) => weight > 0).sort((a, b) => b[0] - a[0]).slice(0, 5);
  const reads = attention.querySelector(".reads");
  reads.replaceChildren(make("bdi", { class: "word" }, names[view.input.queries[row]]), " attends to ", ...largest.flatMap(([weight, i], k) => [k ? ", " : "", make("bdi", { class: "word" }, names[i]), ` ${percent(weight)}`]));
};

const drawAttention = (facts, number) => {
  const input = data.inputs.find((candidate) => candidate.number === number) || data.inputs[0];
  attentionOf = facts.unit === "layer" ? null : attentionAt(input, facts.layer, Number(facts.head));
  attention.hidden = !attentionOf;
  if (!attentionOf) return;
  inputSelect.value = String(input.number);
  tokensBox.replaceChildren(...(input.grid ? input.queries : input.tokens.map((_, i) => i)).map((position) => {
    const button = make("button", { type: "button", class: "token", "data-position": position }, make("bdi", {}, input.tokens[position]));
    button.disabled = !input.queries.includes(position);
    return button;
  }));
  const shown = input.tokens.length < input.length ? `The first ${input.tokens.length} of ${input.length} tokens are shown. ` : "";
  const how = input.grid
    ? `The brighter a patch, the more the marked one attends to it. ${input.queries.length} of ${input.length} tokens were recorded as queries. Choose one, or click near it`
    : "Rows of the matrix attend to columns; the shade is the root of the weight. Choose a token or a row to see what it attends to";
  attention.querySelector(".limits").textContent = `${shown}${how}; arrow keys move. The audit recorded ${data.inputs.length} of its inputs.`;
  chooseQuery(Math.min(Math.floor(attentionOf.rows / 2), attentionOf.rows - 1));
};

for (const input of data.inputs) {
  inputSelect.append(make("option", { value: input.number }, `${input.number}${input.text ? `: ${input.text.slice(0, 60)}` : ""}`));
}
inputSelect.addEventListener("change", () => show({ input: Number(inputSelect.value) }));
tokensBox.addEventListener("click", (e) => {
  const button = e.target.closest(".token");
  if (button) chooseQuery(attentionOf.input.queries.indexOf(Number(button.dataset.position)));
});
tokensBox.addEventListener("keydown", (e) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
  if (!step) return;
  e.preventDefault();
  chooseQuery(attentionOf.row + step);
  const pressed = tokensBox.querySelector("[aria-pressed=true]");
  if (pressed) pressed.focus();
});
matrix.addEventListener("click", (e) => {
  const view = attentionOf;
  const at = matrix.getBoundingClientRect();
  const [x, y] = [(e.clientX - at.left) / at.width, (e.clientY - at.top) / at.height];
  if (!view.input.grid) { chooseQuery(Math.min(Math.floor(y * view.rows), view.rows - 1)); return; }
  const [height, width] = view.input.grid;
  const patch = view.columns - height * width + Math.floor(y * height) * width + Math.floor(x * width);
  const nearest = view.input.queries.map((query, row) => [Math.abs(query - patch), row]).sort((a, b) => a[0] - b[0])[0][1];
  chooseQuery(nearest);
});
