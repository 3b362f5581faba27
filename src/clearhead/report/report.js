"use strict";
(() => {
  const { claims, maps, controls, reasons, verdicts } = JSON.parse(document.getElementById("facts").textContent);
  const tip = document.getElementById("tip");
  const drawer = document.getElementById("drawer");
  const boxes = [...document.querySelectorAll(".map")];
  let opened = null;
  let pointed = null;

  // Columns are strings of entries separated by spaces; each is split once.
  const split = new Map();
  const entry = (column, i) => {
    if (!split.has(column)) split.set(column, column.split(" "));
    return split.get(column)[i];
  };
  const span = (low, high) => (low === "-" || high === "-" ? "-" : `${low} to ${high}`);
  const controlsOf = (claim, i) => claim.controls
    .filter((control) => entry(control.draws, i) !== "0")
    .map((control) => ({
      name: controls[control.control], closest: entry(claim.columns.closest, i) === String(control.control), seed: control.seed,
      value: entry(control.value, i), low: entry(control.low, i), high: entry(control.high, i), p: entry(control.p, i), draws: entry(control.draws, i),
    }));
  const factsOf = (claim, i) => {
    const at = (name) => entry(claim.columns[name], i);
    const map = maps[claim.map];
    const ofHead = controlsOf(claim, i);
    const closest = ofHead.find((control) => control.closest) || { name: "none", value: "-", low: "-", high: "-" };
    const verdict = verdicts[at("verdict")];
    const reason = reasons[at("reason")];
    return {
      theory: claim.theory, statistic: claim.statistic, statement: claim.statement, formula: claim.formula,
      citation: claim.citation, note: claim.note, unit: claim.unit, layer: entry(map.layer, i), head: entry(map.head, i),
      position: `Layer ${entry(map.layer, i)}` + (claim.unit === "layer" ? "" : `, head ${entry(map.head, i)}`), name: map.names[entry(map.row, i)],
      value: at("value"), low: at("low"), high: at("high"), interval: span(at("low"), at("high")), predicted: at("predicted"),
      control: closest.name, control_value: closest.value, control_range: span(closest.low, closest.high), controls: ofHead,
      seed: [...new Set(ofHead.map((control) => control.seed))].join(", ") || "-",
      agreement: at("agreement"), agreement_interval: span(at("agreement_low"), at("agreement_high")),
      p: at("p"), adjusted: at("adjusted"), inputs: at("inputs"), skipped: at("skipped") + (reason ? ` (${reason})` : ""),
      kind: verdict.name, verdict: verdict.words, rule: verdict.rule,
    };
  };
  const claimOn = (box) => claims[box.dataset.claim];
  const factsAt = (cell) => factsOf(claimOn(cell.closest(".map")), cell.dataset.index);
  const fill = (box, facts) => {
    for (const element of box.querySelectorAll("[data-f]")) element.textContent = facts[element.dataset.f];
  };

  const svgNamespace = document.querySelector(".patterns").namespaceURI;
  const make = (tag, attributes = {}, ...children) => {
    const svg = ["svg", "line", "circle", "path"].includes(tag);
    const element = svg ? document.createElementNS(svgNamespace, tag) : document.createElement(tag);
    for (const [name, text] of Object.entries(attributes)) element.setAttribute(name, text);
    element.append(...children);
    return element;
  };
  const tableOf = (titles, rows) => [
    make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", {}, title)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text) => make("td", {}, text))))),
  ];

  // One row for the prediction, one for the head and one for each control, on one axis in percent of the width.
  const draw = (facts) => {
    const lines = [
      ...(facts.predicted === "-" ? [] : [{ kind: "theory", name: "theory predicts", value: facts.predicted, low: "-", high: "-" }]),
      { kind: "value", name: `this ${facts.unit}`, value: facts.value, low: facts.low, high: facts.high },
      ...facts.controls.map((control) => ({ ...control, kind: "control" })),
    ];
    const points = lines.flatMap((line) => [line.value, line.low, line.high]).map(parseFloat).filter(Number.isFinite);
    const least = Math.min(...points);
    const width = Math.max(...points) - least || 1;
    const percent = (text) => {
      const point = parseFloat(text);
      return Number.isFinite(point) ? `${3 + ((point - least) / width) * 94}%` : null;
    };
    const vertical = (part, text) => {
      const x = percent(text);
      return x ? [make("line", { class: part, "data-part": part, x1: x, x2: x, y1: 0, y2: 24 })] : [];
    };
    const row = (line) => {
      const [at, low, high] = [percent(line.value), percent(line.low), percent(line.high)];
      const track = make("svg", { height: 24, "aria-hidden": "true" }, make("line", { class: "axis", x1: 0, x2: "100%", y1: 12, y2: 12 }));
      track.append(...vertical("closest", facts.control_value), ...vertical("predicted", facts.predicted));
      if (low && high) track.append(make("line", { class: "bar", x1: low, x2: high, y1: 12, y2: 12 }));
      if (at && line.kind === "theory") track.append(make("svg", { x: at, y: 12 }, make("path", { class: "mark", d: "M0-6 6 0 0 6-6 0z" })));
      if (at && line.kind !== "theory") track.append(make("circle", { class: "mark", "data-part": line.kind, cx: at, cy: 12, r: line.kind === "value" ? 5 : 4 }));
      return make("tr", { class: line.kind }, make("th", { scope: "row" }, line.name), make("td", {}, track), make("td", { class: "figure" }, line.value));
    };
    drawer.querySelector(".chart").replaceChildren(...lines.map(row));
  };

  const label = (facts) => `${facts.position}: ${facts.verdict}. Value ${facts.value} (${facts.interval}), ${facts.control} ${facts.control_value} (${facts.control_range}), predicted ${facts.predicted}, agreement ${facts.agreement}, p ${facts.p}, inputs ${facts.inputs}`;
  const colour = (box) => {
    const claim = claimOn(box);
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

  const open = (cell) => {
    const claim = claimOn(cell.closest(".map"));
    const i = cell.dataset.index;
    const facts = factsOf(claim, i);
    fill(drawer, facts);
    draw(facts);
    drawer.querySelector(".controls").replaceChildren(...tableOf(
      ["Control", "Value", "95% of draws", "Draws", "p"],
      facts.controls.map((control) => [control.name + (control.closest && facts.controls.length > 1 ? " (closest)" : ""), control.value, span(control.low, control.high), control.draws, control.p]),
    ));
    drawer.querySelector(".note").hidden = !facts.note;
    const siblings = claims.filter((other) => other !== claim && other.theory === claim.theory && other.map === claim.map);
    drawer.querySelector(".siblings").hidden = !siblings.length;
    drawer.querySelector(".siblings table").replaceChildren(...tableOf(
      ["Statistic", "Value", "Control", "Predicted", "Verdict"],
      siblings.map((other) => factsOf(other, i)).map((f) => [f.statistic, f.value, f.control_value, f.predicted, f.verdict]),
    ));
    hideTip();
    if (opened) opened.classList.remove("opened");
    opened = cell;
    opened.classList.add("opened");
    drawer.hidden = false;
    drawer.scrollTop = 0;
    document.getElementById("drawer-title").focus({ preventScroll: true });
  };
  const close = () => {
    hideTip();
    if (!opened) return;
    drawer.hidden = true;
    opened.classList.remove("opened");
    opened.focus({ preventScroll: true });
    opened = null;
    hideTip();
  };

  // The Tab key stops once per map; arrow keys move among its heads.
  const stopAt = (cell) => {
    for (const other of cell.closest("svg").querySelectorAll(".head[tabindex='0']")) other.setAttribute("tabindex", "-1");
    cell.setAttribute("tabindex", "0");
  };
  const neighbour = (cell, key) => {
    const rows = new Map();
    for (const other of cell.closest("svg").querySelectorAll(".head")) {
      const layer = other.dataset.layer;
      rows.set(layer, [...(rows.get(layer) || []), other]);
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
    on("click", open);
    on("keydown", (cell, e) => {
      if (e.key === "Enter" || e.key === " ") { e.preventDefault(); open(cell); }
      if (!MOVES.includes(e.key)) return;
      e.preventDefault();
      const next = neighbour(cell, e.key);
      if (next) next.focus();
    });
  }
  document.addEventListener("keydown", (e) => { if (e.key === "Escape") close(); });
  drawer.querySelector(".close").addEventListener("click", close);
  document.addEventListener("scroll", () => { if (pointed) showTip(pointed); }, { capture: true, passive: true });

  const chosen = document.querySelector(".chosen");
  const select = document.querySelector(".switch select");
  const choose = (index) => {
    close();
    const claim = claims[index];
    for (const box of boxes) box.hidden = Number(box.dataset.map) !== claim.map;
    const box = boxes[claim.map];
    if (box.dataset.claim !== index) {
      box.dataset.claim = index;
      colour(box);
    }
    // The colours of a claim that predicts only a direction are verdicts, not values on the scale of agreement.
    document.querySelector(".legend .colours").style.display = claim.direction ? "none" : "";
    fill(chosen, { headline: claim.headline, evidence: claim.evidence, statement: claim.statement, note: claim.note ? `Note: ${claim.note}` : "" });
  };
  for (const box of document.querySelectorAll(".switch, .hint, .group")) box.hidden = false;
  if (select) {
    for (const box of boxes) box.querySelector("h3").hidden = true;
    chosen.hidden = false;
    select.addEventListener("change", () => choose(select.value));
    choose(select.value);
  }

  // Tables of the claims that do not lead are long, so each is built when it is opened.
  for (const details of document.querySelectorAll(".on-demand")) {
    details.addEventListener("toggle", () => {
      const box = details.querySelector(".scroll");
      if (box.firstChild) return;
      const claim = claims[details.dataset.claim];
      const rows = claim.columns.value.split(" ").map((_, i) => factsOf(claim, i));
      box.append(make("table", {}, ...tableOf(
        ["Layer", "Head", "Value", "95% interval", "Closest control", "Control value", "Predicted", "Agreement", "p adjusted", "Inputs", "Skipped", "Verdict"],
        rows.map((f) => [f.layer, f.head, f.value, f.interval, f.control, f.control_value, f.predicted, f.agreement, f.adjusted, f.inputs, f.skipped, f.verdict]),
      )));
    });
  }
})();
