// One head on two sentences, sparse and dense; and the words about which two runs agree and differ.

function viewContrasts() {
  const pairs = RUNS.some((run) => run.contrasts.length);
  const several = RUNS.length > 1;
  return [
    h("h1", { tabindex: "-1" }, "Contrasts"),
    h("p", { class: "lead" }, "Where attention depends on the sentence, and where it depends on the run: one head on two "
      + "sentences of the same length", several ? ", and words about which two runs agree and differ" : "", "."),
    ...(several ? DATA.comparisons.map(comparisonPart) : []),
    several && DATA.comparisons.length < RUNS.length - 1 ? h("p", { class: "hint" }, "Runs that spell the sentences by "
      + "other pieces than the first run, or have other kinds of attention, are not compared with it.") : null,
    ...(pairs ? RUNS.map(pairsPart) : [h("p", { class: "hint" },
      "No head has two sentences of the same length, of at least six words, with different densities.")]),
  ];
}

function comparisonPart(comparison) {
  const { first, second } = comparison;
  return h("section", null, h("h2", null, `${first} and ${second}`),
    h("p", { class: "hint" }, "Divergence (Jensen–Shannon): 0 where both runs attend to the same words, 1 where they "
      + "share none. A run’s heads are averaged for it; “within” is the divergence among the heads of one run."),
    comparison.kinds.map((kind) => h("div", null,
      h("h3", null, `${KIND_NAMES[kind.kind]}: mean divergence ${plain(kind.mean, 3)} over ${whole(kind.words)} words`),
      wordTable(comparison, kind, "differ", "Differ most"), wordTable(comparison, kind, "agree", "Agree most"))));
}

function wordTable(comparison, kind, list, title) {
  const { first, second } = comparison;
  const word = kind.kind === "cross" ? "Predicted after" : "Word";
  const columns = [word, "Sentence", "Divergence", `${first} attends to`, `${second} attends to`,
    `Within ${first}`, `Within ${second}`];
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `${title}, ${kind.kind}` },
    h("table", { class: "contrasts" }, h("caption", null, title),
      h("thead", null, h("tr", null, columns.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", null, kind[list].map((row) => h("tr", null,
        h("th", { scope: "row", dir: "auto" }, spell(row.piece)),
        h("td", null, sentenceLink(row.sentence, kind.kind)),
        h("td", { class: "number" }, plain(row.between, 3)),
        h("td", null, keyList(row.first_keys)), h("td", null, keyList(row.second_keys)),
        h("td", { class: "number" }, plain(row.first, 3)), h("td", { class: "number" }, plain(row.second, 3)))))));
}

function sentenceLink(index, kind) {
  const known = RUNS[0].sentences.findIndex((sentence) => sentence.index === index);
  const head = RUNS[0].heads.find((one) => one.kind === kind);
  return known < 0 || !head ? String(index + 1) : h("a", { href: `#sentence/${known}/${head.id}` }, String(index + 1));
}

function keyList(keys) {
  return h("span", { class: "keys", dir: "auto" }, keys.slice(0, 3).map(([piece, value]) => h("span", null, `${spell(piece)} `,
    h("small", null, weight(value)))));
}

function pairsPart(run) {
  if (!run.contrasts.length) return null;
  const place = h("div", { class: "pairs" });
  showPairs(run, place);
  return h("section", null, h("h2", null, titleOf(run, "one head, two sentences")),
    h("p", { class: "hint" }, "Left the sparsest, right the densest sentence of one length for the same head. The head is "
      + "sure on the left, and spreads its weight on the right."), place);
}

async function showPairs(run, place) {
  for (const contrast of run.contrasts.slice(0, 6)) {
    const head = HEADS.get(`${run.number}/${contrast.kind}/${contrast.layer}/${contrast.head}`);
    const figures = [];
    for (const [name, example] of [["Sparse", contrast.sparse], ["Dense", contrast.dense]]) {
      const weights = await exampleWeights(head, example);
      const [queries, keys] = sides(head.kind, example);
      const draw = queries.length + keys.length > 48 ? matrix : lines;
      const short = `${name}: density ${percent(example.score)}`;
      figures.push(figure(`${short}, ${head.name}, sentence ${example.index + 1}`, draw(weights, queries, keys, null),
        { scroll: true, short, note: `sentence ${example.index + 1}` }));
    }
    place.append(h("div", { class: "pair" }, h("h3", null, h("a", { href: `#head/${head.id}` }, capital(head.name)),
      head.alpha === null ? "" : `, alpha ${plain(head.alpha)}`), h("div", { class: "examples" }, figures)));
  }
}
