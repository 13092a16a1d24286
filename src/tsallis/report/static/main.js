// Choose the view from the address.

const PAIRS = RUNS.length > 1 || (RUNS.length && RUNS[0].corpus.sentences > 1); // whether a comparison is possible
const RUN_VIEWS = [
  ["overview", "Overview", viewOverview],
  ...(OUTPUT_RUNS.length ? [["outputs", "Outputs", viewOutputs]] : []),
  ...(RUNS.some((run) => run.answers.length) ? [["wrong", "Wrong answers", viewWrong]] : []),
  ["sentence", "Attention", viewSentence],
  ...(RUNS.some((run) => run.heads.length > 1) ? [["heads", "Heads", viewHeads]] : []),
  ...(PAIRS ? [["contrasts", "Contrasts", viewContrasts]] : []),
  ["training", TRAINED ? "Training" : "Layers", viewTraining],
];
const VIEWS = [...(RUNS.length ? RUN_VIEWS : []),
  ...(DATA.densities.length ? [["densities", "Densities", viewDensities]] : []),
  ...(DATA.signals.length ? [["signals", "Time", viewSignals]] : []),
  ...(DATA.sweep && (!RUNS.length || DATA.sweep.points.length > 2) ? [["sweep", "Sweep", viewSweep]] : [])];

// Return the parts of the address. An address that can't be decoded is used as it is.
function addressParts() {
  const address = location.hash.slice(1);
  try {
    return decodeURIComponent(address).split("/");
  } catch {
    return address.split("/");
  }
}

function viewParts(view, rest) {
  if (view === "head") return viewHead(rest.join("/"));
  if (view === "sentence") return viewSentence(rest[0], rest.slice(1).join("/"));
  if (view === "outputs") return viewOutputs(rest[0]);
  return VIEWS.find(([key]) => key === view)[2]();
}

function show(focus) {
  const [name, ...rest] = addressParts();
  const main = document.getElementById("view");
  const isView = name === "head" ? RUNS.length > 0 : VIEWS.some(([key]) => key === name);
  const view = isView ? name : VIEWS[0][0];
  const current = view === "head" ? "heads" : view;
  let parts;
  try {
    parts = viewParts(view, rest);
  } catch (error) { // replace the previous view, which could be mistaken for this one
    parts = [h("h1", { tabindex: "-1" }, "This view can’t be drawn"), faultText(error)];
  }
  main.dataset.view = view;
  main.replaceChildren(...parts.filter(Boolean));
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${current}`) {
      link.setAttribute("aria-current", "page");
      link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.offsetLeft - 40; // on a phone this scrolls
    } else link.removeAttribute("aria-current");
  }
  if (focus) {
    window.scrollTo(0, 0);
    main.querySelector("h1").focus({ preventScroll: true });
  }
}

document.querySelector("nav").append(...VIEWS.map(([key, text]) => h("a", { href: `#${key}` }, text)));
window.addEventListener("hashchange", () => show(true));
show(false);
