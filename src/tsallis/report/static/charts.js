// Draw small figures: line charts, histograms, maps of heads, and the attention of one head.

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= raw * 0.999);
  const marks = [];
  for (let mark = Math.ceil(low / step - 1e-9) * step; mark <= high + step * 1e-6; mark += step) {
    marks.push(Math.abs(mark) < step * 1e-6 ? 0 : mark);
  }
  return marks;
}

function label(value) {
  const size = Math.abs(value);
  const [unit, letter] = size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  return `${+(value / unit).toPrecision(6)}${letter}`;
}

// Draw the axes of a chart; x and y are [low, high]. Return the drawing, and functions from values to coordinates.
function axes({ width = 340, height = 190, x, y, xName = "", yName = "", xTicks = 4, yTicks = 4, left = 44,
  xMarks = null }) {
  const [top, right, bottom] = [10, 10, 38];
  const toX = (value) => left + ((value - x[0]) / (x[1] - x[0] || 1)) * (width - left - right);
  const toY = (value) => height - bottom - ((value - y[0]) / (y[1] - y[0] || 1)) * (height - top - bottom);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", style: { maxWidth: `${width * 1.25}px` } });
  for (const mark of ticks(y[0], y[1], yTicks)) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: toY(mark), y2: toY(mark) }),
      s("text", { class: "tick", x: left - 6, y: toY(mark) + 3.5, "text-anchor": "end" }, label(mark)));
  }
  for (const mark of xMarks || ticks(x[0], x[1], xTicks)) {
    svg.append(s("text", { class: "tick", x: toX(mark), y: height - bottom + 15, "text-anchor": "middle" }, label(mark)));
  }
  svg.append(s("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  if (xName) svg.append(s("text", { class: "name", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" },
    xName));
  if (yName) svg.append(s("text", { class: "name", x: -(height - bottom + top) / 2, y: 11, transform: "rotate(-90)",
    "text-anchor": "middle" }, yName));
  return { svg, toX, toY, width, height, left, right, bottom, top };
}

// Return the minimum and the maximum. `Math.min(...values)` fails on long arrays: the number of arguments is limited.
function bounds(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

// Return bounds with some room around the values.
function padded(low, high) {
  const room = (high - low) * 0.08 || Math.abs(high) * 0.08 || 1;
  return [low - room, high + room];
}

function shade(index, count) {
  return `var(--shade-${count > 1 ? Math.round((7 * index) / (count - 1)) : 4})`;
}

// Draw lines [{name, values, colour, steps}] without their nulls. A line without `steps` uses the shared ones.
function lineChart(steps, lines, options) {
  const points = lines.map((line) => (line.steps || steps).map((step, i) => [step, line.values[i]])
    .filter(([, value]) => value !== null && value !== undefined));
  const [x, y] = [0, 1].map((axis) => bounds(points.flat().map((point) => point[axis])));
  const chart = axes({ ...options, x, y: [options.low ?? y[0], options.high ?? y[1]] });
  lines.forEach((line, i) => {
    const places = points[i].map(([step, value]) => [chart.toX(step), chart.toY(value)]);
    if (!places.length) return;
    const shape = places.length > 1
      ? s("polyline", { points: places.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "), class: "line",
        style: { stroke: line.colour } })
      : s("circle", { cx: places[0][0], cy: places[0][1], r: 2.5, style: { fill: line.colour } });
    shape.append(s("title", null, `${line.name}: ${plain(points[i][points[i].length - 1][1])}`));
    chart.svg.append(shape);
  });
  return chart.svg;
}

// Draw counts as bars between equally spaced edges.
function barChart(edges, counts, options) {
  const chart = axes({ ...options, x: [edges[0], edges[edges.length - 1]], y: [0, Math.max(...counts, 1)] });
  counts.forEach((count, i) => {
    if (!count) return;
    const [from, to] = [chart.toX(edges[i]), chart.toX(edges[i + 1])];
    chart.svg.append(s("rect", {
      x: from + 0.5, y: chart.toY(count), width: Math.max(to - from - 1, 0.5), height: chart.toY(0) - chart.toY(count),
      style: { fill: options.colour || "var(--accent)" },
    }, s("title", null, `${label(edges[i])} to ${label(edges[i + 1])}: ${whole(count)}`)));
  });
  return chart.svg;
}

// Return a value's share of the accent colour, from 0 to 1. A missing value has share 0.
function tone(measure, value, high) {
  if (value === null || value === undefined) return 0;
  const top = measure.high ?? high ?? 1;
  return clamp((value - measure.low) / (top - measure.low || 1), 0, 1);
}

// Draw the heads of a run, one block per kind, with one row per layer. Each head links to its card.
function headMap(run, measure) {
  const [size, gap, left, top] = [34, 44, 56, 38];
  const kinds = kindsOf(run);
  const blocks = kinds.map((kind) => layersOf(run, kind));
  const widths = blocks.map((layers, block) => Math.max(size * Math.max(...layers.map((layer) => layer.heads)),
    measureText(KIND_NAMES[kinds[block]])));  // a single head is narrower than the name above it
  const rows = [...new Set(run.layers.map((layer) => layer.layer))].sort((one, other) => one - other);
  const width = left + widths.reduce((sum, w) => sum + w, 0) + gap * (blocks.length - 1) + 6;
  const height = top + rows.length * size + 8;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "map", role: "group",
    style: { maxWidth: `${width * 1.15}px`, minWidth: `${Math.min(width, 420)}px` } });
  const high = Math.max(...run.heads.map((head) => measure.value(head) ?? 0), 1e-9);
  rows.forEach((number, row) => svg.append(s("text", { class: "tick", x: left - 8, y: top + (row + 0.5) * size + 4,
    "text-anchor": "end" }, `layer ${number + 1}`)));
  let x = left;
  kinds.forEach((kind, block) => {
    svg.append(s("text", { class: "kind", x, y: 14 }, KIND_NAMES[kind]));
    const most = Math.max(...blocks[block].map((layer) => layer.heads));
    for (let head = 0; head < most; head += 1) {
      svg.append(s("text", { class: "tick", x: x + (head + 0.5) * size - 1, y: top - 6, "text-anchor": "middle" },
        head + 1));
    }
    blocks[block].forEach((layer) => {
      const y = top + rows.indexOf(layer.layer) * size;
      for (let head = 0; head < layer.heads; head += 1) {
        svg.append(headCell(HEADS.get(`${run.number}/${kind}/${layer.layer}/${head}`), measure, high, x + head * size, y,
          size - 2));
      }
    });
    x += widths[block] + gap;
  });
  return svg;
}

function headCell(head, measure, high, x, y, size) {
  const share = tone(measure, measure.value(head), high);
  const text = `${head.name}: ${measure.name.toLowerCase()} ${measure.show(measure.value(head))}; ${roleOf(head)}`;
  return s("a", { href: `#head/${head.id}`, "aria-label": text, class: signShade(share) },
    s("title", null, text),
    s("rect", { class: "paper", x, y, width: size, height: size, rx: 3 }),
    s("rect", { class: "tone", x, y, width: size, height: size, rx: 3, style: { fillOpacity: share } }),
    signOf(head) ? s("text", { x: x + size / 2, y: y + size / 2 + 4.5, "text-anchor": "middle" }, signOf(head)) : null);
}

// Choose the colour of a sign that contrasts more with its cell. It changes at a share of 0.75 in the light theme, and
// at 0.62 in the dark theme.
function signShade(share) {
  return share > 0.75 ? "cell deep" : share > 0.62 ? "cell middling" : "cell";
}

function signOf(head) {
  if (head.role) return ROLE_LETTERS[head.role];
  return head.tendency ? `(${ROLE_LETTERS[head.tendency]})` : null;
}

function roleLegend(run) {
  const roles = Object.keys(DATA.roles)
    .filter((role) => run.heads.some((head) => head.role === role || head.tendency === role));
  if (!roles.length) return null;
  return h("p", { class: "legend" }, roles.map((role) => h("span", null, h("b", null, ROLE_LETTERS[role]), " ",
    DATA.roles[role].phrase)));
}

function scale(measure, heads) {
  const high = measure.high ?? Math.max(...heads.map((head) => measure.value(head) ?? 0));
  return h("p", { class: "scale" }, h("span", null, measure.show(measure.low)), h("span", { class: "ramp" }),
    h("span", null, measure.show(high)));
}

// Return the opacity of a weight. Even the smallest weight above zero is visible; zeros are not drawn.
function opacity(value) {
  return (0.14 + 0.86 * Math.sqrt(Math.min(value, 1))).toFixed(3);
}

const SHADES = 16; // a row has at most one path per shade, however many weights it has
const LONG = 100; // words per side; larger drawings have no gaps between cells and no lines (they would overlap)

// Group the weights of a row by shade. Each group is [weight of the shade, keys].
function byShade(cells) {
  const groups = Array.from({ length: SHADES }, () => []);
  for (const [key, value] of cells) groups[Math.round(Math.sqrt(Math.min(value, 1)) * (SHADES - 1))].push(key);
  return groups.map((keys, i) => [(i / (SHADES - 1)) ** 2, keys]).filter(([, keys]) => keys.length);
}

function isLong(weights) {
  return weights.queries * weights.keys > LONG * LONG;
}

// Return a path with a square per key. Without gaps, neighbouring squares become one rectangle.
function squares(keys, cell, gap) {
  const parts = [];
  for (let i = 0; i < keys.length; i += 1) {
    const first = keys[i];
    while (!gap && keys[i + 1] === keys[i] + 1) i += 1;
    const width = (keys[i] - first + 1) * cell - gap;
    parts.push(`M${first * cell + gap / 2} ${gap / 2}h${width}v${cell - gap}h${-width}z`);
  }
  return parts.join("");
}

// Describe what is under the pointer in the title of the drawing, which browsers show as a tooltip.
function tooltip(svg, textAt) {
  const title = s("title");
  svg.prepend(title);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const text = textAt((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
    if (title.textContent !== text) title.textContent = text;
  });
}

// Let the pointer and the arrow keys choose a query of a drawing; `chosen` returns the current query.
function chooseRows(drawing, count, chosen, choose) {
  drawing.setAttribute("tabindex", "0");
  drawing.addEventListener("pointerover", (event) => {
    const line = event.target.closest(".row");
    if (line && Number(line.dataset.query) !== chosen()) choose(Number(line.dataset.query));
  });
  drawing.addEventListener("pointerleave", () => choose(null));
  drawing.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    choose(clamp((chosen() ?? (move > 0 ? -1 : count)) + move, 0, count - 1));
  });
}

let pen = null;
const textWidths = new Map();

// Return the width of a text in figures. The default is the bold font of highlighted words.
function measureText(text, font = "600 12px") {
  if (!pen) {
    pen = document.createElement("canvas").getContext("2d");
    pen.family = getComputedStyle(document.body).fontFamily;
  }
  const name = `${font} ${text}`;
  if (!textWidths.has(name)) {
    pen.font = `${font} ${pen.family}`;
    textWidths.set(name, Math.ceil(pen.measureText(text).width));
  }
  return textWidths.get(name);
}

function widest(pieces) {
  return Math.max(20, ...pieces.map((piece) => measureText(wordLabel(piece))));
}

function wordLabel(piece) {
  return short(spell(piece), 14);
}

// Draw the weights of one head as cells: rows are queries, columns are keys. Exact zeros are blank.
function matrix(weights, queries, keys, selected) {
  const cell = keys.length > 40 || queries.length > 40 ? 13 : 17;
  const gap = isLong(weights) ? 0 : 1;
  const left = widest(queries) + 10;
  const top = widest(keys) + 8;
  const width = left + keys.length * cell + 4;
  const height = top + queries.length * cell + 4;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "matrix" });
  svg.append(s("rect", { class: "field", x: left, y: top, width: keys.length * cell, height: queries.length * cell }));
  keys.forEach((key, j) => svg.append(s("text", {
    class: "word", x: 0, y: 0, transform: `translate(${left + (j + 0.5) * cell + 3.5} ${top - 5}) rotate(-90)`,
  }, wordLabel(key))));
  queries.forEach((query, i) => {
    const row = s("g", { class: "row", "data-query": i });
    row.append(s("rect", { class: "band", x: 0, y: top + i * cell, width, height: cell }),
      s("text", { class: "word", x: left - 6, y: top + (i + 0.5) * cell + 3.8, "text-anchor": "end" }, wordLabel(query)));
    row.append(...byShade(weights.rows[i]).map(([value, list]) => s("path", { class: "tone", d: squares(list, cell, gap),
      transform: `translate(${left} ${top + i * cell})`, style: { fillOpacity: opacity(value) } })));
    svg.append(row);
  });
  tooltip(svg, (x, y) => {
    const [key, query] = [Math.floor((x - left) / cell), Math.floor((y - top) / cell)];
    const pair = (weights.rows[query] || []).find(([number]) => number === key);
    return pair ? `${spell(queries[query])} → ${spell(keys[key])}: ${weight(pair[1])}` : "";
  });
  select(svg, selected);
  return svg;
}

// Draw the same weights as lines from queries on the left to keys on the right.
function lines(weights, queries, keys, selected) {
  const [step, gap] = [19, 120];
  const left = widest(queries) + 8;
  const right = widest(keys) + 8;
  const width = left + gap + right;
  const height = Math.max(queries.length, keys.length) * step + 8;
  const middle = (i) => (i + 0.5) * step + 4;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "lines" });
  keys.forEach((key, j) => svg.append(s("text", { class: "word", "data-key": j, x: left + gap + 6, y: middle(j) + 4 },
    wordLabel(key))));
  queries.forEach((query, i) => {
    const row = s("g", { class: "row", "data-query": i });
    row.append(s("rect", { class: "band", x: 0, y: i * step + 4, width: left, height: step }),
      s("text", { class: "word", x: left - 6, y: middle(i) + 4, "text-anchor": "end" }, wordLabel(query)));
    const thread = (key) => `M${left} ${middle(i)}C${left + gap * 0.45} ${middle(i)} ${left + gap * 0.55} ${middle(key)} ${
      left + gap} ${middle(key)}`;
    row.append(...byShade(weights.rows[i]).map(([value, list]) => s("path", { class: "thread", d: list.map(thread).join(""),
      style: { strokeOpacity: opacity(value), strokeWidth: (0.7 + 2.6 * value).toFixed(2) } })));
    svg.append(row);
  });
  tooltip(svg, (x, y) => {
    const query = Math.floor((y - 4) / step);
    return x < left && weights.rows[query] ? describeRow(weights, queries, keys, query) : "";
  });
  select(svg, selected);
  return svg;
}

function linesOrMatrix(weights, queries, keys) {
  return (queries.length + keys.length > 48 ? matrix : lines)(weights, queries, keys, null);
}

// Highlight one query, or none.
function select(svg, query) {
  const row = query === null || query === undefined ? null : svg.querySelector(`.row[data-query="${query}"]`);
  for (const other of svg.querySelectorAll(".row.on")) if (other !== row) other.classList.remove("on");
  if (row) row.classList.add("on");
  svg.classList.toggle("chosen", row !== null);
}

// Return how many keys, from the first one, a query can attend to.
function visibleKeys({ keys, causal }, query) {
  return causal ? Math.min(query + 1, keys) : keys;
}

function describeRow(weights, queries, keys, query) {
  const cells = [...weights.rows[query]].sort((one, other) => other[1] - one[1]);
  const named = cells.slice(0, 6).map(([key, value]) => `${spell(keys[key])} ${weight(value)}`).join(", ");
  const rest = cells.length > 6 ? ` and ${cells.length - 6} more` : "";
  const count = visibleKeys(weights, query);
  return `${spell(queries[query])}: ${cells.length} of ${count} ${count === 1 ? "key" : "keys"}: ${named || "none"}${rest}`;
}
