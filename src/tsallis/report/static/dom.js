// Create the elements of the page, and figures that can be saved.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function say(text) {
  document.getElementById("say").textContent = text;
}

function faultText(error) {
  console.error(error);
  return h("p", { class: "hint", role: "alert" }, String(error));
}

// Return a function that shows an error in a place, which would otherwise stay empty.
function faultIn(place) {
  return (error) => place.replaceChildren(faultText(error));
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

// Format numbers for reading.

function plain(value, digits = 2) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

function percent(value, digits = 0) {
  if (value === null || value === undefined) return "–";
  const text = (100 * value).toFixed(digits);
  const step = 10 ** -digits;
  if (value > 0 && Number(text) === 0) return `<${step.toFixed(digits)} %`;
  if (value < 1 && Number(text) >= 100) return `>${(100 - step).toFixed(digits)} %`;
  return `${text} %`;
}

function weight(value) {
  if (value === 0) return "0";
  return value < 1.5 / DATA.units ? "<.002" : value.toFixed(3).replace(/^0/, "");
}

// Format a probability: "0" means exactly zero. `log` is its logarithm, for probabilities that underflow to 0.
function probability(value, log = Math.log(value)) {
  if (value === null) return "–";
  if (value === 0) return Number.isFinite(log) && log !== null ? "<.001" : "0";
  if (value >= 0.9995) return value > 1.0005 ? value.toFixed(3) : value >= 0.999995 ? "1" : ">.999";
  return value < 0.001 ? "<.001" : value.toFixed(3).replace(/^0/, "");
}

function whole(value) {
  return value.toLocaleString("en");
}

function capital(text) {
  return text === "" ? "" : text[0].toUpperCase() + text.slice(1);
}

// Return the title of a run's figure. With several runs it starts with the run's name.
function titleOf(run, text) {
  return RUNS.length > 1 ? `${run.name}: ${text}` : capital(text);
}

// Show pieces of a sentence without the word-start mark ▁ and the tag marks. Invisible characters are shown by name.

const TAG = /^<(?:tag|lang):(.+)>$/;

function spell(piece) {
  const text = piece.startsWith("▁") ? piece.slice(1) : piece.replace(TAG, "$1");
  if (text === "") return "▁";
  if (/^[\t\n\r]+$/.test(text)) return text.replace(/./gs, (letter) => ({ "\t": "⇥", "\n": "⏎", "\r": "␍" })[letter]);
  const name = /^\p{Default_Ignorable_Code_Point}+$/u.test(text) ? text.replace(/./gsu, codePoint) : visible(text);
  return name.trim() === "" ? "␣" : name;
}

function codePoint(letter) {
  return `U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

// Show control characters and zero-width marks, such as those for writing direction, by their code points.
function visible(text) {
  return text.replace(/[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]/gu, codePoint);
}

function sentenceText(pieces) {
  const words = pieces.some((piece) => piece.startsWith("▁"));
  const tags = pieces.filter((piece) => TAG.test(piece)).map(spell).join(" ");
  return pieces.filter((piece) => piece !== "<s>" && piece !== "</s>" && !TAG.test(piece))
    .map((piece) => (/^(\[.+\]|<.+>)$/.test(piece) ? ` ${piece} ` // a special token, such as [SEP]
      : words ? piece.replace("▁", " ") : [...piece].length > 1 ? ` ${piece} ` : piece)).join("").replace(/ +/g, " ").trim() + (tags && ` (${tags})`);
}

function short(text, longest) {
  const letters = [...text];
  return letters.length > longest ? letters.slice(0, longest - 1).join("") + "…" : text;
}

// Figures.

let figureNumber = 0;

function figure(title, drawing, options = {}) {
  const number = `figure-${(figureNumber += 1)}`;
  drawing.setAttribute("aria-labelledby", number);
  if (!drawing.hasAttribute("role")) drawing.setAttribute("role", "img");
  const save = h("button", {
    type: "button", class: "save", "aria-label": `Save as SVG: ${title}`, onclick: () => saveSvg(drawing, title),
  }, "SVG");
  return h("figure", { class: options.class },
    h("figcaption", null, h("span", { id: number }, options.short
      ? [options.short, h("span", { class: "unseen" }, title.slice(options.short.length))] : title), options.note ? h("small", null, options.note) : null, save),
    options.legend || null,
    h("div", { class: "scroll", tabindex: options.scroll ? "0" : null, role: options.scroll ? "group" : null,
      "aria-labelledby": options.scroll ? number : null }, drawing),
    options.after || null);
}

// Return the legend of colours, in a line above a figure.
function legend(colours) {
  return h("p", { class: "legend" }, colours.map(([colour, name]) => h("span", null,
    h("i", { class: "swatch", style: { background: colour } }), ` ${name}`)));
}

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "opacity",
  "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline"];

function saveSvg(drawing, title) {
  const copy = drawing.cloneNode(true);
  const originals = [drawing, ...drawing.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of STYLES) node.setAttribute(name, style.getPropertyValue(name));
    node.removeAttribute("class");
    node.removeAttribute("style");
  });
  copy.querySelector(":scope > title")?.remove(); // the tooltip, if there is one
  copy.setAttribute("xmlns", SVG);
  const box = drawing.viewBox.baseVal;
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  const paper = s("rect", { x: box.x, y: box.y, width: box.width, height: box.height,
    fill: getComputedStyle(document.body).backgroundColor });
  copy.prepend(paper);
  // XML allows neither control characters nor lone surrogates.
  const text = new XMLSerializer().serializeToString(copy)
    .replace(/[^\t\n\r\u{20}-\u{d7ff}\u{e000}-\u{fffd}\u{10000}-\u{10ffff}]/gu, "\ufffd");
  const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const name = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  h("a", { href: url, download: `${name}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
  say(`Saved ${name}.svg`);
}

// Tables.

// Create a table whose rows start with a header cell.
function table(name, columns, rows, kind = null, caption = "unseen") {
  return h("table", { class: kind }, h("caption", { class: caption }, name),
    h("thead", null, h("tr", null, columns.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", null, rows.map(([first, ...cells]) => h("tr", null, h("th", { scope: "row", dir: "auto" }, first),
      cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : h("td", null, cell)))))));
}

function numeric(text) {
  return h("td", { class: "number" }, text);
}

// Put wide content into a frame that scrolls.
function scroller(name, content) {
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": name }, content);
}

// Return details that create their table when they are first opened.
function tableDetails(summary, make) {
  const details = h("details", null, h("summary", null, summary));
  details.addEventListener("toggle", () => {
    if (details.open && !details.querySelector("table")) details.append(make());
  });
  return details;
}

// Controls.

function choice(label, options, value, change) {
  const select = h("select", { onchange: () => change(select.value) },
    options.map((option) => (option.group
      ? h("optgroup", { label: option.group }, option.options.map(optionOf))
      : optionOf(option))));
  select.value = value;
  return h("label", { class: "choice" }, h("span", null, label), select);
}

function optionOf([value, text]) {
  return h("option", { value }, text);
}

function segments(label, options, value, change) {
  const name = `segments-${(figureNumber += 1)}`;
  return h("fieldset", { class: "segments" }, h("legend", null, label),
    options.map(([key, text]) => h("label", null,
      h("input", { type: "radio", name, checked: key === value, onchange: () => change(key) }), h("span", null, text))));
}
