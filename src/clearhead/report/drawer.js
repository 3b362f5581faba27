// The drawer of one head: its null distribution, attention, pictures, extremes, numbers and rule.
const SCALE = { left: 3, width: 94 };

// One row for the prediction, one for the head and one for each control, on one axis in percent of the width.
const drawNull = (facts) => {
  drawer.querySelector(".null").hidden = facts.value === "-";
  const lines = [
    ...(facts.predicted === "-" ? [] : [{ kind: "theory", name: "theory predicts", value: facts.predicted, low: "-", high: "-" }]),
    { kind: "value", name: `this ${facts.unit}`, value: facts.value, low: facts.low, high: facts.high },
    ...facts.controls.map((control) => ({ ...control, kind: "control" })),
  ];
  const points = lines.flatMap((line) => [line.value, line.low, line.high].map(parseFloat).concat(line.sample || [])).filter(Number.isFinite);
  const least = Math.min(...points);
  const width = Math.max(...points) - least || 1;
  const position = (number) => `${SCALE.left + ((number - least) / width) * SCALE.width}%`;
  const at = (text) => (Number.isFinite(parseFloat(text)) ? position(parseFloat(text)) : null);
  const vertical = (part, text) => (at(text) ? [make("line", { class: part, "data-part": part, x1: at(text), x2: at(text), y1: 0, y2: 24 })] : []);
  const closest = facts.controls.find((control) => control.closest);
  const row = (line) => {
    const track = make("svg", { height: 24, "aria-hidden": "true" }, make("line", { class: "axis", x1: 0, x2: "100%", y1: 12, y2: 12 }));
    track.append(...vertical("closest", closest ? closest.value : "-"), ...vertical("predicted", facts.predicted));
    if (at(line.low) && at(line.high)) track.append(make("line", { class: "bar", x1: at(line.low), x2: at(line.high), y1: 12, y2: 12 }));
    for (const draw of line.sample || []) track.append(make("circle", { class: "draw", cx: position(draw), cy: 12, r: 2.2 }));
    if (at(line.value) && line.kind === "theory") track.append(make("svg", { x: at(line.value), y: 12 }, make("path", { class: "mark", d: "M0-6 6 0 0 6-6 0z" })));
    if (at(line.value) && line.kind !== "theory") track.append(make("circle", { class: "mark", "data-part": line.kind, cx: at(line.value), cy: 12, r: line.kind === "value" ? 5 : 4 }));
    const name = make("th", { scope: "row" }, line.name, ...(line.deciding ? [make("small", {}, " decides")] : []));
    return make("tr", { class: line.kind + (line.deciding ? " deciding" : "") }, name, make("td", {}, track), make("td", { class: "figure" }, line.value));
  };
  drawer.querySelector(".chart").replaceChildren(...lines.map(row));
};

// Bars of one theory on the chosen input, such as the spectrum of the keys with the captured part.
const drawPicture = (facts) => {
  const box = drawer.querySelector(".picture");
  const picture = attentionOf && attentionOf.pictures[facts.theory];
  const bars = picture ? numbersIn(picture.bars[facts.head], " ") : [];
  box.hidden = !bars.length;
  if (!bars.length) return;
  const { title, caption, line } = data.pictures[facts.theory];
  const part = picture.part ? numbersIn(picture.part[facts.head], " ") : bars;
  const [width, height, left] = [440, 130, 40];
  const top = Math.max(...bars, line || 0) || 1;
  const step = (width - left) / bars.length;
  const y = (number) => height - 16 - (number / top) * (height - 26);
  const chart = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${bars.join(" ")}` });
  bars.forEach((bar, i) => {
    const box = (name, number) => make("rect", { class: name, x: left + i * step + 1, width: Math.max(step - 2, 1), y: y(number), height: Math.max(y(0) - y(number), 0) });
    chart.append(box("whole", bar), box("part", part[i]));
  });
  if (line) chart.append(make("line", { class: "level", x1: left, x2: width, y1: y(line), y2: y(line) }));
  chart.append(make("line", { class: "axis", x1: left, x2: width, y1: y(0), y2: y(0) }));
  const tick = (number) => make("text", { class: "label", x: left - 6, y: y(number) + 4, "text-anchor": "end" }, Number(number.toPrecision(2)));
  chart.append(tick(top), tick(0));
  box.querySelector("h3").textContent = `${title}, input ${attentionOf.input.number}`;
  box.querySelector(".bars").replaceChildren(chart);
  box.querySelector("p").textContent = caption;
};

// The theory's first curve over depth, with the layer of the head.
const drawCurve = (facts) => {
  const box = drawer.querySelector(".curve");
  const figure = [...document.querySelectorAll("#depth figure")].find((candidate) => candidate.dataset.theory === facts.theory);
  box.hidden = !figure;
  if (!figure) return;
  const chart = figure.querySelector("svg.lines").cloneNode(true);
  const layers = figure.dataset.layers.split(" ").map(Number);
  const [left, right, top, bottom] = ["left", "right", "top", "bottom"].map((name) => Number(chart.dataset[name]));
  const [first, last] = [Math.min(...layers), Math.max(...layers)];
  const x = left + ((Number(facts.layer) - first) / (last - first || 1)) * (right - left);
  chart.append(make("line", { class: "here", x1: x, x2: x, y1: top, y2: bottom }));
  box.querySelector("h3").textContent = figure.querySelector("h3").textContent;
  box.querySelector("div").replaceChildren(chart, figure.querySelector(".line-names").cloneNode(true));
};

const drawExtremes = (claim, i) => {
  const box = drawer.querySelector(".extremes");
  const column = entry(claim.extremes, i);
  box.hidden = column === "-";
  if (box.hidden) return;
  const rows = column.split(",").map((pair) => pair.split(":"));
  const texts = claim.grouped ? {} : data.texts;
  const worded = rows.some(([number]) => texts[number]);
  box.querySelector("table").replaceChildren(...tableOf([claim.grouped ? "Group of inputs" : "Input", "Value", ...(worded ? ["Begins"] : [])], rows.map(([number, value]) => [
    Number(number) + 1, value, ...(worded ? [make("bdi", {}, texts[number] || "")] : []),
  ])));
};

const fillDrawer = (claim, i) => {
  const facts = factsOf(claim, i);
  fill(drawer, facts);
  drawNull(facts);
  drawAttention(facts, view.input);
  drawPicture(facts);
  drawCurve(facts);
  drawExtremes(claim, i);
  drawer.querySelector(".controls").replaceChildren(...tableOf(
    ["Control", "Value", "95% of draws", "Draws", "p"],
    facts.controls.map((control) => [
      control.name + (facts.controls.length > 1 ? [control.deciding ? " (decides)" : "", control.closest ? " (closest)" : ""].join("") : ""),
      control.value, span(control.low, control.high), control.draws, control.p]),
  ));
  drawer.querySelector(".note").hidden = !facts.note;
  const siblings = claims.filter((other) => other !== claim && other.theory === claim.theory && other.map === claim.map);
  drawer.querySelector(".siblings").hidden = !siblings.length;
  drawer.querySelector(".siblings table").replaceChildren(...tableOf(
    ["Statistic", "Value", "Control", "Predicted", "Verdict"],
    siblings.map((other) => factsOf(other, i)).map((f) => [f.statistic, f.value, f.control_value, f.predicted, f.verdict]),
  ));
};
