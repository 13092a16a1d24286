// The first view: what was analysed, and an overview of all heads.

let measureOfMap = "density";

function mapMeasure() {
  return MEASURES.find((measure) => measure.key === measureOfMap) || MEASURES[0];
}

function mean(values) {
  const numbers = values.filter((value) => value !== null && value !== undefined);
  return numbers.length ? numbers.reduce((sum, value) => sum + value, 0) / numbers.length : null;
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
    ["Heads with a role", (run) => `${run.heads.filter((head) => head.role).length} of ${run.heads.length}`],
    ["Output function", mapOf],
    ["Sum of the output values", (run) => run.outputs && plain(run.outputs.total.mean, 3)],
    ["Empty output more probable than the best", (run) => run.empty
      && `${percent(run.empty.rate, 1)} of ${whole(run.empty.sentences)} searched sentences`],
    ["Rare tokens", (run) => (run.training_pairs === null ? "no score: the training data was not available"
      : `by their counts in the ${whole(run.training_pairs)} training ${run.task === "language" ? "texts" : "pairs"}`)],
    ["Possible symbols per step", (run) => run.outputs
      && `${plain(run.outputs.support)} of ${whole(run.outputs.symbols)}`],
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
  const corpus = RUNS[0].corpus;
  const count = corpus.sentences === corpus.available ? whole(corpus.sentences)
    : `the first ${whole(corpus.sentences)} of ${whole(corpus.available)}`;
  const counts = [["source ", corpus.src_symbols], ["target ", corpus.tgt_symbols]].filter(([, number]) => number);
  const symbols = counts.map(([side, number]) => `${whole(number)} ${counts.length > 1 ? side : ""}`).join("and ");
  const maps = h("div", { class: "maps" });
  const draw = () => maps.replaceChildren(...RUNS.map((run) => mapFigure(run, mapMeasure())));
  draw();
  return [
    h("h1", { tabindex: "-1" }, "Overview"),
    h("p", { class: "lead" }, `Measured on ${count} ${corpus.available === 1 ? "sentence" : "sentences"} of ${
      corpus.name}, with ${symbols}symbols`,
      corpus.unknown ? `, of which ${whole(corpus.unknown)} are unknown to the vocabularies` : "", "."),
    h("section", null,
      h("div", { class: "head" }, h("h2", null, "Heads"), measureChoice(draw)),
      h("p", { class: "hint" }, "Each square is a head; the stronger its colour, the higher the value. A symbol shows "
        + "the head’s role (in brackets: the closest role). Click a square for details."),
      maps),
    h("section", null, h("h2", null, factTitle()), facts(RUNS, factRows())),
    ...RUNS.map((run) => standouts(run)),
  ];
}

function factTitle() {
  const name = TRAINED ? "run" : "model";
  return RUNS.length > 1 ? `${name[0].toUpperCase()}${name.slice(1)}s` : `The ${name}`;
}

// A table of facts. Each row is a name and a function that returns a run's value. Rows without any value are left out.
function facts(runs, rows) {
  const known = rows.map(([name, value]) => [name, ...runs.map((run) => value(run) || "–")])
    .filter(([, ...values]) => values.some((value) => value !== "–"));
  const columns = [h("span", { class: "unseen" }, "Fact"), ...runs.map((run) => run.name)];
  return scroller("Facts", table("Facts", columns, known, "facts"));
}

function standouts(run) {
  const heads = rankedHeads(run);
  return h("section", null,
    h("h2", null, RUNS.length > 1 ? `Heads of ${run.name} that stand out` : "Heads that stand out"),
    h("p", { class: "hint" }, run.heads.some((head) => head.role) ? "Sorted by confidence, then by closest role."
      : "No head has a clear role. Sorted by closest role, then by sparsity."),
    h("ol", { class: "cards" }, heads.slice(0, 6).map(headItem)));
}
