// Show the densities of continuous attention over words, images and time, with supports.

let densityExample = 0;

function viewDensities() {
  const runs = DATA.densities;
  const place = h("div", { class: "density-examples" });
  const draw = () => place.replaceChildren(...runs.map((run) => exampleFigure(run, run.shown[densityExample])));
  draw();
  const what = runs[0].shown[0].grid ? "regions" : "words";
  return [
    h("h1", { tabindex: "-1" }, "Densities"),
    h("p", { class: "lead" }, `This tab shows where the model looks in ${whole(runs[0].examples)} examples of ${runs[0].corpus}. `
      + (what === "words" ? "Each text, short or long, spans the line from 0 to 1." : "Each image is the unit square.")
      + " A density is exactly zero outside its support."),
    h("section", null, h("h2", null, runs.length > 1 ? "Runs" : "Run"), densityFacts(runs, what)),
    h("section", null, h("h2", null, "Examples"),
      h("div", { class: "controls" }, choice("Example", runs[0].shown.map((example, i) => [String(i),
        `${example.index + 1}: ${short(example.title, 60)}`]), String(densityExample), (value) => {
        densityExample = Number(value);
        draw();
      })), place),
    h("section", null, h("h2", null, "Over all examples"), h("div", { class: "columns" }, runs.map(densityHistograms))),
  ];
}

function densityFacts(runs, what) {
  const rows = [
    ["Task", (run) => run.task],
    ["Attention", (run) => run.arguments.attention],
    ["Attention function", (run) => String(run.arguments.transform ?? "")],
    ["Density", (run) => (run.size === null ? null : String(run.arguments.density ?? "with the alpha of the attention function"))],
    ["Accuracy", (run) => (run.accuracy === null ? null : percent(run.accuracy, 1))],
    [`Share of ${what} with a weight of exactly zero`, (run) => (run.zeros === null ? null : percent(run.zeros, 1))],
    [`Share of ${what} with no mass under the density`, (run) => (run.zero_masses === null ? null
      : percent(run.zero_masses, 1))],
    [what === "words" ? "Share of the text in the support" : "Share of the image in the support", (run) => (run.size === null
      ? null : percent(run.size, 1))],
  ];
  return facts(runs, rows);
}

function densityHistograms(run) {
  const name = DATA.densities.length > 1 ? `${run.name}: ` : "";
  const axis = run.centres.length > 1 ? ["across the image, from the left", "down the image, from the top"]
    : ["position in the text, 0 is its start"];
  const bars = (title, histogram, xName) => figure(name ? name + title : capital(title), barChart(histogram.edges, histogram.counts,
    { xName, yName: "examples", left: 56, height: 170 }));
  return [...run.centres.map((histogram, i) => bars("centres of densities", histogram, axis[i])),
    run.sizes ? bars("sizes of supports", run.sizes, "share covered by the support") : null];
}

function exampleFigure(run, example) {
  const right = example.gold === "" ? "" : example.gold === example.answer ? ", correct" : `, correct: ${example.gold}`;
  const name = DATA.densities.length > 1 ? `${run.name}: ` : "";
  const title = `${name}${example.answer || "no answer"} (${probability(example.prob)})${right}`;
  const drawing = example.grid ? imageDrawing(example) : wordsDrawing(example);
  return h("div", { class: "density-example" },
    h("p", { class: "text", dir: "auto" }, example.title),
    figure(title, drawing, { scroll: true, note: supportNote(example), legend: densityLegend(example) }),
    example.grid ? null : massTable(example));
}

function supportNote(example) {
  const { density } = example;
  if (!density) return "discrete attention";
  if (!density.bounded) return `the density is unbounded: no ${example.grid ? "region" : "word"} is excluded`;
  return `support: ${percent(density.size, 1)} of the ${example.grid ? "image" : "text"}`;
}

function densityLegend(example) {
  const { density } = example;
  return h("p", { class: "legend" },
    example.weights.length ? h("span", null, h("i", { class: "swatch bars" }), " discrete weights") : null,
    density ? h("span", null, h("i", { class: "swatch curve" }), " density") : null,
    density && density.bounded ? h("span", null, h("i", { class: "swatch support" }), " support") : null,
    density && !density.bounded && example.grid ? h("span", null, "dashed: one and two standard deviations") : null);
}

function wordsDrawing(example) {
  const count = example.words.length;
  const { density } = example;
  const step = Math.max(16, Math.min(60, 720 / count));
  const [left, top, height] = [40, 10, 150];
  const curve = density ? density.curve.map(([t, p]) => [t, p / count]) : [];
  const high = Math.max(...example.weights, ...curve.map(([, p]) => p), 1e-9);
  const toX = (t) => left + t * count * step;
  const toY = (value) => top + height - (value / high) * (height - 6);
  const words = example.words.map((word) => wordLabel(word));
  const below = Math.max(...words.map((word) => measureText(word))) + 22;
  const width = left + count * step + 8;
  const svg = s("svg", { viewBox: `0 0 ${width} ${top + height + below}`, width, height: top + height + below });
  for (const mark of ticks(0, high, 3)) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - 8, y1: toY(mark), y2: toY(mark) }),
      s("text", { class: "tick", x: left - 5, y: toY(mark) + 3.5, "text-anchor": "end" }, label(mark)));
  }
  example.weights.forEach((value, i) => {
    if (value === 0) return;
    svg.append(s("rect", { class: "bars", x: toX(i / count) + 1, y: toY(value), width: step - 2, height: toY(0) - toY(value) },
      s("title", null, `${spell(example.words[i])}: ${weight(value)}`)));
  });
  if (curve.length) {
    svg.append(s("polyline", { class: "line curve", points: curve.map(([t, p]) => `${toX(t).toFixed(1)},${toY(p).toFixed(1)}`)
      .join(" ") }));
  }
  svg.append(s("line", { class: "axis", x1: left, x2: width - 8, y1: toY(0), y2: toY(0) }));
  for (const [from, to] of density ? density.support : []) {
    svg.append(s("line", { class: "support", x1: toX(clamp(from, 0, 1)), x2: toX(clamp(to, 0, 1)), y1: toY(0) + 5,
      y2: toY(0) + 5 }, s("title", null, `support from ${plain(from, 3)} to ${plain(to, 3)}`)));
  }
  words.forEach((word, i) => svg.append(s("text", { class: "word", "text-anchor": "end",
    transform: `translate(${toX((i + 0.5) / count) + 4} ${toY(0) + 14}) rotate(-90)` }, word)));
  return svg;
}

function imageDrawing(example) {
  const [rows, columns] = example.grid;
  const { density } = example;
  const [width, height] = [420, Math.max(120, Math.round((420 * rows) / columns))];
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "picture" });
  svg.append(example.image ? s("image", { href: example.image, width, height, preserveAspectRatio: "none" })
    : s("rect", { class: "field", width, height }));
  const high = Math.max(...example.weights, 1e-9);
  example.weights.forEach((value, i) => {
    const [row, column] = [Math.floor(i / columns), i % columns];
    svg.append(s("rect", { class: value === 0 ? "region empty" : "region", x: (column * width) / columns,
      y: (row * height) / rows, width: width / columns, height: height / rows,
      style: { fillOpacity: value === 0 ? 0 : 0.15 + 0.6 * (value / high) } },
    s("title", null, `row ${row + 1}, column ${column + 1}: weight ${weight(value)}`)));
  });
  for (const outline of density ? density.outlines : []) {
    svg.append(s("polygon", { class: density.bounded ? "outline" : "outline dashed",
      points: outline.map(([x, y]) => `${(x * width).toFixed(1)},${(y * height).toFixed(1)}`).join(" ") }));
  }
  if (density) svg.append(s("circle", { class: "centre", cx: density.mean[0] * width, cy: density.mean[1] * height, r: 4 },
    s("title", null, `centre ${plain(density.mean[0])}, ${plain(density.mean[1])}`)));
  return svg;
}

function massTable(example) {
  const columns = [["Weight", example.weights], ["Mass", example.masses]].filter(([, values]) => values.length);
  return tableDetails("As a table", () => table(example.title, ["Word", ...columns.map(([name]) => name)],
    example.words.map((word, i) => [spell(word), ...columns.map(([, values]) => numeric(weight(values[i])))]), "weights"));
}

// Draw one row per channel: lines show the supports of its densities, and dots their centres.
function viewSignals() {
  const channels = [...new Set(DATA.signals.map((one) => one.channel))];
  const heads = Math.max(...DATA.signals.map((one) => one.head)) + 1;
  const [row, left, width] = [10 + 7 * heads, 140, 640];
  const height = channels.length * row + 40;
  const toX = (t) => left + t * (width - left - 12);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", style: { maxWidth: `${width * 1.4}px` } });
  for (const mark of ticks(0, 1, 4)) {
    svg.append(s("line", { class: "grid", x1: toX(mark), x2: toX(mark), y1: 0, y2: height - 34 }),
      s("text", { class: "tick", x: toX(mark), y: height - 20, "text-anchor": "middle" }, label(mark)));
  }
  svg.append(s("text", { class: "name", x: (left + width) / 2, y: height - 4, "text-anchor": "middle" },
    "time, from 0 (start) to 1 (end)"));
  channels.forEach((channel, i) => {
    svg.append(s("text", { class: "word", x: left - 8, y: i * row + row / 2 + 4, "text-anchor": "end" }, short(channel, 18)));
    for (const one of DATA.signals.filter((signal) => signal.channel === channel)) {
      const y = i * row + 8 + 7 * one.head;
      const { mean: [centre], deviation: [spread], support, bounded } = one.density;
      const ends = bounded ? support : [[centre - 2 * spread, centre + 2 * spread]];
      for (const [from, to] of ends) {
        svg.append(s("line", { class: bounded ? "support" : "support dashed", x1: toX(clamp(from, 0, 1)),
          x2: toX(clamp(to, 0, 1)), y1: y, y2: y },
        s("title", null, `${channel}, head ${one.head + 1}: ${plain(from)} to ${plain(to)}`)));
      }
      svg.append(s("circle", { class: "centre", cx: toX(clamp(centre, 0, 1)), cy: y, r: 2.6 }));
    }
  });
  return [
    h("h1", { tabindex: "-1" }, "Time"),
    h("p", { class: "lead" }, "The densities of each channel over time. They are the same for all series. A dot marks a centre, and "
      + "a line a support. If a density is unbounded, a dashed line spans two standard deviations to each side."),
    figure("Densities over time", svg),
    scroller("Densities over time as a table", table("Densities over time", ["Channel", "Head", "Centre", "Deviation", "Support"],
      DATA.signals.map(({ channel, head, density }) => [channel, numeric(head + 1), numeric(plain(density.mean[0])),
        numeric(plain(density.deviation[0])), density.bounded
          ? density.support.map(([from, to]) => `${plain(from)} to ${plain(to)}`).join(", ") : "unbounded"]))),
  ];
}
