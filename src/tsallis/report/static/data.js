// Read the data of the report. The weights of a sentence are unpacked when they are first shown.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const OUTPUT_RUNS = RUNS.filter((run) => run.outputs); // the other runs have only an analysis of attention
const TRAINED = RUNS.some((run) => run.step !== null); // false if all models come without a training run
const TARGET_RUN = RUNS.length ? RUNS[0].corpus.target_run : null; // run whose answers are the targets, or null
// Position of the example in the overview. Other views start with the same example.
const FIRST_SHOWN = RUNS.length ? Math.max(0, RUNS[0].sentences.findIndex((sentence) => sentence.index === RUNS[0].example)) : 0;
const KINDS = Object.keys(DATA.sides).filter((kind) => RUNS.some((run) => run.layers.some((l) => l.kind === kind)));
const KIND_NAMES = { encoder: "Encoder", decoder: "Decoder", cross: "Cross-attention" };
const ROLE_LETTERS = {
  previous: "←", self: "•", next: "→", merging: "m", question: "?", punctuation: ".", rare: "r", start: "|", end: "$",
};

RUNS.forEach((run, number) => {
  run.number = number;
  run.heads.forEach((head) => {
    head.run = run;
    head.causal = layersOf(run, head.kind).find((layer) => layer.layer === head.layer).causal;
    head.id = `${number}/${head.kind}/${head.layer}/${head.head}`;
    head.name = `${head.kind} layer ${head.layer + 1} head ${head.head + 1}`;
    head.short = `${head.layer + 1}.${head.head + 1}`;
  });
});
const HEADS = new Map(RUNS.flatMap((run) => run.heads.map((head) => [head.id, head])));

// Return whether any sentence has a text on this side, "source" or "target".
function hasSide(side) {
  return RUNS[0].sentences.some((sentence) => sentence[side].length);
}

// Return the name of a side. If there is only one side, its name is "text".
function sideName(side) {
  return hasSide("source") && hasSide("target") ? side : "text";
}

// Return the name of the target: a reference, or the answer of a run if the line has no reference.
function targetName() {
  if (sideName("target") === "text") return "Text";
  if (TARGET_RUN) return RUNS.length > 1 ? `Answer of ${TARGET_RUN} (used as target)` : "Answer (used as target)";
  return OUTPUT_RUNS.length ? "Reference" : "Target";
}

function kindsOf(run) {
  return KINDS.filter((kind) => run.layers.some((layer) => layer.kind === kind));
}

function layersOf(run, kind) {
  return run.layers.filter((layer) => layer.kind === kind);
}

// Describe what the heads of a kind attend from and to.
function kindNote(run, kind) {
  if (kind === "cross") return "from each predicted target word to the source";
  const name = sideName(DATA.sides[kind][0]);
  const causal = layersOf(run, kind).every((layer) => layer.causal);
  return causal ? `from each position of the ${name} to itself and earlier positions`
    : `from each position of the ${name} to all positions`;
}

// Return the words of queries and keys. A query of cross-attention is named after the word that it predicts.
function sides(kind, text) {
  const [queries, keys] = DATA.sides[kind];
  return [kind === "cross" ? [...text.target.slice(1), "(end)"] : text[queries], text[keys]];
}

// Return the text that identifies a sentence: its source, or its target if there is no source.
function titleText(sentence, letters) {
  return short(sentenceText(sentence.source.length ? sentence.source : sentence.target), letters);
}

function roleOf(head) {
  if (head.role) return DATA.roles[head.role].phrase;
  return head.tendency ? `no role, closest: ${DATA.roles[head.tendency].phrase}` : "no role";
}

// Return the score of a head's closest role as a share of the role's threshold; 0 if no role is close.
function nearness(head) {
  return head.tendency ? head.scores[head.tendency] / DATA.roles[head.tendency].threshold : 0;
}

// Return whether a part of an address is the index of a sentence.
function isSentence(text) {
  return /^\d+$/.test(text) && Number(text) < RUNS[0].sentences.length;
}

// Unpack the weights: one list of heads per shape. `withRows` creates the rows of a head when they are needed.
async function unpack(text, shapes) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const rows = shapes.reduce((sum, [heads, queries]) => sum + heads * queries, 0);
  let at = 0;
  const planes = (count) => {
    const numbers = new Uint16Array(count);
    for (let i = 0; i < count; i += 1) numbers[i] = bytes[at + i] | (bytes[at + count + i] << 8);
    at += 2 * count;
    return numbers;
  };
  const support = planes(rows);
  const count = support.reduce((sum, number) => sum + number, 0);
  const [gaps, units] = [planes(count), planes(count)];
  let row = 0;
  let cell = 0;
  return shapes.map(([heads, queries, keys]) => Array.from({ length: heads }, () => {
    const head = { queries, keys, support: support.subarray(row, row + queries) };
    const size = head.support.reduce((sum, number) => sum + number, 0);
    head.gaps = gaps.subarray(cell, cell + size);
    head.units = units.subarray(cell, cell + size);
    row += queries;
    cell += size;
    return head;
  }));
}

// Return a head with a row of [key, weight] per query. Rows are created on demand: the rows of all heads of a long
// sentence would fill the memory.
function withRows({ queries, keys, support, gaps, units }, causal) {
  let cell = 0;
  const rows = Array.from(support, (count) => {
    let key = -1;
    const cells = [];
    for (const end = cell + count; cell < end; cell += 1) {
      key += gaps[cell] + 1;
      cells.push([key, units[cell] / DATA.units]);
    }
    return cells;
  });
  return { queries, keys, rows, causal };
}

const unpacked = new Map();

// Return the weights of a head on a sentence of the report: a row of [key, weight] per query.
async function weightsOf(head, position) {
  const name = `weights-${head.run.number}-${position}`;
  if (!unpacked.has(name)) {
    const text = head.run.sentences[position];
    const shapes = head.run.layers.map((layer) => [layer.heads, ...sides(layer.kind, text).map((side) => side.length)]);
    unpacked.set(name, unpack(document.getElementById(name).textContent, shapes));
  }
  const layers = await unpacked.get(name);
  const number = head.run.layers.findIndex((layer) => layer.kind === head.kind && layer.layer === head.layer);
  return withRows(layers[number][head.head], head.causal);
}

async function exampleWeights(head, example) {
  const shape = [1, ...sides(head.kind, example).map((side) => side.length)];
  return withRows((await unpack(example.weights, [shape]))[0][0], head.causal);
}

// The names of the validation scores. showScore formats numbers as the table of scores requires.
const DEV_SCORES = Object.keys(DATA.scores).filter((name) => name.startsWith("dev_"));

function showScore(name, value) {
  const [, digits, kind] = DATA.scores[name].format.match(/^\.?(\d*)(.)$/);
  return (kind === "%" ? percent : plain)(value, Number(digits));
}

// Return the title of a score in a log or an evaluation, or its name if it has no title.
function scoreTitle(name) {
  return (DATA.scores[name] || DATA.scores[`dev_${name}`] || { title: name }).title;
}

// The measures by which heads can be sorted and coloured.
const MEASURES = [
  { key: "density", name: "Density", value: (head) => head.density, show: (v) => percent(v), low: 0, high: 1 },
  { key: "alpha", name: "Alpha", value: (head) => head.alpha, show: (v) => plain(v), low: 1, high: 2 },
  { key: "confidence", name: "Confidence in the role", value: (head) => head.confidence, show: (v) => plain(v),
    low: 0, high: 1 },
  { key: "increase", name: "Loss increase when removed", value: (head) => head.increase, show: (v) => (v === null ? "–"
    : (v > -0.0005 ? "+" : "−") + Math.abs(v).toFixed(3)), low: 0, high: null },
  ...Object.keys(RUNS.length && RUNS[0].heads.length ? RUNS[0].heads[0].scores : {}).map((name) => ({
    key: name, name: { clusters: "Clusters", within_word: "Within words" }[name] || name[0].toUpperCase() + name.slice(1),
    value: (head) => head.scores[name], show: (v) => plain(v), low: 0, high: 1, score: true,
  })),
].filter((measure) => RUNS.some((run) => run.heads.some((head) => measure.value(head) !== null)));
