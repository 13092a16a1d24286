"""Serve the files of the page, including those shared with reports."""

from __future__ import annotations

from functools import cache
from importlib import resources

# Content type and files by URL path.
FILES: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "/": ("text/html", (("tsallis.toolkit.serve", "index.html"),)),
    "/style.css": ("text/css", (("tsallis.report", "page.css"), ("tsallis.toolkit.serve", "serve.css"))),
    "/program.js": (
        "text/javascript",
        (
            ("tsallis.toolkit.serve", "before.js"),
            *(("tsallis.report", f"{name}.js") for name in ("dom", "charts", "tree", "theme")),
            *(("tsallis.toolkit.serve", f"{name}.js") for name in ("api", "outputs", "completion", "main")),
        ),
    ),
}


@cache
def page_file(path: str) -> tuple[str, str]:
    """Return the text for a URL path of `FILES`, and its content type."""
    kind, names = FILES[path]
    texts = [resources.files(package).joinpath(f"static/{name}").read_text(encoding="utf-8") for package, name in names]
    text = "\n".join(texts)
    if kind == "text/javascript":
        text = f"'use strict';\n(() => {{\n{text}\n}})();\n"
    return text, kind
