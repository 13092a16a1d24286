// Send requests to this server. A new request cancels the pending one of its kind, and the server stops working on it.

const pending = new Map();

async function ask(kind, content) {
  if (pending.has(kind)) pending.get(kind).abort();
  const control = new AbortController();
  pending.set(kind, control);
  try {
    const response = await fetch(`api/${kind}`, content === undefined ? { signal: control.signal } : {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content),
      signal: control.signal,
    }).catch((error) => { throw error.name === "AbortError" ? error : new Error("The server does not respond"); });
    const answer = await response.json().catch((error) => {
      if (error.name === "AbortError") throw error;
      return null; // not JSON, for example the error page of a proxy
    });
    if (!response.ok || answer === null) {
      throw new Error((answer && answer.error) || `The server returned status ${response.status} without a message`);
    }
    return answer;
  } finally {
    if (pending.get(kind) === control) pending.delete(kind);
  }
}

// Cancel the pending requests of the given kinds.
function cancel(...kinds) {
  for (const kind of kinds) if (pending.has(kind)) pending.get(kind).abort();
}

// Show in `place` what `work` returns for the response, or the error.
// Return true on success, false after an error, and null if the request was cancelled.
async function show(place, request, work) {
  place.setAttribute("aria-busy", "true");
  let content;
  let success = false;
  try {
    content = work(await request);
    success = true;
  } catch (error) {
    if (error.name === "AbortError") return null;
    content = h("p", { class: "fault", role: "alert" }, `${error.message}.`);
  }
  place.removeAttribute("aria-busy");
  place.replaceChildren(...[content].flat(Infinity).filter(Boolean));
  return success;
}
