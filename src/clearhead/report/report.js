"use strict";
(() => {
  const { claims, findings, rules } = JSON.parse(document.getElementById("facts").textContent);
  const tip = document.getElementById("tip");
  const drawer = document.getElementById("drawer");
  const cells = [...document.querySelectorAll(".head")];
  let opened = null;
  let pointed = null;

  const factsOf = (cell) => {
    const finding = findings[cell.dataset.index];
    return { ...claims[finding.claim], rule: rules[finding.verdict], ...finding };
  };
  const fill = (box, facts) => {
    for (const place of box.querySelectorAll("[data-f]")) place.textContent = facts[place.dataset.f];
  };

  // The browser's own tooltip would cover ours; its words stay as the cell's name for screen readers.
  for (const cell of cells) {
    const title = cell.querySelector("title");
    cell.setAttribute("aria-label", title.textContent);
    title.remove();
  }

  const showTip = (cell) => {
    pointed = cell;
    fill(tip, factsOf(cell));
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

  const draw = (picture) => {
    const [value, low, high, chance, chanceLow, chanceHigh, exact] = picture;
    const put = (part, shown, attributes) => {
      const mark = drawer.querySelector(`[data-part=${part}]`);
      const known = shown.every((x) => x !== null);
      mark.setAttribute("visibility", known ? "visible" : "hidden");
      if (!known) return;
      for (const [name, text] of Object.entries(attributes)) mark.setAttribute(name, text);
    };
    put("range", [chanceLow, chanceHigh], { x: chanceLow, width: Math.max(chanceHigh - chanceLow, 1) });
    put("chance", [chance], { x1: chance, x2: chance });
    put("exact", [exact], { x1: exact, x2: exact });
    put("diamond", [exact], { transform: `translate(${exact} 18)` });
    put("interval", [low, high], { x1: low, x2: high });
    put("value", [value], { cx: value });
  };

  const open = (cell) => {
    const facts = factsOf(cell);
    fill(drawer, facts);
    draw(facts.picture);
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

  // One stop for the Tab key per map; arrows move among its heads.
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

  // Listeners stand on the box around the picture: an svg element that listens to focus becomes a tab stop itself.
  for (const map of document.querySelectorAll(".map")) {
    const first = map.querySelector(".head");
    if (first) stopAt(first);
    const on = (event, act) => map.addEventListener(event, (e) => {
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

  const maps = [...document.querySelectorAll(".map")];
  const buttons = [...document.querySelectorAll(".switch button")];
  const choose = (claim) => {
    for (const map of maps) map.hidden = map.dataset.claim !== claim;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.claim === claim));
  };
  for (const box of document.querySelectorAll(".switch, .hint")) box.hidden = false;
  for (const button of buttons) button.addEventListener("click", () => { close(); choose(button.dataset.claim); });
  if (buttons.length) {
    choose("0");
    for (const map of maps) map.querySelector("h3").hidden = true;
  }
})();
