// Show the table of heads, and the card of one head.

let sortKey = MEASURES.some((measure) => measure.key === "confidence") ? "confidence" : "name";
let sortUp = sortKey === "name";
let kindFilter = "all";
let runFilter = "all";

function columnsOfHeads() {
  return [
    { key: "name", name: "Head", value: (head) => [head.run.number, KINDS.indexOf(head.kind), head.layer, head.head] },
    { key: "role", name: "Role", value: (head) => (head.role || head.tendency) && roleOf(head) },
    ...MEASURES,
  ];
}

function compare(one, other) {
  if (Array.isArray(one)) {
    const place = one.findIndex((value, i) => value !== other[i]);
    return place < 0 ? 0 : one[place] - other[place];
  }
  return typeof one === "string" ? one.localeCompare(other) : one - other;
}

function sortedHeads() {
  const column = columnsOfHeads().find((c) => c.key === sortKey) || columnsOfHeads()[0];
  const heads = RUNS.flatMap((run) => run.heads)
    .filter((head) => (kindFilter === "all" || head.kind === kindFilter)
      && (runFilter === "all" || String(head.run.number) === runFilter));
  const missing = (head) => column.value(head) === null || column.value(head) === undefined;
  return heads.sort((one, other) => {
    if (missing(one) || missing(other)) return missing(one) - missing(other);
    return (sortUp ? 1 : -1) * compare(column.value(one), column.value(other));
  });
}

function viewHeads() {
  const place = h("div");
  const draw = (focus) => {
    place.replaceChildren(headTable(draw));
    if (focus) place.querySelector(`[data-key="${focus}"]`).focus();
  };
  draw();
  const kinds = [["all", "all kinds"], ...KINDS.map((kind) => [kind, KIND_NAMES[kind]])];
  const runs = [["all", "all runs"], ...RUNS.map((run) => [String(run.number), run.name])];
  return [
    h("h1", { tabindex: "-1" }, "Heads"),
    h("p", { class: "lead" }, "Click a column header to sort, or a head to open its card. Scores are mean weights "
      + "from 0 to 1. A head’s role is the one whose score exceeds its threshold by the largest factor."),
    h("div", { class: "controls" },
      choice("Attention", kinds, kindFilter, (value) => { kindFilter = value; draw(); }),
      RUNS.length > 1 ? choice("Run", runs, runFilter, (value) => { runFilter = value; draw(); }) : null),
    place,
  ];
}

function headTable(draw) {
  const heads = sortedHeads();
  const columns = columnsOfHeads();
  const header = (column, i) => h("th", { scope: "col", class: i > 1 ? "number" : null,
    "aria-sort": column.key === sortKey ? (sortUp ? "ascending" : "descending") : null },
  h("button", { type: "button", "data-key": column.key, onclick: () => {
    sortUp = column.key === sortKey ? !sortUp : column.key === "name" || column.key === "role";
    sortKey = column.key;
    draw(column.key);
    say(`Sorted by ${column.name}, ${sortUp ? "ascending" : "descending"}`);
  } }, column.name, h("span", { class: "arrow", "aria-hidden": "true" },
    column.key === sortKey ? (sortUp ? " ↑" : " ↓") : "")));
  const high = Object.fromEntries(MEASURES.map((measure) => [measure.key,
    Math.max(...heads.map((head) => measure.value(head) ?? 0), 1e-9)]));
  return h("div", { class: "scroll tall", tabindex: "0", role: "group", "aria-label": "All heads" },
    h("table", { class: "heads" },
      h("caption", { class: "unseen" }, `${heads.length} heads`),
      h("thead", null, h("tr", null, columns.map(header))),
      h("tbody", null, heads.map((head) => h("tr", null,
        h("th", { scope: "row" }, h("a", { href: `#head/${head.id}` },
          RUNS.length > 1 ? `${head.run.name}: ` : "", head.name)),
        h("td", { class: "role" }, head.role || head.tendency ? roleOf(head) : "–"),
        columns.slice(2).map((measure) => valueCell(measure, measure.value(head), high[measure.key])))))));
}

function valueCell(measure, value, high) {
  return numeric([h("span", { class: "bar", style: { width: `${(100 * tone(measure, value, high)).toFixed(0)}%` } }),
    h("span", null, measure.show(value ?? null))]);
}

function viewHead(id) {
  const head = HEADS.get(id);
  if (!head) return [h("h1", { tabindex: "-1" }, "Head not found"), h("p", null, h("a", { href: "#heads" }, "All heads"))];
  const heads = head.run.heads;
  const place = heads.indexOf(head);
  const near = (offset, text) => (heads[place + offset]
    ? h("a", { href: `#head/${heads[place + offset].id}` }, text) : null);
  const examples = h("div", { class: "examples" });
  showExamples(head, examples).catch(faultIn(examples));
  return [
    h("p", { class: "crumbs" }, heads.length > 1 ? h("a", { href: "#heads" }, "All heads") : null,
      RUNS.length > 1 ? ` ${head.run.name}` : ""),
    h("h1", { tabindex: "-1" }, capital(head.name)),
    h("p", { class: "lead" }, sentenceOf(head)),
    h("p", { class: "pager" }, near(-1, "← previous head"), near(1, "next head →")),
    h("div", { class: "columns" }, cardFacts(head), scoreFigure(head), densityFigure(head), historyFigure(head)),
    h("section", null, h("h2", null, head.examples.length ? "Examples that show this head best" : "Some examples"), examples),
  ];
}

function sentenceOf(head) {
  const text = head.title.slice(head.name.length).trim();
  return `${capital(text)}.`;
}

function cardFacts(head) {
  const rows = MEASURES.filter((measure) => !measure.score && measure.value(head) !== null)
    .map((measure) => [measure.name, measure.show(measure.value(head))]);
  rows.push(["Attends", kindNote(head.run, head.kind)]);
  return h("div", { class: "box" }, h("h2", null, "Numbers"),
    h("dl", { class: "numbers" }, rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))));
}

function scoreFigure(head) {
  const names = Object.keys(DATA.roles).filter((name) => head.scores[name] !== null);
  if (!names.length) return null;
  const [row, left, width] = [22, 92, 340];
  const height = names.length * row + 26;
  const toX = (value) => left + value * (width - left - 44);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart" });
  names.forEach((name, i) => {
    const y = i * row + 4;
    const threshold = DATA.roles[name].threshold;
    svg.append(
      s("text", { class: "tick", x: left - 8, y: y + 12, "text-anchor": "end" }, name),
      s("rect", { class: "field", x: left, y: y + 3, width: toX(1) - left, height: row - 9 }),
      s("rect", { class: head.scores[name] >= threshold ? "good" : "some", x: left, y: y + 3,
        width: toX(head.scores[name]) - left, height: row - 9 }),
      s("line", { class: "threshold", x1: toX(threshold), x2: toX(threshold), y1: y, y2: y + row - 3 }),
      s("line", { class: "uniform", x1: toX(head.uniform[name]), x2: toX(head.uniform[name]), y1: y + 1, y2: y + row - 4 },
        s("title", null, `${name}: equal weights would score ${plain(head.uniform[name])}`)),
      s("text", { class: "value", x: toX(1) + 8, y: y + 12 }, plain(head.scores[name])));
  });
  svg.append(s("text", { class: "name", x: left, y: height - 6 }, "mean weight"));
  return figure("Scores", svg, { note: "solid lines: thresholds of roles; dashed lines: equal weights" });
}

function densityFigure(head) {
  const count = head.histogram.length;
  const edges = Array.from({ length: count + 1 }, (_, i) => i / count);
  if (head.histogram.filter(Boolean).length < 2) return null;
  return figure("Density on each example", barChart(edges, head.histogram, { height: 200,
    xName: "share of attended keys", yName: "examples" }));
}

function historyFigure(head) {
  const { alphas } = head.run;
  if (!alphas || !alphas.values[head.kind] || alphas.steps.length < 2) return null;
  const values = alphas.values[head.kind].map((layers) => layers[head.layer][head.head]);
  if (values.every((value) => value === values[0])) return null;
  return figure("Alpha during training", lineChart(alphas.steps, [{ name: head.name, values, colour: "var(--accent)" }],
    { height: 200, low: 1, high: Math.max(2, bounds(values)[1]), xName: "update", yName: "alpha" }));
}

async function showExamples(head, place) {
  const chosen = head.examples.length ? head.examples : head.run.sentences.slice(0, 2);
  for (const [i, example] of chosen.entries()) {
    const weights = head.examples.length ? await exampleWeights(head, example) : await weightsOf(head, i);
    const [queries, keys] = sides(head.kind, example);
    const known = head.run.sentences.findIndex((sentence) => sentence.index === example.index);
    const title = `Example ${example.index + 1}${example.score === undefined ? "" : `: score ${plain(example.score)}`}`;
    place.append(h("div", { class: "example" },
      figure(title, linesOrMatrix(weights, queries, keys), { scroll: true, note: short(sentenceText(keys), 70) }),
      known >= 0 ? h("p", null, h("a", { href: `#sentence/${known}/${head.id}` }, "Compare with other heads")) : null));
  }
}
