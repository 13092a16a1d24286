// Show how alphas and densities change during training, and their distributions at the end.

function viewTraining() {
  if (!TRAINED) return [h("h1", { tabindex: "-1" }, "Layers"), ...RUNS.map(histograms), spread()];
  const learned = RUNS.some((run) => run.alphas && changes(run.alphas));
  const parts = RUNS.flatMap((run) => {
    const figures = [history(run, run.alphas, "Alpha", { low: 1, high: 2 }), histograms(run),
      history(run, run.densities, "Density", { low: 0, high: 1 })].filter(Boolean);
    return figures.length ? [h("h2", null, titleOf(run, "heads during training")), ...figures] : [];
  });
  return [
    h("h1", { tabindex: "-1" }, "Training"),
    h("p", { class: "lead" }, "Values at each validation, on the development set.", learned
      ? " Below them, the alpha of each head: 1 is softmax, 2 is sparsemax. Colours go from light in the first layer to dark "
        + "in the last." : ""),
    curves(), ...parts, spread(),
  ];
}

function changes(record) {
  return new Set(KINDS.filter((kind) => record.values[kind]).flatMap((kind) => record.values[kind].flat(2))).size > 1;
}

// The scores that are logged at each validation, the loss first.
const CURVES = [...new Set(["dev_loss", ...Object.keys(DATA.scores)])];

function valuesOf(run, name) {
  const values = run.values ? run.values.values : {};
  return values[name] || (name === "output_threshold" ? values.tau : undefined) || null;
}

// The x-axis of the curves: updates, or minutes of training if all logs contain them.
let curvesOver = "updates";

function curves() {
  const runs = RUNS.filter((run) => run.values);
  if (!runs.length) return h("p", { class: "hint" }, "No validations were logged.");
  const missing = runs.filter((run) => !valuesOf(run, "output_threshold") && run.outputs && run.outputs.threshold !== null);
  const timed = runs.every((run) => run.values.seconds);
  const body = h("div");
  const draw = () => body.replaceChildren(...curveFigures(runs, timed && curvesOver === "time"));
  draw();
  return h("section", null, h("h2", null, "Scores and outputs during training"), runLegend(),
    timed ? h("div", { class: "controls" }, segments("X-axis", [["updates", "updates"], ["time", "time"]], curvesOver, (value) => {
      curvesOver = value;
      draw();
    })) : null,
    missing.length ? h("p", { class: "hint" }, `Thresholds are missing for ${missing.map((run) => run.name).join(", ")}: `
      + "they were not logged during training.") : null,
    body);
}

function curveFigures(all, overTime) {
  const constants = [];
  const figures = CURVES.map((key) => {
    const runs = all.filter((run) => (valuesOf(run, key) || []).some((value) => value !== null));
    if (!runs.length) return null;
    const lines = runs.map((run) => ({ name: run.name, values: valuesOf(run, key), colour: runColour(run),
      steps: overTime ? run.values.seconds.map((seconds) => seconds / 60) : run.values.steps }));
    const values = lines.flatMap((line) => line.values).filter((value) => value !== null);
    if (values.every((value) => value === values[0])) {
      constants.push(`${scoreTitle(key)}: ${label(values[0])} at every validation.`);
      return null;
    }
    const [low, high] = padded(...bounds(values));
    const xName = overTime ? "minutes of training" : "update";
    return figure(scoreTitle(key), lineChart(null, lines, { xName, left: 52, low, high }));
  }).filter(Boolean);
  return [h("div", { class: "columns" }, figures), ...constants.map((text) => h("p", { class: "hint" }, text))];
}

function runColour(run) {
  return RUNS.length > 1 ? shade(run.number, RUNS.length) : "var(--accent)";
}

function runLegend() {
  if (RUNS.length < 2) return null;
  return legend(RUNS.map((run) => [runColour(run), run.name]));
}

function history(run, record, title, range) {
  if (!record || !changes(record)) return null;
  const kinds = KINDS.filter((kind) => record.values[kind]);
  const all = kinds.flatMap((kind) => record.values[kind].flat(2));
  const high = Math.max(range.high, bounds(all)[1]);
  return h("section", null, h("h3", null, `${title} of each head`),
    h("div", { class: "columns" }, kinds.map((kind) => {
      const layers = record.values[kind][0].length;
      const lines = record.values[kind][0].flatMap((heads, layer) => heads.map((_, head) => ({
        name: `layer ${layer + 1} head ${head + 1}`, colour: shade(layer, layers),
        values: record.values[kind].map((event) => event[layer][head]),
      })));
      return figure(titleOf(run, `${title.toLowerCase()}, ${kind}`), lineChart(record.steps, lines, {
        low: range.low, high, xName: "update", yName: title.toLowerCase() }), { legend: layerLegend(layers) });
    })));
}

function layerLegend(layers) {
  if (layers < 2) return null;
  return legend(Array.from({ length: layers }, (_, layer) => [shade(layer, layers), `layer ${layer + 1}`]));
}

function countIn(values, low, high, bins) {
  const counts = Array(bins).fill(0);
  for (const value of values) counts[clamp(Math.floor(((value - low) / (high - low)) * bins), 0, bins - 1)] += 1;
  return counts;
}

function histograms(run) {
  const known = run.heads.filter((head) => head.alpha !== null);
  if (known.every((head) => head.alpha === known[0].alpha)) return null;
  const high = Math.max(2, ...known.map((head) => head.alpha));
  const edges = Array.from({ length: 21 }, (_, i) => 1 + (i / 20) * (high - 1));
  return h("section", null, h("h3", null, "Alphas of the analysed model"),
    h("div", { class: "columns" }, kindsOf(run).filter((kind) => known.some((head) => head.kind === kind)).map((kind) => {
      const alphas = known.filter((head) => head.kind === kind).map((head) => head.alpha);
      return figure(titleOf(run, `alphas, ${kind}`), barChart(edges, countIn(alphas, 1, high, 20), { xName: "alpha",
        yName: "heads", colour: `var(--${kind})`, height: 160 }), { note: `mean ${plain(mean(alphas))}` });
    })));
}

// Show densities and diversity by layer, for all runs.
function spread() {
  const dense = (run) => run.heads.every((head) => head.density === 1);
  const rows = RUNS.filter((run) => !dense(run)).flatMap((run) => kindsOf(run).map((kind) => [run, kind]));
  const title = (run, kind, what) => titleOf(run, `${what}, ${kind}`);
  const layered = rows.filter(([run, kind]) => run.heads.filter((head) => head.kind === kind).length > 1);
  const diverse = RUNS.filter((run) => run.diversity.some((layer) => layer.divergence > 0));
  return h("section", null, h("h2", null, "On the analysed examples"),
    RUNS.filter(dense).map((run) => h("p", { class: "hint" }, `Every head${RUNS.length > 1 ? ` of ${run.name}` : ""} attends `
      + "to every key of every example: all densities are 100 %.")),
    rows.length ? h("h3", null, "Densities of heads and examples") : null,
    h("div", { class: "columns" }, rows.map(([run, kind]) => {
      const heads = run.heads.filter((head) => head.kind === kind);
      const counts = heads[0].histogram.map((_, i) => heads.reduce((sum, head) => sum + head.histogram[i], 0));
      const edges = counts.map((_, i) => i / counts.length).concat(1);
      return figure(title(run, kind, "densities"), barChart(edges, counts, { xName: "share of attended keys",
        yName: "heads × examples", left: 56, colour: `var(--${kind})`, height: 160 }));
    })),
    layered.length ? h("h3", null, "Density of each layer’s heads, sorted") : null,
    h("div", { class: "columns" }, layered.map(([run, kind]) => figure(title(run, kind, "density by layer"),
      densityByLayer(run, kind)))),
    diverse.length ? h("h3", null, "Diversity of each layer’s heads: how much they differ (Jensen–Shannon), from 0 to 1") : null,
    h("div", { class: "columns" }, diverse.map((run) => figure(titleOf(run, "diversity"),
      diversityByLayer(run), { legend: legend(kindsOf(run).map((kind) => [`var(--${kind})`, KIND_NAMES[kind]])) }))));
}

function densityByLayer(run, kind) {
  const layers = layersOf(run, kind);
  const last = Math.max(...layers.map((layer) => layer.layer + 1));
  const chart = axes({ x: [0.5, last + 0.5], y: [0, 1], xName: "layer", yName: "density", xTicks: last, height: 180 });
  layers.forEach((layer) => {
    const heads = run.heads.filter((head) => head.kind === kind && head.layer === layer.layer)
      .sort((one, other) => one.density - other.density);
    const step = ((chart.toX(2) - chart.toX(1)) * 0.8) / heads.length;
    heads.forEach((head, j) => {
      const x = chart.toX(layer.layer + 0.6) + j * step;
      chart.svg.append(s("rect", { x, y: chart.toY(head.density), width: Math.max(step - 1, 1),
        height: chart.toY(0) - chart.toY(head.density), style: { fill: `var(--${kind})` } },
      s("title", null, `${head.name}: ${percent(head.density)}`)));
    });
  });
  return chart.svg;
}

function diversityByLayer(run) {
  const layers = Math.max(...run.layers.map((layer) => layer.layer + 1));
  const high = Math.max(...run.diversity.map((layer) => layer.divergence ?? 0), 0.1);
  const chart = axes({ x: [0.8, layers + 0.2], y: [0, Math.min(1, high * 1.1)], xName: "layer", yName: "divergence",
    xTicks: layers, height: 180 });
  for (const kind of kindsOf(run)) {
    const points = run.diversity.filter((layer) => layer.kind === kind && layer.divergence !== null);
    const place = (layer) => [chart.toX(layer.layer + 1), chart.toY(layer.divergence)];
    chart.svg.append(s("polyline", { class: "line", points: points.map((p) => place(p).join(",")).join(" "),
      style: { stroke: `var(--${kind})` } }));
    for (const point of points) {
      const [x, y] = place(point);
      chart.svg.append(s("circle", { cx: x, cy: y, r: 3, style: { fill: `var(--${kind})` } },
        s("title", null, `${kind} layer ${point.layer + 1}: ${plain(point.divergence, 3)}`)));
    }
  }
  return chart.svg;
}
