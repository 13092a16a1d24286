// Requests to this server: a new one of a kind cancels the one before it, and the server its work.

const pending = new Map();

async function ask(kind, content) {
  if (pending.has(kind)) pending.get(kind).abort();
  const control = new AbortController();
  pending.set(kind, control);
  try {
    const response = await fetch(`api/${kind}`, content === undefined ? { signal: control.signal } : {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content),
      signal: control.signal,
    }).catch((error) => { throw error.name === "AbortError" ? error : new Error("the server does not answer"); });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  } finally {
    if (pending.get(kind) === control) pending.delete(kind);
  }
}

// Show what `work` draws with an answer in `place`; errors are shown there, requests that were cancelled leave it alone.
async function show(place, request, work) {
  place.setAttribute("aria-busy", "true");
  let content;
  try {
    const answer = await request;
    content = () => work(answer);
  } catch (error) {
    if (error.name === "AbortError") return;
    content = () => h("p", { class: "fault", role: "alert" }, `${capital(error.message)}.`);
  }
  place.removeAttribute("aria-busy");
  place.replaceChildren(...[content()].flat(Infinity).filter(Boolean));
}
