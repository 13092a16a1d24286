"""Sphinx: Markdown pages, docstrings, and mathematics as MathML, which browsers render without a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import stringify_annotation
from sphinx.writers.html5 import HTML5Translator

import tsallis

project = "tsallis"
author = copyright = "The tsallis developers"
version = release = tsallis.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
maximum_signature_line_length = 90
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["family.css", "tables.css"]
html_js_files = ["family.js", "access.js"]
html_title = f"tsallis {version}"
html_math_renderer = "mathml"


# LaTeX that latex2mathml does not know, in LaTeX that it does.
MACROS = {"arg": r"\operatorname{arg}"}

ARRAY_LIKE = stringify_annotation(ArrayLike, "smart")
logger = logging.getLogger(__name__)


def mathml(node: nodes.math | nodes.math_block, display: str) -> str:
    """Return a formula in MathML; a command that the converter does not know, and would show as text, is a warning."""
    formula = re.sub(r"\\([A-Za-z]+)", lambda command: MACROS.get(command[1], command[0]), node.astext())
    converted = convert(formula, display=display)
    if unknown := re.findall(r"<m[a-z]+>(\\\w+)", converted):
        logger.warning("latex2mathml does not know %s in %s", ", ".join(unknown), formula, location=node)
    return converted


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math" style="padding-block: 0.5em">{mathml(node, "block")}</div>')
    raise nodes.SkipNode


def plain_shapes(*arguments: Any) -> None:
    """Escape the star of a shape such as [*batch, classes], which would start emphasis."""
    lines: list[str] = arguments[-1]
    lines[:] = [line.replace("[*", r"[\*") for line in lines]


def short_types(*arguments: Any) -> tuple[str | None, str | None]:
    """Shorten the signature of settings and the name of numpy's arrays, and show factories of defaults as `...`."""
    *_, documented, _, signature, returns = arguments
    if hasattr(documented, "model_fields"):
        signature = "(**settings)"
    return signature and signature.replace(ARRAY_LIKE, "~numpy.typing.ArrayLike").replace("<factory>", "..."), returns


def keep_percent(app: Sphinx, page: nodes.document) -> None:
    """Keep a number and its percent sign on one line."""
    for text in list(page.findall(nodes.Text)):
        if " %" in text and not isinstance(text.parent, nodes.literal | nodes.literal_block):
            text.parent.replace(text, nodes.Text(re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text)))


def mend_links(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None) -> None:
    """Link source pages to the paths of the reference: viewcode keeps one path for all names of a module."""
    if page.startswith("_modules/tsallis/"):
        module, documented = page.removeprefix("_modules/").replace("/", "."), app.env.get_domain("py").objects

        def mend(link: re.Match[str]) -> str:
            name = link[1].removeprefix(module.rpartition(".")[0] + ".")
            return link[0] if link[1] in documented else f'#{module}.{name}"'

        context["body"] = re.sub(r'#(tsallis\.[\w.]+)"', mend, context["body"])


def generate(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the descriptions of all commands or settings in the place of their mark."""
    if match := re.search("^<!-- (commands|settings) -->$", source[0], re.M):
        sys.path.insert(0, str(Path(__file__).parent))
        import reference

        source[0] = source[0].replace(match[0], getattr(reference, match[1])())


def setup(app: Sphinx) -> None:
    app.connect("source-read", generate)
    app.connect("html-page-context", mend_links)
    app.connect("doctree-read", keep_percent)
    app.connect("autodoc-process-docstring", plain_shapes)
    app.connect("autodoc-process-signature", short_types)
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
