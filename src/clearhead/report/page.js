"use strict";
// The findings of the page, and functions that make elements. Text enters the page only as text, never as HTML.
const data = JSON.parse(document.getElementById("facts").textContent);
const { claims, maps, controls, reasons, verdicts, kinds } = data;
const tip = document.getElementById("tip");
const drawer = document.getElementById("drawer");
const boxes = [...document.querySelectorAll(".map")];
document.documentElement.classList.add("js");

// Columns are strings of entries separated by spaces; each is split once.
const columnEntries = new Map();
const entry = (column, i) => {
  if (!columnEntries.has(column)) columnEntries.set(column, column.split(" "));
  return columnEntries.get(column)[i];
};
const span = (low, high) => (low === "-" || high === "-" ? "-" : `${low} to ${high}`);
const numbersIn = (text, separator) => (text === "-" || text === "" ? [] : text.split(separator).map(Number));

const controlsOf = (claim, i) => claim.controls
  .filter((control) => entry(control.draws, i) !== "0")
  .map((control) => ({
    name: controls[control.control], seed: control.seed, draws: entry(control.draws, i),
    closest: entry(claim.columns.closest, i) === String(control.control), deciding: entry(claim.columns.deciding, i) === String(control.control),
    value: entry(control.value, i), low: entry(control.low, i), high: entry(control.high, i), p: entry(control.p, i), sample: numbersIn(entry(control.sample, i), ","),
  }));

const because = (facts) => {
  if (facts.kind === "not_applicable") return facts.reason ? `${facts.reason[0].toUpperCase()}${facts.reason.slice(1)}.` : "";
  if (facts.kind === "true_by_construction" || facts.control === "none") return "";
  const number = `The value is ${facts.value}; ${facts.control}, the control that decides, gives ${facts.control_value} (p ${facts.control_p})`;
  const weak = { "equal to a control within rounding": "arithmetic resolves no difference from a control on any input", "equivalent to the controls": "a head that follows the theory by half would have been detected", "between controls": "the value lies above one control and below another", "too little power": "too few inputs to detect a head that follows the theory by half" }[facts.noEvidence];
  return `${number}${facts.predicted === "-" ? "" : `; the theory predicts ${facts.predicted}`}.${weak ? ` No evidence: ${weak}.` : ""}${facts.borderline ? " Borderline: rounding on another processor could change this verdict." : ""}`;
};

const factsOf = (claim, i) => {
  const at = (name) => entry(claim.columns[name], i);
  const map = maps[claim.map];
  const ofHead = controlsOf(claim, i);
  const none = { name: "none", value: "-", low: "-", high: "-", p: "-" };
  const deciding = ofHead.find((control) => control.deciding) || none;
  const verdict = verdicts[at("verdict")];
  const reason = reasons[at("reason")];
  const facts = {
    theory: claim.theory, statistic: claim.statistic, statement: claim.statement, formula: claim.formula,
    citation: claim.citation, note: claim.note, unit: claim.unit, layer: entry(map.layer, i), head: entry(map.head, i),
    position: `Layer ${entry(map.layer, i)}` + (claim.unit === "layer" ? "" : `, head ${entry(map.head, i)}`), name: map.names[entry(map.row, i)],
    value: at("value"), low: at("low"), high: at("high"), interval: span(at("low"), at("high")), predicted: at("predicted"),
    control: deciding.name, control_value: deciding.value, control_range: span(deciding.low, deciding.high), control_p: deciding.p, controls: ofHead,
    seed: [...new Set(ofHead.map((control) => control.seed))].join(", ") || "-",
    agreement: at("agreement"), agreement_interval: span(at("agreement_low"), at("agreement_high")),
    p: at("p"), adjusted: at("adjusted"), inputs: at("inputs"), skipped: at("skipped") + (reason ? ` (${reason})` : ""), reason,
    kind: verdict.name, verdict: verdict.words, rule: verdict.rule, borderline: at("borderline") === "1", noEvidence: at("kind") === "-" ? "" : kinds[at("kind")],
  };
  return { ...facts, because: because(facts) };
};
const headsOf = (claim) => claim.columns.value.split(" ").map((_, i) => i);
const fill = (box, facts) => {
  for (const element of box.querySelectorAll("[data-f]")) element.textContent = facts[element.dataset.f];
};

const svgNamespace = document.querySelector(".patterns").namespaceURI;
const SHAPES = ["svg", "line", "circle", "path", "rect", "text"];
const make = (tag, attributes = {}, ...children) => {
  const element = SHAPES.includes(tag) ? document.createElementNS(svgNamespace, tag) : document.createElement(tag);
  for (const [name, text] of Object.entries(attributes)) element.setAttribute(name, text);
  element.append(...children);
  return element;
};
const tableOf = (titles, rows) => [
  make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", {}, title)))),
  make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text) => make("td", {}, text))))),
];
