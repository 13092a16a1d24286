// Show the first view: one example with its proof, six numbers, and the heads if there are many.

const FEW_HEADS = 4; // up to this number, a map of the heads shows nothing that the numbers don't
const NUMBERS = 6;
let measureOfMap = "density";

function mapMeasure() {
  return MEASURES.find((measure) => measure.key === measureOfMap) || MEASURES[0];
}

function mean(values) {
  const numbers = values.filter((value) => value !== null && value !== undefined);
  return numbers.length ? numbers.reduce((sum, value) => sum + value, 0) / numbers.length : null;
}

// Return two sentences about the first run: what is exactly zero, and what is proved about the example.
function leadText() {
  const run = RUNS[0];
  const name = RUNS.length > 1 ? run.name + (mapOf(run) ? ` (${mapOf(run)})` : "") : "the model";
  if (!run.outputs) return attentionText(run);
  const { support, symbols } = run.outputs;
  const first = support === symbols
    ? `At every step of an output, ${name} gives each of the ${whole(symbols)} symbols a probability above zero.`
    : `At each step of an output, ${name} leaves ${plain(support, 1)} of ${whole(symbols)} symbols possible on average; `
      + "all others have a probability of exactly zero.";
  const sentence = exampleOf(run);
  if (!sentence) return first;
  const count = sentence.tree.outputs;
  const text = `For “${titleText(sentence, 60)}”`;
  const second = {
    complete: count === 1 ? "the search proved that only one output is possible."
      : `the search found all ${count} possible outputs, and proved that there are no others.`,
    optimal: `the search found ${count} outputs, and proved that no other output is more probable than the best.`,
    bounded: `the search found ${count} outputs, and proved a limit for the probability of all others.`,
    none: `the search found ${count} outputs, and proved nothing about the others.`,
  }[sentence.tree.certificate];
  return `${first} ${text} ${second.replace("found 1 outputs", "found 1 output")}`;
}

function attentionText(run) {
  const density = mean(run.heads.map((head) => head.density));
  const [heads, texts] = [run.heads.length, run.corpus.sentences];
  const dense = run.heads.every((head) => head.density === 1);
  return `Measured: ${heads === 1 ? "one attention head" : `${whole(heads)} attention heads`} on ${
    texts === 1 ? "one text" : `${whole(texts)} texts`}. ${dense ? "Every head attends to every position: no weight is zero."
    : `On average a head attends to ${percent(density)} of the positions; all other weights are zero.`}`;
}

// Return the sentence of a run whose tree the overview shows.
function exampleOf(run) {
  return run.sentences.find((sentence) => sentence.index === run.example && sentence.tree && sentence.tree.edges.length);
}

// Return the most important numbers with explanations. Numbers that no run has are left out.
function numberRows() {
  const best = DEV_SCORES.find((key) => key !== "dev_loss" && RUNS.some((run) => key in run.metrics));
  const ofDev = (key, text) => [[scoreTitle(key), text], (run) => (key in run.metrics ? showScore(key, run.metrics[key]) : null)];
  const proved = (kind) => (run) => run.answers.length
    && percent(run.answers.filter((answer) => answer.certificate === kind).length / run.answers.length);
  return [
    ...(best ? [ofDev(best, "on the development set")] : []),
    ofDev("dev_gold_in_support", "how often the next symbol of the reference is possible, on the development set"),
    [[scoreTitle("output_support"), "fewer means that the model is more certain"], possibleSymbols],
    [["Density", "share of the positions that get attention, averaged over heads"], (run) => percent(mean(run.heads.map((head) => head.density)))],
    [[scoreTitle("complete"), "the search found every possible output"], proved("complete")],
    [[scoreTitle("optimal"), "not complete, but no other output is more probable than the best one"], proved("optimal")],
    [["Heads with a role", "such as attending to the previous token"], headsWithRole],
    [["Parameters", ""], (run) => run.parameters !== null && whole(run.parameters)],
  ].filter(([, value]) => RUNS.some((run) => value(run))).slice(0, NUMBERS)
    .map(([[name, text], value]) => [h("span", null, name, text ? [" ", h("small", null, text)] : null), value]);
}

function possibleSymbols(run) {
  return run.outputs && `${plain(run.outputs.support)} of ${whole(run.outputs.symbols)}`;
}

function headsWithRole(run) {
  return `${run.heads.filter((head) => head.role).length} of ${run.heads.length}`;
}

function mapOf(run) {
  const given = run.arguments.output || "";
  return given === "entmax" ? `${run.arguments.output_alpha ?? 1.5}-entmax` : given;
}

function factRows() {
  return [
    ["Model", (run) => run.parameters !== null && `${run.model}, ${whole(run.parameters)} parameters`],
    ["Trained for", (run) => run.step !== null && `${whole(run.step)} updates`],
    ...DEV_SCORES.map((key) => [`${DATA.scores[key].title}, development set`, (run) => (key in run.metrics
      ? showScore(key, run.metrics[key]) : null)]),
    ["Attention function", (run) => attentionMap(run)],
    ...KINDS.map((kind) => [`Alpha, ${kind}`, (run) => range(run, kind, (head) => head.alpha, plain)]),
    ...KINDS.map((kind) => [`Density, ${kind}`, (run) => range(run, kind, (head) => head.density, percent)]),
    ["Heads with a role", headsWithRole],
    ["Output function", mapOf],
    [scoreTitle("output_sum"), (run) => run.outputs && plain(run.outputs.total.mean, 3)],
    [scoreTitle("empty_rate"), (run) => run.empty
      && `${percent(run.empty.rate, 1)} of ${whole(run.empty.sentences)} searched examples`],
    ["Rare tokens", (run) => (run.training_pairs === null ? "no score: the training data was not available"
      : `by their counts in the ${whole(run.training_pairs)} training ${run.task === "language" ? "texts" : "pairs"}`)],
    [scoreTitle("output_support"), possibleSymbols],
  ];
}

function attentionMap(run) {
  const names = KINDS.map((kind) => run.arguments[`${kind}_attention`] || run.arguments.attention || "");
  return [...new Set(names)].map((name) => (name === "entmax" ? `${run.arguments.attention_alpha ?? 1.5}-entmax` : name))
    .join(", ");
}

function range(run, kind, value, show) {
  const values = run.heads.filter((head) => head.kind === kind).map(value).filter((number) => number !== null);
  if (!values.length) return null;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return show(low) === show(high) ? show(low) : `${show(mean(values))} (${show(low)} to ${show(high)})`;
}

// Sort the heads: those with a role first, by confidence; then those closest to a role; then the sparsest.
function rankedHeads(run) {
  return [...run.heads].sort((one, other) => (one.role === null) - (other.role === null)
    || (other.confidence ?? 0) - (one.confidence ?? 0) || nearness(other) - nearness(one) || one.density - other.density);
}

function headItem(head) {
  return h("li", null, h("a", { href: `#head/${head.id}` }, head.name), head.title.slice(head.name.length));
}

function legendOf(run, measure) {
  return h("div", { class: "legends" }, scale(measure, run.heads), roleLegend(run));
}

function mapFigure(run, measure) {
  return figure(titleOf(run, `${measure.name.toLowerCase()} of every head`), headMap(run, measure), { legend: legendOf(run, measure), scroll: true });
}

function measureChoice(change) {
  return choice("Colour by", MEASURES.map((measure) => [measure.key, measure.name]), measureOfMap, (key) => {
    measureOfMap = key;
    change();
  });
}

function viewOverview() {
  const maps = h("div", { class: "maps" });
  const draw = () => maps.replaceChildren(...RUNS.map((run) => mapFigure(run, mapMeasure())));
  const many = RUNS.some((run) => run.heads.length > FEW_HEADS);
  if (many) draw();
  const examples = RUNS.map((run) => [run, exampleOf(run)]).filter(([, sentence]) => sentence);
  return [
    h("h1", { tabindex: "-1" }, "Overview"),
    h("p", { class: "lead first" }, leadText()),
    examples.length ? h("div", { class: "maps" }, examples.map(([run, sentence]) => treePart(run, sentence,
      `outputs for “${titleText(sentence, 40)}”`))) : firstFigures(),
    h("section", null, h("h2", null, "In numbers"), facts(RUNS, numberRows(), "facts six"), h("p", { class: "hint" }, corpusText())),
    ...(many ? [h("section", null,
      h("div", { class: "head" }, h("h2", null, "Heads"), measureChoice(draw)),
      h("p", { class: "hint" }, "Each square is a head; the stronger its colour, the higher the value. A symbol shows "
        + "the head’s role (in brackets: the closest role). Click a square for details."),
      maps), ...RUNS.map((run) => standouts(run))] : []),
    h("section", null, tableDetails("All settings and numbers", () => facts(RUNS, factRows()))),
  ];
}

// Draw the attention of some heads on one text, for runs without searched outputs.
function firstFigures() {
  const place = h("div", { class: "examples" });
  const draw = async (head) => {
    const text = head.run.sentences[FIRST_SHOWN];
    const [queries, keys] = sides(head.kind, text);
    place.append(figure(titleOf(head.run, head.name), linesOrMatrix(await weightsOf(head, FIRST_SHOWN), queries, keys),
      { scroll: true, note: short(sentenceText(keys), 50) }));
  };
  for (const head of firstHeads()) draw(head).catch(faultIn(place));
  return place;
}

// Describe what was measured, and where the proofs come from.
function corpusText() {
  const { corpus, answers } = RUNS[0];
  const part = corpus.sentences === corpus.available ? "" : `the first ${whole(corpus.sentences)} of `;
  return [`Measured on ${corpus.name}: ${part}${whole(corpus.available)} ${corpus.available === 1 ? "example" : "examples"}`,
    answers.length && answers.length !== corpus.sentences ? `; the search ran on ${whole(answers.length)} of them` : "",
    RUNS.every((run) => run.heads.every((head) => head.alpha === null))
      ? ". Softmax weights that float32 rounds to zero count as zero" : "",
    corpus.unknown ? `. ${whole(corpus.unknown)} symbols are not in the vocabularies` : "", "."].join("");
}

// Return a table of facts. Each row is a name and a function of a run. Rows without values are left out.
function facts(runs, rows, kind = "facts") {
  const known = rows.map(([name, value]) => [name, ...runs.map((run) => value(run) || "–")])
    .filter(([, ...values]) => values.some((value) => value !== "–"));
  const columns = [h("span", { class: "unseen" }, "Fact"), ...runs.map((run) => h("span", null, run.name, mapOf(run) ? [" ", h("small", null, mapOf(run))] : null))];
  return scroller("Facts", table("Facts", columns, known, kind));
}

function standouts(run) {
  const heads = rankedHeads(run);
  return h("section", null,
    h("h2", null, RUNS.length > 1 ? `Heads of ${run.name} that stand out` : "Heads that stand out"),
    h("p", { class: "hint" }, run.heads.some((head) => head.role) ? "Sorted by confidence, then by closest role."
      : "No head has a clear role. Sorted by closest role, then by sparsity."),
    h("ol", { class: "cards" }, heads.slice(0, 6).map(headItem)));
}
