// Plot scores against the one setting in which the runs differ, with the spread over seeds.

function settingName(setting) {
  const name = setting.replace(/model\./g, "");
  return { output_alpha: "alpha of the output", attention_alpha: "alpha of the attention",
    "attention_alpha and output_alpha": "alpha of attention and output" }[name] || name.replace(/_/g, " ");
}

function viewSweep() {
  const { sweep } = DATA;
  const runs = sweep.points.reduce((sum, point) => sum + point.runs.length, 0);
  const names = [...new Set(sweep.points.flatMap((point) => Object.keys(point.scores)))].filter((name) => name !== "tau"
    && sweep.points.some((point) => point.spread[name] && point.spread[name].mean !== null));
  const order = [sweep.score, "dev_loss", ...names].filter((name, i, all) => names.includes(name) && all.indexOf(name) === i);
  return [
    h("h1", { tabindex: "-1" }, "Sweep"),
    h("p", { class: "lead" }, `${whole(runs)} runs that differ in one setting, the ${settingName(sweep.setting)}. Each run `
      + `is shown at its best validation, by ${scoreTitle(sweep.score)} on the development set. A dot is a run, the line joins the `
      + "means, and a bar is one standard deviation over seeds."),
    /output_alpha/.test(sweep.setting)
      ? h("p", { class: "hint" }, "Each alpha has its own loss function: do not compare the losses.") : null,
    h("div", { class: "columns" }, order.filter((name) => varies(sweep, name)).map((name) => sweepFigure(sweep, name))),
    h("section", null, h("h2", null, "During training"),
      legend(sweep.points.map((point, i) => [shade(i, sweep.points.length), label(point.value)])),
      h("div", { class: "columns" }, order.slice(0, 2).map((name) => sweepCurves(sweep, name)))),
    h("section", null, h("h2", null, "Means and deviations"), sweepTable(sweep, order)),
  ];
}

function numbersOf(point, name) {
  return (point.scores[name] || []).filter((value) => value !== null);
}

function varies(sweep, name) {
  return new Set(sweep.points.flatMap((point) => numbersOf(point, name))).size > 1;
}

function sweepFigure(sweep, name) {
  const points = sweep.points.filter((point) => numbersOf(point, name).length);
  const ends = (point) => {
    const { mean: middle, deviation } = point.spread[name];
    return [...numbersOf(point, name), middle - (deviation || 0), middle + (deviation || 0)];
  };
  const all = points.flatMap(ends);
  const values = points.map((point) => point.value);
  const chart = axes({ x: padded(...bounds(values)), y: padded(...bounds(all)),
    xName: settingName(sweep.setting), yName: "", left: 56, xMarks: values.length < 9 ? values : null });
  const toY = (point) => chart.toY(point.spread[name].mean);
  chart.svg.append(s("polyline", { class: "line", style: { stroke: "var(--accent)" },
    points: points.map((point) => `${chart.toX(point.value)},${toY(point)}`).join(" ") }));
  for (const point of points) {
    const { mean: middle, deviation } = point.spread[name];
    const x = chart.toX(point.value);
    if (deviation) {
      chart.svg.append(s("line", { class: "threshold", x1: x, x2: x, y1: chart.toY(middle - deviation),
        y2: chart.toY(middle + deviation) }));
    }
    point.scores[name].forEach((value, i) => {
      if (value === null) return;
      chart.svg.append(s("circle", { cx: x, cy: chart.toY(value), r: 3.2, style: { fill: "var(--accent)" } },
        s("title", null, `${point.runs[i]}: ${label(point.value)}, ${plain(value, 3)}`)));
    });
  }
  return figure(scoreTitle(name), chart.svg);
}

function sweepCurves(sweep, name) {
  const lines = sweep.points.flatMap((point, i) => (point.curves[name] || []).map((values, j) => ({
    name: point.runs[j], steps: point.steps[j], values, colour: shade(i, sweep.points.length) })));
  return figure(scoreTitle(name), lineChart(null, lines, { xName: "update", yName: "", left: 56 }));
}

function sweepTable(sweep, names) {
  const cell = (point, name) => {
    const spread = point.spread[name];
    if (!spread || spread.mean === null) return "–";
    return `${plain(spread.mean, 3)}${spread.deviation === null ? "" : ` ± ${plain(spread.deviation, 3)}`}`;
  };
  const rows = sweep.points.map((point) => [label(point.value), numeric(point.runs.length),
    ...names.map((name) => numeric(cell(point, name)))]);
  const columns = [capital(settingName(sweep.setting)), "Runs", ...names.map(scoreTitle)];
  return scroller("Means and deviations", table("Means and deviations", columns, rows, "contrasts"));
}
