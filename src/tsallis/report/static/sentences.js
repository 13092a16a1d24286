// The sentence explorer: any heads of any runs on one sentence, beside each other.

let shownSentence = 0;
let shownHeads = null;
let shownForm = "both";
let shownQuery = null;
const PANELS = 6;

function firstHeads() {
  const run = RUNS[0];
  const best = kindsOf(run).map((kind) => run.heads.filter((head) => head.kind === kind)
    .sort((one, other) => (other.confidence ?? 0) - (one.confidence ?? 0) || one.density - other.density)[0]);
  const chosen = RUNS.length > 1 ? RUNS.slice(0, 3).map((r) => HEADS.get(`${r.number}/${best[best.length - 1].kind}/${
    best[best.length - 1].layer}/${best[best.length - 1].head}`)) : best.slice(0, 2);
  return chosen.filter(Boolean);
}

function viewSentence(number, id) {
  if (number !== undefined && RUNS[0].sentences[number]) shownSentence = Number(number);
  if (id && HEADS.get(id)) {
    shownHeads = [HEADS.get(id), ...(shownHeads || firstHeads()).filter((head) => head.id !== id)].slice(0, 2);
  }
  shownHeads = shownHeads || firstHeads();
  shownQuery = null;
  const panels = h("div", { class: "panels" });
  const thumbs = h("section");
  const text = h("div", { class: "text" });
  const row = h("p", { class: "rowtext", "aria-live": "polite" });
  const draw = () => {
    text.replaceChildren(...sentenceLines());
    panels.replaceChildren(...shownHeads.map((head, i) => panel(head, i, draw, row)));
    thumbs.replaceChildren(...allHeads(draw));
    row.textContent = "Point at a word, or choose a figure and use the arrow keys, to read its weights.";
  };
  draw();
  return [
    h("h1", { tabindex: "-1" }, "Sentences"),
    h("div", { class: "controls" },
      choice("Sentence", RUNS[0].sentences.map((sentence, i) => [String(i),
        `${sentence.index + 1}: ${titleText(sentence, 60)}`]), String(shownSentence), (value) => {
        shownSentence = Number(value);
        draw();
      }),
      segments("Draw", [["both", "lines and matrix"], ["lines", "lines"], ["matrix", "matrix"]], shownForm, (value) => {
        shownForm = value;
        draw();
      }),
      h("button", { type: "button", onclick: () => {
        if (shownHeads.length >= PANELS) { say(`At most ${PANELS} heads`); return; }
        const { heads } = shownHeads[0].run;
        shownHeads.push(heads.find((head) => !shownHeads.includes(head)) || heads[0]);
        draw();
      } }, "Add a head")),
    text, row, panels, thumbs,
  ];
}

function sentenceLines() {
  const sentence = RUNS[0].sentences[shownSentence];
  const lines = [["Source", sentence.source], [OUTPUT_RUNS.length ? "Reference" : "Target", sentence.target]]
    .filter(([, pieces]) => pieces.length || OUTPUT_RUNS.length).map(([name, pieces]) => [name, sentenceText(pieces)]);
  for (const run of OUTPUT_RUNS) {
    const own = run.sentences[shownSentence];
    lines.push([RUNS.length > 1 ? `Answer of ${run.name}` : "Answer", own.answer === null ? "none" : own.answer]);
  }
  return [h("dl", { class: "lines" }, lines.map(([name, value]) => h("div", null, h("dt", null, name),
    h("dd", { dir: "auto" }, value || "–"))))];
}

function headChoice(head, change) {
  const groups = kindsOf(head.run).map((kind) => ({
    group: KIND_NAMES[kind],
    options: head.run.heads.filter((other) => other.kind === kind).map((other) => [other.id,
      `${other.name}${other.role || other.tendency ? ` · ${roleOf(other)}` : ""}`]),
  }));
  return choice("Head", groups, head.id, (id) => change(HEADS.get(id)));
}

function panel(head, place, draw, row) {
  const body = h("div", { class: "body" });
  const change = (other) => { shownHeads[place] = other; draw(); };
  const node = h("div", { class: "panel" },
    h("div", { class: "controls" },
      RUNS.length > 1 ? choice("Run", RUNS.map((run) => [String(run.number), run.name]), String(head.run.number),
        (number) => change(HEADS.get(`${number}/${head.kind}/${head.layer}/${head.head}`) || RUNS[number].heads[0])) : null,
      headChoice(head, change),
      shownHeads.length > 1 ? h("button", { type: "button", class: "quiet", "aria-label": `Remove ${head.name}`,
        onclick: () => { shownHeads.splice(place, 1); draw(); } }, "Remove") : null),
    h("p", { class: "hint" }, `Alpha ${plain(head.alpha)}, density ${percent(head.density)}, `, roleOf(head), ". ",
      h("a", { href: `#head/${head.id}` }, "Card")),
    body);
  drawPanel(head, body, row);
  return node;
}

async function drawPanel(head, body, row) {
  const text = head.run.sentences[shownSentence];
  const weights = await weightsOf(head, shownSentence);
  const [queries, keys] = sides(head.kind, text);
  const figures = [];
  const name = RUNS.length > 1 ? `${head.run.name}, ${head.name}` : head.name;
  const drawings = [];
  const kind = DATA.sides[head.kind];
  if (shownForm !== "matrix") {
    drawings.push(["Lines", `${kind[0]} to ${kind[1]}`, lines(weights, queries, keys, shownQuery)]);
  }
  if (shownForm !== "lines") {
    drawings.push(["Matrix", "blank is exactly zero", matrix(weights, queries, keys, shownQuery)]);
  }
  for (const [form, note, drawing] of drawings) {
    const title = `${form} of ${name}`;
    drawing.setAttribute("tabindex", "0");
    const choose = (query) => {
      shownQuery = query;
      for (const other of document.querySelectorAll(".panels svg")) select(other, query);
      row.textContent = query === null ? "" : describeRow(weights, queries, keys, query);
    };
    drawing.addEventListener("pointerover", (event) => {
      const line = event.target.closest(".row");
      if (line) choose(Number(line.dataset.query));
    });
    drawing.addEventListener("pointerleave", () => choose(null));
    drawing.addEventListener("keydown", (event) => {
      const move = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      choose(clamp((shownQuery ?? (move > 0 ? -1 : queries.length)) + move, 0, queries.length - 1));
    });
    figures.push(figure(title, drawing, { note, short: form, class: "attention" }));
  }
  body.replaceChildren(h("div", { class: "figures" }, figures), weightTable(name, weights, queries, keys));
}

function weightTable(name, weights, queries, keys) {
  const details = h("details", null, h("summary", null, "Weights as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    details.append(h("table", { class: "weights" }, h("caption", { class: "unseen" }, name),
      h("thead", null, h("tr", null, ["Word", "Keys above zero", "Weights"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", null, queries.map((query, i) => h("tr", null, h("th", { scope: "row" }, spell(query)),
        h("td", { class: "number" }, `${weights.rows[i].length} of ${keys.length}`),
        h("td", null, weights.rows[i].map(([key, value]) => `${spell(keys[key])} ${weight(value)}`).join(", ")))))));
  });
  return details;
}

// All heads of one kind as small matrices: a click puts one beside the others.
let thumbKind = null;
let thumbRun = "0";

function allHeads(draw) {
  const run = RUNS[Number(thumbRun)];
  const kind = kindsOf(run).includes(thumbKind) ? thumbKind : kindsOf(run)[kindsOf(run).length - 1];
  const grid = h("div", { class: "thumbs" });
  drawThumbs(run, kind, grid, draw);
  return [
    h("div", { class: "head" }, h("h2", null, "All heads on this sentence"),
      RUNS.length > 1 ? choice("Run", RUNS.map((r) => [String(r.number), r.name]), thumbRun, (value) => {
        thumbRun = value;
        draw();
      }) : null,
      choice("Attention", kindsOf(run).map((k) => [k, KIND_NAMES[k]]), kind, (value) => { thumbKind = value; draw(); })),
    h("p", { class: "hint" }, `${KIND_NAMES[kind]}, ${KIND_NOTES[kind]}. Choose a head to put it first above.`),
    grid,
  ];
}

async function drawThumbs(run, kind, grid, draw) {
  const nodes = [];
  const heads = run.heads.filter((head) => head.kind === kind);
  for (const head of heads) {
    const weights = await weightsOf(head, shownSentence);
    nodes.push(h("button", { type: "button", class: "thumb", "aria-label": `Show ${head.name}, ${roleOf(head)}`,
      onclick: () => {
        shownHeads = [head, ...shownHeads.filter((other) => other !== head)].slice(0, Math.max(2, shownHeads.length));
        draw();
        document.querySelector(".panels").scrollIntoView({ block: "nearest" });
      } }, thumb(weights), h("span", null, head.short)));
  }
  const perLayer = Math.max(...layersOf(run, kind).map((layer) => layer.heads));
  grid.style.setProperty("--heads", Math.min(perLayer, 8));
  grid.replaceChildren(...nodes);
}

function thumb(weights) {
  const bins = ["", "", "", ""];
  weights.rows.forEach((cells, query) => cells.forEach(([key, value]) => {
    bins[clamp(Math.floor(Number(opacity(value)) * bins.length), 0, bins.length - 1)] += `M${key} ${query}h1v1h-1z`;
  }));
  return s("svg", { viewBox: `0 0 ${weights.keys} ${weights.queries}`, class: "thumbnail", "aria-hidden": "true",
    preserveAspectRatio: "none" },
  bins.map((d, i) => (d ? s("path", { d, style: { fillOpacity: (i + 0.6) / bins.length } }) : null)));
}
