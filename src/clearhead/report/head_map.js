// The map of heads: colours, tooltip and keys.
let pointed = null;
const claimOn = (box) => claims[box.dataset.claim];
const factsAt = (cell) => factsOf(claimOn(cell.closest(".map")), cell.dataset.index);
const label = (facts) => `${facts.position}: ${facts.verdict}. Value ${facts.value} (${facts.interval}), ${facts.control} ${facts.control_value} (${facts.control_range}, p ${facts.control_p}), predicted ${facts.predicted}, agreement ${facts.agreement}, inputs ${facts.inputs}`;

const colour = (box) => {
  const claim = claimOn(box);
  box.querySelector("h3").textContent = `${claim.theory}: ${claim.statistic}`;
  for (const cell of box.querySelectorAll(".head")) {
    const i = cell.dataset.index;
    const facts = factsOf(claim, i);
    const [shade, text] = [entry(claim.columns.shade, i), entry(claim.columns.text, i)];
    cell.setAttribute("class", `head ${facts.kind} ${shade}`);
    cell.setAttribute("aria-label", label(facts));
    cell.dataset.agreement = facts.agreement === "-" || shade === "unmeasured" ? "" : facts.agreement;
    const number = cell.querySelector(".number");
    if (number) number.textContent = shade === "unmeasured" ? "" : text;
    cell.querySelector("use").setAttribute("href", `#mark-${facts.kind}`);
  }
};

const showTip = (cell) => {
  pointed = cell;
  fill(tip, factsAt(cell));
  tip.hidden = false;
  const at = cell.getBoundingClientRect();
  const left = Math.min(Math.max(at.left + at.width / 2 - tip.offsetWidth / 2, 8), document.documentElement.clientWidth - tip.offsetWidth - 8);
  const below = at.bottom + 8 + tip.offsetHeight < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? at.bottom + 8 : Math.max(at.top - tip.offsetHeight - 8, 8)}px`;
};
const hideTip = () => {
  pointed = null;
  tip.hidden = true;
};

// One head of each map is a tab stop; arrow keys go from there.
const stopAt = (cell) => {
  for (const other of cell.closest("svg").querySelectorAll(".head[tabindex='0']")) other.setAttribute("tabindex", "-1");
  cell.setAttribute("tabindex", "0");
};
const neighbour = (cell, key) => {
  const rows = new Map();
  for (const other of cell.closest("svg").querySelectorAll(".head")) {
    if (!rows.has(other.dataset.layer)) rows.set(other.dataset.layer, []);
    rows.get(other.dataset.layer).push(other);
  }
  const row = rows.get(cell.dataset.layer);
  const column = row.indexOf(cell);
  if (key === "ArrowLeft" || key === "ArrowRight") return row[column + (key === "ArrowRight" ? 1 : -1)];
  if (key === "Home" || key === "End") return row.at(key === "Home" ? 0 : -1);
  const layers = [...rows.keys()];
  const next = rows.get(layers[layers.indexOf(cell.dataset.layer) + (key === "ArrowDown" ? 1 : -1)]);
  return next && next[Math.min(column, next.length - 1)];
};
const MOVES = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];

for (const box of boxes) {
  // The browser's own tooltip would cover ours; its text stays as the cell's name for screen readers.
  for (const title of box.querySelectorAll(".head title")) title.remove();
  colour(box);
  const first = box.querySelector(".head");
  if (first) stopAt(first);
  // Listeners are on the box around the map: an svg element that listens to focus becomes a tab stop itself.
  const on = (event, act) => box.addEventListener(event, (e) => {
    const cell = e.target.closest(".head");
    if (cell) act(cell, e);
  });
  on("pointerover", showTip);
  on("pointerout", hideTip);
  on("focusin", (cell) => { stopAt(cell); showTip(cell); });
  on("focusout", hideTip);
  on("click", (cell) => show({ head: cell.dataset.index }));
  on("keydown", (cell, e) => {
    if (e.key === "Enter" || e.key === " ") { e.preventDefault(); show({ head: cell.dataset.index }); }
    if (!MOVES.includes(e.key)) return;
    e.preventDefault();
    const next = neighbour(cell, e.key);
    if (next) next.focus();
  });
}
document.addEventListener("scroll", () => { if (pointed) showTip(pointed); }, { capture: true, passive: true });
