// Complete the typed text: a text field, with the possible continuations below it.

function completionField(noun, ask_, chosen) {
  const list = h("ul", { id: "choices", role: "listbox", "aria-label": "Possible continuations" });
  const state = h("p", { class: "hint", "aria-live": "polite" });
  let choices = [];
  let active = -1;
  const field = h("input", {
    id: "typed", type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false", dir: "auto", role: "combobox",
    "aria-autocomplete": "list", "aria-controls": "choices", "aria-expanded": "false",
  });
  const mark = () => {
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
    if (active >= 0) {
      field.setAttribute("aria-activedescendant", `choice-${active}`);
      list.children[active].scrollIntoView({ block: "nearest" });
    } else field.removeAttribute("aria-activedescendant");
  };
  const take = (i) => {
    field.value = choices[i].text;
    field.focus();
    if (choices[i].ends) chosen(field.value);
    update();
  };
  const draw = (answer) => {
    choices = answer.next;
    active = -1;
    field.setAttribute("aria-expanded", String(choices.length > 0));
    const partly = answer.missing !== 0; // not all continuations were searched
    state.textContent = !answer.possible ? "Impossible: no output of the model starts with this text."
      : !answer.support ? "It is not known which continuations are possible."
      : `${partly ? "At least " : ""}${whole(answer.support)} ${answer.support === 1 ? "continuation is" : "continuations are"} possible`
        + `${choices.length < answer.support ? `, the ${choices.length} most probable are shown` : ""}.`;
    list.replaceChildren(...choices.map((choice, i) => h("li", {
      id: `choice-${i}`, role: "option", "aria-selected": "false", onpointerdown: (event) => event.preventDefault(), onclick: () => take(i),
    }, h("span", { class: "words", dir: "auto" }, outputText(choice.text), choice.ends ? h("small", null, " end") : " …"),
    h("span", { class: "prob" }, probability(choice.prob)),
    h("span", { class: "share", "aria-hidden": "true", style: { width: `${100 * Math.min(choice.prob, 1)}%` } }))));
    mark();
    return [];
  };
  async function update() {
    const fault = h("div");
    await show(fault, ask_(field.value), draw);
    if (fault.textContent) {
      reset();
      state.textContent = fault.textContent;
    }
  }
  function reset() {
    choices = [];
    active = -1;
    field.setAttribute("aria-expanded", "false");
    state.textContent = "";
    list.replaceChildren();
    mark();
  }
  field.addEventListener("input", () => {
    active = -1;
    mark();
    update();
  });
  field.addEventListener("keydown", (event) => {
    if (event.isComposing || event.keyCode === 229) return; // an input method uses the key
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!choices.length) return;
      event.preventDefault();
      const count = choices.length;
      active = event.key === "ArrowDown" ? (active + 1) % count : (active <= 0 ? count : active) - 1;
      mark();
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (active >= 0) take(active);
      else chosen(field.value);
    } else if (event.key === "Escape") {
      active = -1;
      mark();
    }
  });
  return {
    update,
    clear() { field.value = ""; },
    reset,
    node: h("div", { class: "completion" },
      h("label", { for: "typed" }, `Start of the ${noun}`), field,
      h("p", { class: "hint" }, "Use the arrow keys and Enter to choose a continuation. "
        + "Press Enter without choosing to see the steps of your text."), state, list),
  };
}
