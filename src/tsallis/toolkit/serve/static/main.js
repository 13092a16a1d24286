// Build the page: a source, and everything that the selected run predicts for it.

const DELAY = 300; // milliseconds after the last key press
let timer = null; // of the next search
const MODES = [["beam", "Fast"], ["exact", "Proved best"], ["all", "Everything"], ["sample", "Random"]];
const MODE_NOTES = {
  beam: "Finds the most probable outputs and shows whether they are proved to be the best.",
  exact: "Finds the most probable outputs and proves that there are no better ones.",
  all: "Lists all outputs with a probability above zero, within the search limits.",
  sample: "Draws random outputs from the model’s distribution.",
};

function describeRun(run) {
  const parts = [`${capital(run.task)}, ${run.model} with ${whole(run.parameters)} parameters`,
    `${whole(run.symbols.target)} output symbols`, `checkpoint ${run.checkpoint} after ${whole(run.step)} updates`];
  const text = run.normalized ? "" : " Its output values do not sum to 1, so less can be proved.";
  return `${parts.join(", ")}.${text}`;
}

function field(name, column, change) {
  return h("label", { class: "field" }, h("span", null, capital(column)), h("input", {
    name, type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false", dir: "auto", oninput: change,
  }));
}

function numberField(label, value, most, change) {
  return h("label", { class: "choice" }, h("span", null, label), h("input", {
    type: "number", min: 1, max: most, value, class: "count", onchange: (event) => change(event.target),
  }));
}

// A language model can also start from an empty text.
function mayBeEmpty(run) {
  return run.task === "language";
}

function missingText(columns) {
  return `Please fill in ${columns.join(" and ")}`;
}

function runPage(run, limits) {
  // `query` is the source, with its language, of the outputs shown below. The fields may have changed since.
  const state = { mode: "beam", count: Math.min(5, limits.outputs), query: null, output: null, head: null };
  const [outputs, steps, weights] = [h("div"), h("div"), h("div")];
  const fields = run.columns.map((column, i) => field(`column-${i}`, column, () => changed()));
  const language = run.languages && run.languages.length > 1
    ? choice("Language", run.languages.map((name) => [name, name]), run.languages[0], () => changed()) : null;
  const note = h("p", { class: "hint" });

  const values = () => fields.map((label) => label.querySelector("input").value);
  const currentQuery = () => ({ source: values().join("\t"),
    language: language ? language.querySelector("select").value : null });
  const missingColumns = () => run.columns.filter((_, i) => !mayBeEmpty(run) && values()[i].trim() === "");
  const ofSource = (content) => ({ run: run.name, ...state.query, ...content });
  const completion = completionField(run.noun, (beginning) => (missingColumns().length
    ? Promise.reject(new Error(missingText(missingColumns())))
    : ask("suggest", { run: run.name, ...currentQuery(), typed: beginning })), (text) => {
    if (missingColumns().length) return;
    state.query = currentQuery();
    choose({ output: text });
  });

  async function search() {
    if (missingColumns().length) {
      clear();
      return;
    }
    const query = currentQuery();
    const counts = { beam: { n_best: state.count }, exact: { n_best: state.count }, all: {},
      sample: { num_samples: state.count } }[state.mode];
    const content = { run: run.name, sources: [query.source], language: query.language, mode: state.mode, ...counts };
    if (state.mode !== "sample") content.tree = true;
    const success = await show(outputs, ask("translate", content), (answer) => {
      state.query = query;
      state.output = null;
      return searchResult(answer.answers[0], choose);
    });
    if (success === false || (success && !state.output)) clearOutput();
  }

  function choose(output) {
    for (const section of ofOutput) section.hidden = false;
    state.output = output.tokens ? { tokens: output.tokens } : { output: output.output };
    show(steps, ask("steps", ofSource({ ...state.output, n_best: Math.min(6, limits.outputs) })), stepsOf);
    attend();
  }

  function attend() {
    if (!run.attention.length || !state.output) return;
    show(weights, ask("attention", ofSource({ ...state.output, heads: [state.head] })), attentionOf);
  }

  // Clear the steps and the attention: they belong to the output.
  function clearOutput() {
    cancel("steps", "attention");
    state.output = null;
    for (const section of ofOutput) section.hidden = true;
    for (const place of [steps, weights]) {
      place.removeAttribute("aria-busy");
      place.replaceChildren();
    }
  }

  function clear() {
    cancel("translate", "suggest");
    state.query = null;
    outputs.removeAttribute("aria-busy");
    outputs.replaceChildren(h("p", { class: "hint" }, `${missingText(missingColumns())}.`));
    completion.reset();
    clearOutput();
  }

  function refresh(delay) {
    clearTimeout(timer);
    timer = setTimeout(() => {
      search();
      if (!missingColumns().length) completion.update();
    }, delay);
  }
  function changed() {
    if (missingColumns().length) clear();
    else refresh(DELAY);
  }
  function setMode(mode) {
    state.mode = mode;
    note.textContent = MODE_NOTES[mode];
    search();
  }
  note.textContent = MODE_NOTES.beam;
  const heads = run.attention.flatMap((layer) => layer.alphas.map((alpha, i) => [`${layer.kind}.${layer.layer}.${i + 1}`,
    `${layer.kind} layer ${layer.layer} head ${i + 1}, alpha ${plain(alpha)}`]));
  state.head = heads.length ? (heads.find(([name]) => name.startsWith("cross.")) || heads[0])[0] : null;
  if (heads.length) {
    const last = run.attention.filter((layer) => layer.kind === "cross").pop();
    if (last) state.head = `cross.${last.layer}.1`;
  }

  const ofOutput = [h("section", { "aria-labelledby": "steps", hidden: true }, h("h2", { id: "steps" }, "Step by step"), steps),
    ...(heads.length ? [h("section", { "aria-labelledby": "attention", hidden: true }, h("div", { class: "head" },
      h("h2", { id: "attention" }, "Attention"), choice("Head", heads, state.head, (name) => {
        state.head = name;
        attend();
      })), weights)] : [])];

  return [
    h("h1", null, run.name),
    h("p", { class: "lead" }, describeRun(run)),
    h("form", { class: "source", onsubmit: (event) => {
      event.preventDefault();
      refresh(0);
    } },
    h("div", { class: "fields" }, fields, h("button", { type: "submit", class: "main" }, "Search")),
    run.examples.length ? h("p", { class: "examples-row" }, h("span", null, "Try "), run.examples.map((line) => h("button", {
      type: "button", class: "example-line", onclick: () => {
        line.split("\t").forEach((text, i) => { if (fields[i]) fields[i].querySelector("input").value = text; });
        completion.clear();
        refresh(0);
      } }, line.replace(/\t/g, " · ")))) : null,
    h("div", { class: "controls" }, segments("Search", MODES.map(([mode, name]) => [mode, [name, h("small", null, ` ${mode}`)]]), "beam", setMode),
      numberField("Outputs", state.count, limits.outputs, (input) => {
        state.count = clamp(Math.round(Number(input.value)) || 1, 1, limits.outputs);
        input.value = state.count;
        search();
      }), language),
    note),
    h("div", { class: "pair" },
      h("section", { "aria-labelledby": "outputs" }, h("h2", { id: "outputs" }, "Outputs"), outputs),
      h("section", { "aria-labelledby": "writing" }, h("h2", { id: "writing" }, "Write it yourself"), completion.node)),
    ...ofOutput,
  ];
}

async function start() {
  const view = document.getElementById("view");
  const open = (run, limits) => {
    clearTimeout(timer);
    cancel(...pending.keys());
    document.title = `${run.name} – tsallis`;
    view.replaceChildren(...runPage(run, limits).filter(Boolean));
    const empty = h("p", { class: "hint" }, `Type ${run.columns.join(" and ")} above`, run.examples.length ? ", or click an example." : ".",
      mayBeEmpty(run) ? " The field may be empty." : "");
    view.querySelector(".pair section div").replaceChildren(empty);
  };
  await show(view, ask("runs"), ({ runs, limits, version }) => {
    document.getElementById("note").textContent = `tsallis ${version}`;
    if (runs.length > 1) {
      document.getElementById("runs").append(choice("Run", runs.map((run, i) => [String(i), run.name]), "0",
        (i) => open(runs[Number(i)], limits)));
    }
    setTimeout(() => {
      open(runs[0], limits);
      view.querySelector("form input").focus();
    });
    return [];
  });
}

start();
