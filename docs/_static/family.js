"use strict";
// Draw the figure of "From softmax to sparsemax": sliders set the scores and alpha, bars show the probabilities.
(() => {
  const LABELS = ["a", "b", "c", "d", "e"];
  const START = [2, 1.4, 1, 0.2, -1];

  function tsallisExp(x, eps) {
    return x <= 0 ? 0 : Math.pow(x, 1 / eps);
  }

  // Compute entmax by bisection of the threshold tau: p_i = [(alpha - 1) z_i - tau]_+^(1 / (alpha - 1)), with sum 1.
  function entmax(scores, alpha) {
    const eps = alpha - 1;
    const top = Math.max(...scores);
    if (eps < 1e-6) {
      const powers = scores.map((z) => Math.exp(z - top));
      const sum = powers.reduce((a, b) => a + b, 0);
      return powers.map((p) => p / sum);
    }
    const shifted = scores.map((z) => eps * (z - top));
    let [low, high] = [-1, 0];
    for (let step = 0; step < 100; step++) {
      const tau = (low + high) / 2;
      const sum = shifted.reduce((a, z) => a + tsallisExp(z - tau, eps), 0);
      if (sum >= 1) low = tau;
      else high = tau;
    }
    return shifted.map((z) => tsallisExp(z - low, eps));
  }

  function slider(parent, name, { min, max, value }, onInput) {
    const label = document.createElement("label");
    const text = document.createElement("span");
    const input = document.createElement("input");
    Object.assign(input, { type: "range", min, max, step: 0.01, value });
    input.dataset.name = name;
    const show = () => (text.textContent = `${name} ${Number(input.value).toFixed(2)}`);
    input.addEventListener("input", () => {
      show();
      onInput();
    });
    show();
    label.append(text, input);
    parent.append(label);
    return input;
  }

  function build(root) {
    root.textContent = "";
    const alpha = slider(root, "alpha", { min: 1, max: 2, value: 1.5 }, draw);
    const rows = LABELS.map((name, i) => {
      const row = document.createElement("div");
      row.className = "family-row";
      root.append(row);
      const score = slider(row, name, { min: -3, max: 3, value: START[i] }, draw);
      const track = document.createElement("span");
      track.className = "family-track";
      const bar = document.createElement("span");
      bar.className = "family-bar";
      track.append(bar);
      const value = document.createElement("output");
      row.append(track, value);
      return { score, bar, value };
    });
    const summary = document.createElement("p");
    summary.setAttribute("role", "status");
    root.append(summary);

    function draw() {
      const probs = entmax(rows.map((row) => Number(row.score.value)), Number(alpha.value));
      rows.forEach((row, i) => {
        row.bar.style.width = `${100 * probs[i]}%`;
        row.value.textContent = probs[i] === 0 ? "0" : probs[i].toFixed(4);
      });
      const support = probs.filter((p) => p > 0).length;
      summary.textContent = `${support} of ${probs.length} probabilities are above zero.`;
    }
    draw();
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".family").forEach(build));
})();
