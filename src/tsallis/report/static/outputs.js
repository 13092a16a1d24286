// Show the possible symbols of the output layer: over the corpus, at each step of a target, and in the beam.

let outputSentence = FIRST_SHOWN;

function viewOutputs(number) {
  if (isSentence(number)) outputSentence = Number(number);
  const place = h("div");
  const draw = () => place.replaceChildren(...OUTPUT_RUNS.map((run) => h("section", null,
    h("h2", null, RUNS.length > 1 ? run.name : `Example ${run.sentences[outputSentence].index + 1}`),
    ...outputsOf(run))));
  draw();
  return [
    h("h1", { tabindex: "-1" }, "Outputs"),
    h("p", { class: "lead" }, `For each step of the ${TARGET_RUN ? "target" : "reference"}, this tab shows how many symbols are `
      + "possible, and the most probable ones. Impossible symbols have a probability of exactly zero."),
    h("div", { class: "controls" }, sentenceChoice(outputSentence, (number) => {
      outputSentence = number;
      draw();
    })),
    place,
    h("section", null, h("h2", null, "Over all examples"), ...OUTPUT_RUNS.map(outputFigures)),
  ];
}

function outputsOf(run) {
  const sentence = run.sentences[outputSentence];
  const source = h("p", { class: "text" }, h("b", null, "Source "),
    h("span", { dir: "auto" }, sentenceText(sentence.source)));
  return [
    sentence.source.length ? source : null,
    h("h3", null, TARGET_RUN ? `${targetName()}, step by step` : "The reference, step by step"),
    h("p", { class: "hint" }, excludedSteps(run, sentence.steps)),
    stepTable(run, sentence),
    ...(sentence.tree ? [h("h3", null, "Outputs that the search found"), treePart(run, sentence, `outputs, example ${sentence.index + 1}`)] : []),
  ];
}

// Describe how many steps exclude the target's symbol. For its own answer a run excludes no symbol, so only the number
// of steps is shown.
function excludedSteps(run, steps) {
  const count = `${steps.length} ${steps.length === 1 ? "step" : "steps"}`;
  if (run.name === TARGET_RUN) return `${count}.`;
  const excluded = steps.filter(([, prob]) => prob === 0).length;
  const target = TARGET_RUN ? "target" : "reference";
  return excluded ? `${excluded} of ${count} ${excluded === 1 ? "excludes" : "exclude"} the ${target}’s symbol.`
    : `The ${target}’s symbol is possible at every step (${count}).`;
}

function stepTable(run, sentence) {
  return scroller(`Steps of the ${TARGET_RUN ? "target" : "reference"}`,
    h("table", { class: "steps" },
      h("thead", null, h("tr", null, ["Step", TARGET_RUN ? "Target" : "Reference", "Probability", "Possible", "Symbols and shares"]
        .map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", null, sentence.steps.map(([gold, prob, support, words], i) => h("tr", { class: prob === 0 ? "out" : null },
        numeric(i + 1),
        h("th", { scope: "row" }, spell(symbolName(gold))),
        numeric(prob === 0 ? "impossible" : probability(prob)),
        numeric(whole(support)),
        h("td", null, shares(words.map(([word, ...rest]) => [symbolName(word), ...rest]), symbolName(gold), support)))))));
}

function treePart(run, sentence, title) {
  const { tree } = sentence;
  if (!tree.edges.length) return h("p", { class: "hint" }, "The search found no output.");
  return figure(titleOf(run, title), treeDrawing(tree.edges), {
    scroll: true,
    note: `probability of each branch; sum over the outputs: ${probability(tree.mass, 0)}`,
    after: h("p", { class: `certificate ${tree.certificate}` }, certificateText(tree.certificate, tree.bound)),
  });
}

function outputFigures(run) {
  const { outputs } = run;
  const counts = coarser({
    edges: outputs.support_counts.map((_, i) => i - 0.5).concat(outputs.support_counts.length - 0.5),
    counts: outputs.support_counts,
  });
  const figures = [
    figure(titleOf(run, "possible symbols per step"), barChart(counts.edges, counts.counts, { xName: "possible symbols",
      yName: "steps", left: 56, height: 170 }), { note: `mean ${plain(outputs.support)}; ${percent(outputs.sparsity, 1)} zeros` }),
    ...[["total", "sum of the values"], ["norm", "norm of the scores"], ["threshold", "threshold τ(z)"]]
      .filter(([key]) => outputs[key] && outputs[key].histogram.counts.filter(Boolean).length > 1)
      .map(([key, text]) => {
        const { edges, counts: bars } = coarser(outputs[key].histogram);
        return figure(titleOf(run, text), barChart(edges, bars, { xName: text, yName: "steps", left: 56, height: 170 }),
          { note: `mean ${plain(outputs[key].mean, 3)}` });
      }),
  ];
  return h("div", { class: "columns" }, figures);
}

const MOST_BARS = 40;

// Merge neighbouring bins of a histogram until there are at most MOST_BARS; the last one may merge fewer bins.
function coarser({ edges, counts }) {
  const size = Math.ceil(counts.length / MOST_BARS);
  const bins = Math.ceil(counts.length / size);
  const step = edges[1] - edges[0];
  return {
    edges: Array.from({ length: bins + 1 }, (_, i) => edges[0] + i * size * step),
    counts: Array.from({ length: bins }, (_, i) => counts.slice(i * size, (i + 1) * size).reduce((a, b) => a + b, 0)),
  };
}
