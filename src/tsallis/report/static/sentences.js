// Show any heads of any runs on one sentence, side by side.

let shownSentence = FIRST_SHOWN;
let shownHeads = null;
let shownForm = "both";
let shownQuery = null; // chosen query as [words of its figure, number], or null
const PANELS = 6;
const contents = new WeakMap(); // last chosen head per place; weights of earlier choices are ignored

function firstHeads() {
  const run = RUNS[0];
  const best = kindsOf(run).map((kind) => run.heads.filter((head) => head.kind === kind)
    .sort((one, other) => (other.confidence ?? 0) - (one.confidence ?? 0) || one.density - other.density)[0]);
  const chosen = RUNS.length > 1 ? RUNS.slice(0, 3).map((r) => HEADS.get(`${r.number}/${best[best.length - 1].kind}/${
    best[best.length - 1].layer}/${best[best.length - 1].head}`)) : best.slice(0, 2);
  return chosen.filter(Boolean);
}

function viewSentence(number, id) {
  if (isSentence(number)) shownSentence = Number(number);
  if (id && HEADS.get(id)) {
    shownHeads = [HEADS.get(id), ...(shownHeads || firstHeads()).filter((head) => head.id !== id)].slice(0, 2);
  }
  shownHeads = shownHeads || firstHeads();
  const panels = h("div", { class: "panels" });
  const text = h("div", { class: "text" });
  const row = h("p", { class: "rowtext", "aria-live": "polite" });
  // Recreate the panels only if their number or order changes: one of their controls may have the focus.
  const drawPanels = () => {
    panels.replaceChildren(...shownHeads.map((_, place) => panel(place, row, remove)));
  };
  const remove = (place) => {
    shownHeads.splice(place, 1);
    drawPanels();
    focusPanel(panels, Math.min(place, shownHeads.length - 1));
  };
  const thumbs = allHeads((head) => {
    shownHeads = [head, ...shownHeads.filter((other) => other !== head)].slice(0, Math.max(2, shownHeads.length));
    drawPanels();
    focusPanel(panels, 0);
    panels.scrollIntoView({ block: "nearest" });
  });
  const draw = () => {
    shownQuery = null;
    text.replaceChildren(...sentenceLines());
    row.textContent = "Point at a word to read its weights, or select a figure and use the arrow keys.";
    drawPanels();
    thumbs.draw();
  };
  draw();
  return [
    h("h1", { tabindex: "-1" }, "Attention"),
    h("div", { class: "controls" },
      sentenceChoice(shownSentence, (number) => {
        shownSentence = number;
        draw();
      }),
      segments("Draw", [["both", "lines and matrix"], ["lines", "lines"], ["matrix", "matrix"]], shownForm, (value) => {
        shownForm = value;
        drawPanels();
      }),
      h("button", { type: "button", onclick: () => {
        if (shownHeads.length >= PANELS) { say(`At most ${PANELS} heads`); return; }
        const { heads } = shownHeads[0].run;
        shownHeads.push(heads.find((head) => !shownHeads.includes(head)) || heads[0]);
        drawPanels();
      } }, "Add a head")),
    omissionNote(),
    text, row, panels, RUNS.some((run) => run.heads.length > 1) ? thumbs.node : null,
  ];
}

function sentenceChoice(shown, change) {
  return choice("Example", RUNS[0].sentences.map((sentence, i) => [String(i),
    `${sentence.index + 1}: ${titleText(sentence, 60)}`]), String(shown), (value) => change(Number(value)));
}

function focusPanel(panels, place) {
  panels.children[place].querySelector("select").focus({ preventScroll: true });
}

function omissionNote() {
  const count = DATA.omitted_sentences;
  return count ? h("p", { class: "hint" }, `${whole(count)} more ${count === 1 ? "example is" : "examples are"} left out: `
    + "the page would be too large with all their weights.") : null;
}

function sentenceLines() {
  const sentence = RUNS[0].sentences[shownSentence];
  const lines = [[capital(sideName("source")), "source"], [targetName(), "target"]]
    .filter(([, side]) => hasSide(side)).map(([name, side]) => [name, sentenceText(sentence[side])]);
  for (const run of OUTPUT_RUNS.filter((one) => one.name !== TARGET_RUN)) {
    const own = run.sentences[shownSentence];
    if (own.tree === null) continue; // no search was run
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

function panel(place, row, remove) {
  const hint = h("p", { class: "hint" });
  const body = h("div", { class: "body" });
  const button = shownHeads.length > 1
    ? h("button", { type: "button", class: "quiet", onclick: () => remove(place) }, "Remove") : null;
  const draw = () => {
    const head = shownHeads[place];
    if (button) button.setAttribute("aria-label", `Remove ${head.name}`);
    const alpha = head.alpha === null ? "" : `alpha ${plain(head.alpha)}, `;
    hint.replaceChildren(capital(`${alpha}density ${percent(head.density)}, ${roleOf(head)}. `),
      h("a", { href: `#head/${head.id}` }, "More about this head"), ...(button ? [" ", button] : []));
    drawPanel(head, body, row).catch(faultIn(body));
  };
  const change = (head) => { shownHeads[place] = head; draw(); };
  let heads = headChoice(shownHeads[place], change);
  const runs = RUNS.length > 1 ? choice("Run", RUNS.map((run) => [String(run.number), run.name]),
    String(shownHeads[place].run.number), (number) => {
      const { kind, layer, head } = shownHeads[place];
      change(HEADS.get(`${number}/${kind}/${layer}/${head}`) || RUNS[number].heads[0]);
      const others = headChoice(shownHeads[place], change);
      heads.replaceWith(others);
      heads = others;
    }) : null;
  draw();
  return h("div", { class: "panel" }, h("div", { class: "controls" }, runs, heads), hint, body);
}

async function drawPanel(head, body, row) {
  const position = shownSentence;
  contents.set(body, head);
  const text = head.run.sentences[position];
  const weights = await weightsOf(head, position);
  if (contents.get(body) !== head || position !== shownSentence) return;
  const [queries, keys] = sides(head.kind, text);
  const figures = [];
  const name = RUNS.length > 1 ? `${head.run.name}, ${head.name}` : head.name;
  const drawings = [];
  const names = DATA.sides[head.kind].map(sideName);
  const matrixOnly = isLong(weights);
  const words = queries.join(" ");
  const chosen = () => (shownQuery && shownQuery[0] === words ? shownQuery[1] : null);
  if (shownForm !== "matrix" && !matrixOnly) {
    drawings.push(["Lines", names.join(" to "), lines(weights, queries, keys, chosen())]);
  }
  if (shownForm !== "lines" || matrixOnly) {
    drawings.push(["Matrix", `blank is exactly zero${matrixOnly ? "; too long for lines" : ""}`,
      matrix(weights, queries, keys, chosen())]);
  }
  const choose = (query) => {
    shownQuery = query === null ? null : [words, query];
    for (const other of document.querySelectorAll(".panels svg")) select(other, other.words === words ? query : null);
    row.textContent = query === null ? "" : describeRow(weights, queries, keys, query);
  };
  for (const [form, note, drawing] of drawings) {
    drawing.words = words;
    chooseRows(drawing, queries.length, chosen, choose);
    figures.push(figure(`${form} of ${name}`, drawing, { note, short: form, class: "attention" }));
  }
  body.replaceChildren(h("div", { class: "figures" }, figures), weightTable(name, weights, queries, keys));
}

function weightTable(name, weights, queries, keys) {
  return tableDetails("Weights as a table", () => table(name, ["Word", "Attended keys", "Weights"], queries.map((query, i) => [
    spell(query), numeric(`${weights.rows[i].length} of ${visibleKeys(weights, i)}`),
    weights.rows[i].map(([key, value]) => `${spell(keys[key])} ${weight(value)}`).join(", ")]), "weights"));
}

// Show all heads of one kind as small matrices. A click shows a head in the first panel.
let thumbKind = null;
let thumbRun = "0";

function allHeads(show) {
  const hint = h("p", { class: "hint" });
  const grid = h("div", { class: "thumbs" });
  const draw = () => {
    const run = RUNS[Number(thumbRun)];
    const kind = kindOfThumbs(run);
    hint.textContent = `${titleOf(run, `${KIND_NAMES[kind]}, ${kindNote(run, kind)}`)}. Click a head to show it above.`;
    drawThumbs(run, kind, grid, show).catch(faultIn(grid));
  };
  const kindChoice = () => {
    const run = RUNS[Number(thumbRun)];
    return choice("Attention", kindsOf(run).map((kind) => [kind, KIND_NAMES[kind]]), kindOfThumbs(run), (value) => {
      thumbKind = value;
      draw();
    });
  };
  let kinds = kindChoice();
  const runs = RUNS.length > 1 ? choice("Run", RUNS.map((run) => [String(run.number), run.name]), thumbRun, (value) => {
    thumbRun = value;
    const others = kindChoice();
    kinds.replaceWith(others);
    kinds = others;
    draw();
  }) : null;
  const title = h("div", { class: "head" }, h("h2", null, "All heads on this example"), runs, kinds);
  return { node: h("section", null, title, hint, grid), draw };
}

function kindOfThumbs(run) {
  return kindsOf(run).includes(thumbKind) ? thumbKind : kindsOf(run)[kindsOf(run).length - 1];
}

async function drawThumbs(run, kind, grid, show) {
  const nodes = [];
  const heads = run.heads.filter((head) => head.kind === kind);
  const position = shownSentence;
  contents.set(grid, heads[0]);
  for (const head of heads) {
    const weights = await weightsOf(head, position);
    nodes.push(h("button", { type: "button", class: "thumb", "aria-label": `Show ${head.name}, ${roleOf(head)}`,
      onclick: () => show(head) }, thumb(weights), h("span", null, head.short)));
  }
  if (contents.get(grid) !== heads[0] || position !== shownSentence) return;
  const perLayer = Math.max(...layersOf(run, kind).map((layer) => layer.heads));
  grid.style.setProperty("--heads", Math.min(perLayer, 8));
  grid.replaceChildren(...nodes);
}

const THUMB = 96; // cells per side of a small matrix; in longer sentences a cell is the largest of several weights

function thumb(weights) {
  const [down, across] = [weights.queries, weights.keys].map((count) => Math.ceil(count / THUMB));
  const [rows, columns] = [Math.ceil(weights.queries / down), Math.ceil(weights.keys / across)];
  const largest = Array.from({ length: rows }, () => new Map());
  weights.rows.forEach((cells, query) => {
    const row = largest[Math.floor(query / down)];
    for (const [key, value] of cells) {
      const column = Math.floor(key / across);
      row.set(column, Math.max(value, row.get(column) || 0));
    }
  });
  const bins = ["", "", "", ""];
  largest.forEach((cells, row) => cells.forEach((value, column) => {
    bins[clamp(Math.floor(Number(opacity(value)) * bins.length), 0, bins.length - 1)] += `M${column} ${row}h1v1h-1z`;
  }));
  return s("svg", { viewBox: `0 0 ${columns} ${rows}`, class: "thumbnail", "aria-hidden": "true",
    preserveAspectRatio: "none" },
  bins.map((d, i) => (d ? s("path", { d, style: { fillOpacity: (i + 0.6) / bins.length } }) : null)));
}
