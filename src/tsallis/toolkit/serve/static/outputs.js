// Show the outputs for a source (certificate, list and tree), and the steps and attention of the selected output.

const STOPS = { budget: "reached its limit of prefixes", time: "reached the time limit", mass: "reached the requested mass",
  length: "reached the length limit" };

function certificateOf(answer) {
  const { certificate, bound, mass, hypotheses } = answer;
  const all = probability(mass, hypotheses[0].log_prob);
  return h("div", { class: `proof ${certificate}` },
    h("p", null, certificateText(certificate, bound, answer.limits)),
    h("p", { class: "hint" }, hypotheses.length > 1 ? `Probability of all ${whole(hypotheses.length)} together: ${all}.` : null,
      answer.stopped_by ? ` The search ended early: after ${whole(answer.expanded)} prefixes it ${STOPS[answer.stopped_by]}.` : null));
}

// List outputs and select the first one. Log-probabilities distinguish outputs whose probabilities underflow to 0.
function outputList(outputs, name, choose) {
  const most = outputs.reduce((high, output) => Math.max(high, output.log_prob), -Infinity);
  return h("fieldset", { class: "outputs" }, h("legend", { class: "unseen" }, name),
    outputs.map((output, i) => h("label", null,
      h("input", { type: "radio", name: "output", checked: i === 0, onchange: () => choose(output) }),
      h("span", { class: "line" }, h("span", { class: "words", dir: "auto" }, outputText(output.text) + (output.ended === false ? " …" : "")),
        h("span", { class: "prob" }, probability(output.prob, output.log_prob)),
        h("span", { class: "share", "aria-hidden": "true", style: { width: `${100 * Math.exp(output.log_prob - most)}%` } })))));
}

// Make a text of only white space visible.
function outputText(text) {
  return text.trim() === "" && text !== "" ? [...text].map(spell).join("") : text || "(empty)";
}

function drawsOf(draws) {
  const counts = new Map();
  for (const draw of draws.filter(Boolean)) {
    const known = counts.get(draw.text) || { ...draw, count: 0 };
    known.count += 1;
    counts.set(draw.text, known);
  }
  return [...counts.values()].sort((one, other) => other.count - one.count);
}

function searchResult(answer, choose) {
  const { unknown } = answer;
  return [unknown ? h("p", { class: "hint" }, `${whole(unknown)} ${unknown === 1 ? "symbol of the source is" : "symbols of the source are"} `
    + "not in the vocabulary.") : null, foundOutputs(answer, choose)];
}

function foundOutputs(answer, choose) {
  if (answer.draws) {
    const outputs = drawsOf(answer.draws);
    if (!outputs.length) return h("p", { class: "hint" }, "No sample was completed: each reached a dead end or the length limit.");
    choose(outputs[0]);
    return [h("p", { class: "hint" }, `${whole(answer.draws.length)} samples, ${whole(outputs.length)} different `
      + "outputs, the most frequent first, each with its probability."), outputList(outputs, "Samples", choose)];
  }
  if (!answer.hypotheses.length) return h("p", { class: "hint" }, "The search found no output.");
  choose(answer.hypotheses[0]);
  const edges = answer.tree ? answer.tree.edges.map((e) => [e.parent, e.node, e.symbol, e.log_prob, e.total, e.end]) : [];
  const proof = certificateOf(answer);
  say(`${answer.hypotheses.length} outputs. ${proof.firstChild.textContent}`);
  return [
    proof,
    outputList(answer.hypotheses, "Outputs", choose),
    edges.length ? figure("Tree of outputs", treeDrawing(edges), { scroll: true, note: "probability of each branch" }) : null,
  ];
}

function stepsOf(answer) {
  return [
    h("p", { class: "hint" }, answer.possible
      ? "Excluded symbols have a probability of exactly zero at their step."
      : `This output is impossible for the model, from step ${answer.steps.length} on.`),
    h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Steps of the output" },
      h("table", { class: "steps" },
        h("thead", null, h("tr", null, ["Step", "Symbol", "Probability", "Possible", "Symbols and shares"]
          .map((text) => h("th", { scope: "col" }, text)))),
        h("tbody", null, answer.steps.map((step, i) => h("tr", { class: step.log_prob === null ? "out" : null },
          h("td", { class: "number" }, i + 1),
          h("th", { scope: "row" }, spell(symbolName(step.symbol))),
          h("td", { class: "number" }, step.log_prob === null ? "impossible"
            : probability(step.prob, step.log_prob)),
          h("td", { class: "number" }, whole(step.support)),
          h("td", null, shares(step.words.map((word) => [symbolName(word.symbol), word.prob, word.log_prob]),
            symbolName(step.symbol), step.support))))))),
  ];
}

function attentionOf(answer) {
  const head = { ...answer.heads[0], queries: answer.heads[0].queries.map(symbolName) };
  const weights = { rows: head.rows, keys: head.keys.length, queries: head.queries.length, causal: head.causal };
  const pairs = head.queries.reduce((sum, _, query) => sum + visibleKeys(weights, query), 0);
  const cells = head.rows.reduce((sum, row) => sum + row.length, 0);
  const row = h("p", { class: "rowtext", "aria-live": "polite" },
    "Point at a symbol to read its weights, or select a figure and use the arrow keys.");
  let chosen = null;
  const draw = (form) => form(weights, head.queries, head.keys, null);
  const matrixOnly = isLong(weights);
  const drawings = [["Matrix", `blank is exactly zero${matrixOnly ? "; too long for lines" : ""}`, draw(matrix)],
    ...(matrixOnly ? [] : [["Lines", "from symbol to symbol", draw(lines)]])];
  const choose = (query) => {
    chosen = query;
    for (const [, , drawing] of drawings) select(drawing, query);
    if (query !== null) row.textContent = describeRow(weights, head.queries, head.keys, query);
  };
  for (const [, , drawing] of drawings) chooseRows(drawing, head.queries.length, () => chosen, choose);
  return [
    h("p", { class: "hint" }, `Alpha ${plain(head.alpha)}; ${whole(cells)} of ${whole(pairs)} weights `
      + "are above zero."),
    row,
    h("div", { class: "figures" }, drawings.map(([form, note, drawing]) => figure(`${form} of ${head.name}`, drawing,
      { note, class: "attention", scroll: false }))),
  ];
}
