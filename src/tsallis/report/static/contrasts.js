// Show one head on a sparse and on a dense sentence, and the words on which two runs agree or differ.

function viewContrasts() {
  const pairs = RUNS.some((run) => run.contrasts.length);
  const several = RUNS.length > 1;
  return [
    h("h1", { tabindex: "-1" }, "Contrasts"),
    h("p", { class: "lead" }, "This tab compares the attention of one head on two examples of the same "
      + "length", several ? ", and of two runs on the same words" : "", "."),
    ...(several ? DATA.comparisons.map(comparisonPart) : []),
    several && DATA.comparisons.length < RUNS.length - 1 ? h("p", { class: "hint" }, "Runs that tokenize the examples "
      + "differently from the first run, or have other kinds of attention, are not compared with it.") : null,
    ...(pairs ? RUNS.map(pairsPart) : [h("p", { class: "hint" },
      "No head has different densities on two examples of the same length (at least six tokens).")]),
  ];
}

function comparisonPart(comparison) {
  const { first, second } = comparison;
  return h("section", null, h("h2", null, `${first} and ${second}`),
    h("p", { class: "hint" }, "The divergence (Jensen–Shannon) is 0 if both runs give the same weights. It grows with the weight that "
      + "they give to different positions, and is lower for long sources. The heads of each run are averaged first.", comparison.kinds.some((kind) => severalHeads(comparison, kind.kind))
      ? " “Within” is the divergence among the heads of one run." : ""),
    comparison.kinds.map((kind) => h("div", null,
      h("h3", null, `${KIND_NAMES[kind.kind]}: mean divergence ${plain(kind.mean, 3)} over ${whole(kind.words)} words`),
      wordTable(comparison, kind, "differ", "Differ most"), wordTable(comparison, kind, "agree", "Agree most"))));
}

function severalHeads({ first, second }, kind) {
  return RUNS.some((run) => [first, second].includes(run.name) && run.heads.filter((head) => head.kind === kind).length > 1);
}

function wordTable(comparison, kind, list, title) {
  const { first, second } = comparison;
  const within = severalHeads(comparison, kind.kind);
  const word = kind.kind === "cross" ? "Previous target word" : "Word";
  const columns = [word, "Example", "Divergence", `${first} attends to`, `${second} attends to`,
    ...(within ? [`Within ${first}`, `Within ${second}`] : [])];
  const rows = kind[list].map((row) => [spell(row.piece), sentenceLink(row.sentence, kind.kind), numeric(plain(row.between, 3)),
    keyList(row.first_keys), keyList(row.second_keys), ...(within ? [numeric(plain(row.first, 3)), numeric(plain(row.second, 3))] : [])]);
  return scroller(`${title}, ${kind.kind}`, table(title, columns, rows, "contrasts", null));
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
  showPairs(run, place).catch(faultIn(place));
  return h("section", null, h("h2", null, titleOf(run, "one head, two examples")),
    h("p", { class: "hint" }, "The same head on two examples of equal length. The head is sparsest on the left "
      + "example, and densest on the right one."), place);
}

async function showPairs(run, place) {
  for (const contrast of run.contrasts.slice(0, 6)) {
    const head = HEADS.get(`${run.number}/${contrast.kind}/${contrast.layer}/${contrast.head}`);
    const figures = [];
    for (const [name, example] of [["Sparse", contrast.sparse], ["Dense", contrast.dense]]) {
      const weights = await exampleWeights(head, example);
      const [queries, keys] = sides(head.kind, example);
      const short = `${name}: density ${percent(example.score)}`;
      figures.push(figure(`${short}, ${head.name}, example ${example.index + 1}`, linesOrMatrix(weights, queries, keys),
        { scroll: true, short, note: `example ${example.index + 1}` }));
    }
    place.append(h("div", { class: "pair" }, h("h3", null, h("a", { href: `#head/${head.id}` }, capital(head.name)),
      head.alpha === null ? "" : `, alpha ${plain(head.alpha)}`), h("div", { class: "examples" }, figures)));
  }
}
