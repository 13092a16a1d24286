"""The subpackages from the bottom up; those on one line do not import each other."""

from __future__ import annotations

LIBRARY = [
    {"errors", "symbols"},
    {"ops"},
    {"functional"},
    {"continuous", "distillation"},
    {"nn", "compat"},
    {"models", "distributions"},
    {"search"},
    {"analysis"},
    {"report", "huggingface"},
]
TOOLKIT = [
    {"analysis_options", "old_names", "optional_output"},
    {"data"},
    {"datasets"},
    {"evaluation", "config"},
    {"training"},
    {"run_analysis", "recipes"},
    {"tasks"},
    {"inference"},
    {"serve"},
    {"cli"},
]
HEIGHT = {part: height for height, layer in enumerate([*LIBRARY, *TOOLKIT]) for part in layer}
# Public packages whose only dependency is torch.
TORCH_ALONE = set().union(*LIBRARY[2:]) - {"analysis", "report", "huggingface"}
