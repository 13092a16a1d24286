"""Sphinx: Markdown pages, docstrings, and mathematics as MathML, which browsers render without a network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

import tsallis

project = "tsallis"
author = "The tsallis developers"
version = release = tsallis.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
html_theme = "furo"
html_title = f"tsallis {version}"
html_math_renderer = "mathml"


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def plain_shapes(*arguments: Any) -> None:
    """The star of a shape such as [*batch, classes] starts no emphasis."""
    lines: list[str] = arguments[-1]
    lines[:] = [line.replace("[*", r"[\*") for line in lines]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", plain_shapes)
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
