"use strict";

/* Small parts that every demonstration uses: SVG elements, points to drag, matrices as arrays of rows. */

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes, parent, content) {
  const html = ["div", "p", "button", "label", "input", "output", "span", "select", "option"].includes(name);
  const element = html ? document.createElement(name) : document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  if (content !== undefined) element.textContent = content;
  if (parent) parent.appendChild(element);
  return element;
}

function picture(id, box, label) {
  const svg = make("svg", { viewBox: box, role: "group", "aria-label": label });
  document.getElementById(id).appendChild(svg);
  return svg;
}

/* Call `moved(x, y)` in the picture's coordinates while the element is dragged, or moved with the arrow keys. */
function draggable(svg, element, position, moved, ended) {
  element.setAttribute("tabindex", "0");
  element.classList.add("draggable");
  element.addEventListener("pointerdown", (event) => {
    element.setPointerCapture(event.pointerId);
    element.classList.add("dragged");
    event.preventDefault();
    element.focus();
  });
  element.addEventListener("pointermove", (event) => {
    if (!element.hasPointerCapture(event.pointerId)) return;
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    moved(point.x, point.y);
  });
  const end = (event) => {
    if (element.hasPointerCapture(event.pointerId)) element.releasePointerCapture(event.pointerId);
    element.classList.remove("dragged");
    if (ended) ended();
  };
  element.addEventListener("pointerup", end);
  element.addEventListener("pointercancel", end);
  element.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-8, 0], ArrowRight: [8, 0], ArrowUp: [0, -8], ArrowDown: [0, 8] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [x, y] = position();
    moved(x + step[0], y + step[1]);
    if (ended) ended();
  });
}

function slider(parent, { id, label, min, max, step, value, show }, changed) {
  const row = make("div", { class: "control" }, parent);
  make("label", { for: id }, row, label);
  const input = make("input", { type: "range", id, min, max, step }, row);
  input.value = value;
  const output = make("output", { for: id }, row, show(value));
  const update = () => {
    output.textContent = show(Number(input.value));
    changed(Number(input.value));
  };
  input.addEventListener("input", update);
  return (next) => { input.value = next; update(); };
}

function button(parent, label, pressed) {
  make("button", { type: "button" }, parent, label).addEventListener("click", pressed);
}

function fact(id, text) {
  document.getElementById(id).textContent = text;
}

function number(value, digits = 3) {
  if (!Number.isFinite(value)) return "-";
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(0);
  return value.toPrecision(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

/* A map between a square of the plane, from -reach to reach, and the picture. */
function plane(left, top, side, reach) {
  return {
    x: (x) => left + ((x + reach) / (2 * reach)) * side,
    y: (y) => top + ((reach - y) / (2 * reach)) * side,
    back: (x, y) => [clamp(((x - left) / side) * 2 * reach - reach, reach), clamp(reach - ((y - top) / side) * 2 * reach, reach)],
  };
}

function clamp(value, reach) {
  return Math.max(-0.97 * reach, Math.min(0.97 * reach, value));
}

function axes(svg, map, reach) {
  make("line", { class: "axis", x1: map.x(-reach), x2: map.x(reach), y1: map.y(0), y2: map.y(0) }, svg);
  make("line", { class: "axis", x1: map.x(0), x2: map.x(0), y1: map.y(-reach), y2: map.y(reach) }, svg);
}

function dot(a, b) {
  return a.reduce((sum, value, i) => sum + value * b[i], 0);
}

function product(a, b) {
  return a.map((row) => b[0].map((_, j) => row.reduce((sum, value, i) => sum + value * b[i][j], 0)));
}

function transpose(a) {
  return a[0].map((_, j) => a.map((row) => row[j]));
}

function softmax(scores) {
  const largest = Math.max(...scores);
  const weights = scores.map((score) => Math.exp(score - largest));
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / total);
}

/* Eigenvalues, largest first, and eigenvectors (rows) of a symmetric matrix, by Jacobi's rotations. */
function eigenpairs(matrix) {
  const n = matrix.length;
  const a = matrix.map((row) => row.slice());
  const v = a.map((_, i) => a.map((_, j) => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < 60; sweep += 1) {
    let off = 0;
    for (let p = 0; p < n; p += 1) for (let q = p + 1; q < n; q += 1) off += a[p][q] ** 2;
    if (off < 1e-300) break;
    for (let p = 0; p < n; p += 1) {
      for (let q = p + 1; q < n; q += 1) {
        if (a[p][q] === 0) continue;
        const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const c = 1 / Math.hypot(t, 1), s = t * c;
        for (let i = 0; i < n; i += 1) {
          const x = a[i][p], y = a[i][q];
          a[i][p] = c * x - s * y;
          a[i][q] = s * x + c * y;
        }
        for (let i = 0; i < n; i += 1) {
          const x = a[p][i], y = a[q][i];
          a[p][i] = c * x - s * y;
          a[q][i] = s * x + c * y;
          const z = v[p][i], w = v[q][i];
          v[p][i] = c * z - s * w;
          v[q][i] = s * z + c * w;
        }
      }
    }
  }
  const order = a.map((_, i) => i).sort((i, j) => a[j][j] - a[i][i]);
  return { values: order.map((i) => a[i][i]), vectors: order.map((i) => v[i]) };
}
