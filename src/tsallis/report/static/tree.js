// Draw the outputs of a search as a tree, and list the possible symbols of a step.

// Describe a certificate within the limits of its search. With a length penalty, it compares scores.
function certificateText(kind, bound, { length_penalty: penalty, min_length: least } = {}) {
  const long = least ? ` of at least ${least} ${least === 1 ? "symbol" : "symbols"}` : "";
  const better = penalty ? `has a better score (log-probability / length^${penalty})` : "is more probable";
  const limit = clamp(Math.ceil(1000 * Math.exp(bound) - 1e-6) / 1000, 0.001, 1); // rounded up
  const [name, meaning] = {
    complete: ["Proved complete:", `these are all possible outputs${long}. Every other one has a probability of exactly zero.`],
    optimal: ["Proved optimal:", `no other output${long} ${better} than the best one.`],
    bounded: ["Bounded:", `a better output${long} may be missing.${
      penalty ? "" : ` The probability of each missing output is at most ${probability(limit)}.`}`],
    none: ["Nothing proved:", `a better output${long} may be missing.`],
  }[kind];
  return [h("strong", null, name), ` ${meaning}`];
}

// Return the displayed name of an output's symbol; the last symbol marks the end.
function symbolName(symbol) {
  return symbol === "</s>" ? "(end)" : symbol;
}

function shares(words, gold, support) {
  const total = Math.max(1, words.reduce((sum, [, prob]) => sum + prob, 0));
  const listed = words.slice(0, 6);
  return h("div", { class: "shares" },
    h("div", { class: "stack", "aria-hidden": "true" }, words.map(([word, prob]) => h("span", {
      class: word === gold ? "gold" : null, style: { width: `${(100 * prob) / total}%` } }))),
    h("div", { class: "words" }, listed.map(([word, prob, log]) => h("span",
      { class: word === gold ? "gold" : null }, `${spell(word)} `, h("small", null, probability(prob, log)))),
    support > listed.length ? h("small", null, `and ${whole(support - listed.length)} more`) : null));
}

// Draw a tree. Consecutive symbols without a branch share one label. Branches are sorted, the most probable on top.
function treeDrawing(edges) {
  const children = new Map();
  for (const [parent, node, symbol, logProb, total, end] of edges) {
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push({ node, symbol, logProb, total, end });
  }
  for (const list of children.values()) list.sort((one, other) => other.logProb - one.logProb);
  const [line, gap] = [34, 26];
  const svg = s("svg", { class: "tree" });
  let rows = 0;
  let right = 0;
  const draw = (edge, x, parent) => {
    const chain = [edge];
    let next = children.get(edge.node) || [];
    while (next.length === 1 && chain[chain.length - 1].end === false) {
      chain.push(next[0]);
      next = children.get(next[0].node) || [];
    }
    const last = chain[chain.length - 1];
    const branch = chain.length > 1 || last.end ? chain.map((e) => (e.end ? "" : spellTree(e.symbol))).join("")
      : spellTree(edge.symbol);
    const text = branch.trim() || (branch === "" && last.end ? "(end)" : "␣".repeat(Math.max(branch.length, 1)));
    const share = chain.reduce((sum, e) => sum + e.logProb, 0);
    const probText = probability(Math.exp(share), share);
    const width = Math.max(measureText(text, "13px"), measureText(probText, "11px")) + 10;
    const branches = last.end ? [] : next;
    let y;
    if (branches.length) {
      const ys = branches.map((child) => draw(child, x + gap + width, null));
      y = (ys[0] + ys[ys.length - 1]) / 2;
      for (const to of ys) svg.prepend(curve(x + gap + width - 4, y, x + 2 * gap + width - 4, to));
    } else {
      y = rows * line + 28;
      rows += 1;
      if (last.end) {
        svg.append(s("text", { class: "value", x: x + gap + width + 6, y: y + 4 }, `= ${probability(Math.exp(last.total), last.total)}`));
        right = Math.max(right, x + gap + width + 70);
      }
    }
    svg.append(s("text", { class: "word", x: x + gap, y: y + 4 }, text),
      s("text", { class: "prob", x: x + gap, y: y - 9 }, probText));
    right = Math.max(right, x + gap + width);
    return y;
  };
  const ys = (children.get(0) || []).map((edge) => draw(edge, 6, 0));
  const middle = (ys[0] + ys[ys.length - 1]) / 2;
  for (const y of ys) svg.prepend(curve(6, middle, 6 + gap - 4, y));
  svg.append(s("circle", { class: "root", cx: 6, cy: middle, r: 3 }));
  svg.setAttribute("viewBox", `0 0 ${right + 8} ${rows * line + 24}`);
  svg.setAttribute("width", right + 8);
  svg.setAttribute("height", rows * line + 24);
  return svg;
}

function spellTree(symbol) {
  return symbol.startsWith("▁") ? ` ${visible(symbol.slice(1))}` : visible(symbol);
}

function curve(x1, y1, x2, y2) {
  const middle = (x1 + x2) / 2;
  return s("path", { class: "branch", d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}
