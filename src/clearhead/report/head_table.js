// The heads of the chosen claim as a table that can be sorted and filtered.
const headTable = document.querySelector(".heads-table");
const COLUMNS = [
  ["layer", "Layer"], ["head", "Head"], ["verdict", "Verdict"], ["value", "Value"], ["interval", "95% interval"], ["control", "Control that decides"],
  ["control_value", "Its value"], ["control_p", "p against it"], ["predicted", "Predicted"], ["agreement", "Agreement"], ["adjusted", "p adjusted"], ["inputs", "Inputs"],
];

const sortKey = (facts, column) => {
  const number = parseFloat(String(facts[column]).replaceAll(",", ""));
  return column !== "verdict" && column !== "control" && Number.isFinite(number) ? number : column === "verdict" || column === "control" ? facts[column] : null;
};
// Entries without a number come last in either order.
const compare = (column, down) => (a, b) => {
  const [x, y] = [sortKey(a, column), sortKey(b, column)];
  if (x === null || y === null) return (x === null) - (y === null);
  return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
};

const options = (select, texts, all, chosen) => {
  select.replaceChildren(make("option", { value: "" }, all), ...texts.map(([value, text]) => make("option", { value }, text)));
  select.value = texts.some(([value]) => value === chosen) ? chosen : "";
};

const fillTable = (claim) => {
  const all = headsOf(claim).map((i) => ({ ...factsOf(claim, i), index: String(i) }));
  const count = (name) => all.filter((facts) => facts.kind === name).length;
  options(headTable.querySelector(".filter"), verdicts.filter((v) => count(v.name)).map((v) => [v.name, `${v.words} (${count(v.name)})`]), `all (${all.length})`, view.verdict);
  options(headTable.querySelector(".layer"), [...new Set(all.map((facts) => facts.layer))].map((layer) => [layer, layer]), "all", view.layer);
  const rows = all.filter((facts) => (!view.verdict || facts.kind === view.verdict) && (!view.layer || facts.layer === view.layer));
  if (view.sort) rows.sort(compare(view.sort, view.down));
  headTable.querySelector(".count").textContent = rows.length === all.length ? "" : `${rows.length} of ${all.length} ${claim.unit}s`;
  const titles = COLUMNS.map(([name, title]) => make("th", { "aria-sort": view.sort === name ? (view.down ? "descending" : "ascending") : "none" }, make("button", { type: "button", "data-column": name }, title)));
  headTable.querySelector("table").replaceChildren(
    make("thead", {}, make("tr", {}, ...titles)),
    make("tbody", {}, ...rows.map((facts) => make("tr", { "data-index": facts.index, class: facts.kind }, ...COLUMNS.map(([name], k) => (
      make("td", {}, k === 1 ? make("button", { type: "button", class: "link", "aria-label": `Open ${facts.position}` }, facts[name]) : facts[name])))))),
  );
};

if (headTable) {
  headTable.hidden = false;
  headTable.querySelector(".filter").addEventListener("change", (e) => show({ verdict: e.target.value }));
  headTable.querySelector(".layer").addEventListener("change", (e) => show({ layer: e.target.value }));
  headTable.addEventListener("click", (e) => {
    const title = e.target.closest("[data-column]");
    const row = e.target.closest("tr[data-index]");
    if (title) show({ sort: title.dataset.column, down: view.sort === title.dataset.column && !view.down });
    else if (row) show({ head: row.dataset.index });
    if (title) headTable.querySelector(`[data-column=${title.dataset.column}]`).focus();
  });
}
