"""Figures of attention to texts, images and translations, and of possible outputs, drawn with matplotlib."""

from tsallis.report.heatmap import attention_matrix, matrix_panels
from tsallis.report.image import image_attention, image_panels
from tsallis.report.output_figures import output_steps, output_tree
from tsallis.report.style import save
from tsallis.report.text import text_attention, text_panels
from tsallis.report.views import View

__all__ = [
    "View",
    "attention_matrix",
    "image_attention",
    "image_panels",
    "matrix_panels",
    "output_steps",
    "output_tree",
    "save",
    "text_attention",
    "text_panels",
]
