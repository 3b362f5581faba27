// What the page shows, kept in its address: claim, head, input, sorting and filters.
const view = { claim: 0, head: null, input: data.inputs.length ? data.inputs[0].number : 0, sort: "", down: false, verdict: "", layer: "" };
const claimSelect = document.querySelector(".switch select");
const chosen = document.querySelector(".chosen");
let returnTo = null;

const slug = (claim) => `${claim.theory}, ${claim.statistic}`;
const boxOf = (claim) => boxes[claim.map];
const cellAt = (claim, head) => boxOf(claim).querySelector(`.head[data-index="${head}"]`);

const address = () => {
  const claim = claims[view.claim];
  const parameters = new URLSearchParams({ claim: slug(claim) });
  if (view.head !== null) {
    const facts = factsOf(claim, view.head);
    parameters.set("head", `${facts.layer}.${facts.head}`);
    if (data.inputs.length) parameters.set("input", view.input);
  }
  if (view.sort) parameters.set("sort", (view.down ? "-" : "") + view.sort);
  if (view.verdict) parameters.set("verdict", view.verdict);
  if (view.layer) parameters.set("layer", view.layer);
  return `#${parameters}`;
};

const showClaim = (claim) => {
  for (const box of boxes) box.hidden = boxes.length > 1 && box !== boxOf(claim);
  const box = boxOf(claim);
  if (claims[box.dataset.claim] !== claim) {
    box.dataset.claim = claims.indexOf(claim);
    colour(box);
  }
  if (claimSelect) claimSelect.value = String(view.claim);
  // The colours of a claim that predicts only a direction are verdicts, not values on the scale of agreement.
  document.querySelector(".legend .colours").style.display = claim.direction ? "none" : "";
  fill(chosen, { headline: claim.headline, evidence: claim.evidence, statement: claim.statement, note: claim.note ? `Note: ${claim.note}` : "" });
  fillTable(claim);
};

const showHead = (claim, focus) => {
  for (const cell of document.querySelectorAll(".head.opened")) cell.classList.remove("opened");
  hideTip();
  const closing = view.head === null && !drawer.hidden;
  drawer.hidden = view.head === null;
  document.documentElement.classList.toggle("drawn", !drawer.hidden);
  if (closing && returnTo) returnTo.focus();
  if (drawer.hidden) { hideTip(); return; }
  fillDrawer(claim, view.head);
  returnTo = cellAt(claim, view.head);
  returnTo.classList.add("opened");
  stopAt(returnTo);
  if (!focus) return;
  drawer.scrollTop = 0;
  drawer.querySelector("h2").focus({ preventScroll: true });
};

// Change what is shown, and the address with it.
const show = (changes, { remember = true } = {}) => {
  if ("claim" in changes && changes.claim !== view.claim) Object.assign(view, { head: null, verdict: "", layer: "" });
  const moved = "head" in changes;
  Object.assign(view, changes);
  const claim = claims[view.claim];
  showClaim(claim);
  showHead(claim, moved);
  if (remember) history.replaceState(null, "", address());
};

const readAddress = () => {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const number = claims.findIndex((claim) => slug(claim) === parameters.get("claim"));
  const claim = number < 0 ? Number(claimSelect ? claimSelect.value : 0) : number;
  const sort = (parameters.get("sort") || "").replace(/^-/, "");
  const head = headsOf(claims[claim]).find((i) => {
    const facts = factsOf(claims[claim], i);
    return `${facts.layer}.${facts.head}` === parameters.get("head");
  });
  const input = data.inputs.find((candidate) => String(candidate.number) === parameters.get("input")) || data.inputs[0];
  return {
    claim, head: head === undefined ? null : String(head), input: input ? input.number : 0,
    sort: COLUMNS.some(([name]) => name === sort) ? sort : "", down: (parameters.get("sort") || "").startsWith("-"),
    verdict: verdicts.some((v) => v.name === parameters.get("verdict")) ? parameters.get("verdict") : "", layer: parameters.get("layer") || "",
  };
};

const step = (by) => {
  const next = Number(view.head) + by;
  if (view.head !== null && next >= 0 && next < headsOf(claims[view.claim]).length) show({ head: String(next) });
};
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && view.head !== null) show({ head: null });
});
drawer.querySelector(".close").addEventListener("click", () => show({ head: null }));
drawer.querySelector(".previous").addEventListener("click", () => step(-1));
drawer.querySelector(".next").addEventListener("click", () => step(1));

// On paper every fold is open.
const opened = new Set();
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details:not([open])")) { opened.add(fold); fold.open = true; }
});
addEventListener("afterprint", () => {
  for (const fold of opened) fold.open = false;
  opened.clear();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (attentionOf) chooseQuery(attentionOf.row); });

for (const box of document.querySelectorAll(".switch, .hint")) box.hidden = false;
if (claims.length) {
  if (claimSelect) {
    chosen.hidden = false;
    claimSelect.addEventListener("change", () => show({ claim: Number(claimSelect.value) }));
  }
  for (const box of boxes) box.querySelector("h3").classList.toggle("once", claims.length > 1);
  const start = () => {
    show(readAddress(), { remember: false });
    if (view.head !== null) document.getElementById("map").scrollIntoView();
  };
  addEventListener("hashchange", () => { if (location.hash.includes("=")) start(); });
  start();
}
