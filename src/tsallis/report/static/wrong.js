// List the answers that differ from their references.

function viewWrong() {
  const runs = RUNS.filter((run) => run.answers.length);
  const rows = runs[0].answers.map((_, i) => runs.map((run) => run.answers[i])).filter((row) => row.some(isWrong));
  const highest = (row) => Math.max(...row.filter(isWrong).map((answer) => answer.prob ?? 0));
  rows.sort((one, other) => highest(other) - highest(one));
  const columns = ["Example", ...(hasSide("source") ? ["Source"] : []), "Reference",
    ...runs.map((run) => (runs.length > 1 ? `Answer of ${run.name}` : "Answer"))];
  return [
    h("h1", { tabindex: "-1" }, "Wrong answers"),
    h("p", { class: "lead" }, runs.map((run) => `${RUNS.length > 1 ? `${run.name}: ` : ""}${
      whole(run.answers.filter(isWrong).length)} of ${whole(run.answers.length)} answers differ from the reference. `),
    rows.length ? "The most probable ones come first." : ""),
    rows.length ? scroller("Wrong answers", table("Wrong answers", columns, rows.map((row) => [exampleLink(row[0].index),
      ...(hasSide("source") ? [h("span", { dir: "auto" }, sentenceText(row[0].source))] : []),
      h("span", { dir: "auto" }, row[0].reference || "(empty)"), ...row.map(answerCell)]))) : null,
  ];
}

function isWrong(answer) {
  return !answer.right;
}

function answerCell(answer) {
  if (answer.answer === null) return "none";
  return h("span", { class: isWrong(answer) ? "wrong" : null, dir: "auto" }, answer.answer || "(empty)", " ",
    h("small", null, isWrong(answer) ? probability(answer.prob, 0) : "correct"));
}

function exampleLink(index) {
  const known = RUNS[0].sentences.findIndex((sentence) => sentence.index === index);
  return known < 0 ? String(index + 1) : h("a", { href: `#outputs/${known}` }, String(index + 1));
}
