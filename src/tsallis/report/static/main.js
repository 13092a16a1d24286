// Which view is shown, by the address.

const RUN_VIEWS = [
  ["overview", "Overview", viewOverview],
  ["heads", "Heads", viewHeads],
  ["sentence", "Sentences", viewSentence],
  ["contrasts", "Contrasts", viewContrasts],
  ["training", TRAINED ? "Training" : "Layers", viewTraining],
  ...(OUTPUT_RUNS.length ? [["outputs", "Outputs", viewOutputs]] : []),
];
const VIEWS = [...(RUNS.length ? RUN_VIEWS : []),
  ...(DATA.densities.length ? [["densities", "Densities", viewDensities]] : []),
  ...(DATA.signals.length ? [["signals", "Time", viewSignals]] : []),
  ...(DATA.sweep ? [["sweep", "Sweep", viewSweep]] : [])];

function show(focus) {
  const [name, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
  const main = document.getElementById("view");
  const current = name === "head" ? "heads" : (VIEWS.find(([key]) => key === name) || VIEWS[0])[0];
  let parts;
  if (name === "head") parts = viewHead(rest.join("/"));
  else if (name === "sentence") parts = viewSentence(rest[0], rest.slice(1).join("/"));
  else if (name === "outputs") parts = viewOutputs(rest[0]);
  else parts = VIEWS.find(([key]) => key === current)[2]();
  main.dataset.view = name === "head" ? "head" : current;
  main.replaceChildren(...parts.filter(Boolean));
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${current}`) {
      link.setAttribute("aria-current", "page");
      link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.offsetLeft - 40; // on a phone views scroll
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
