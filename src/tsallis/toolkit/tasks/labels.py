"""Tasks whose output is a single label: classification and visual question answering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from tsallis.toolkit.config import Alpha, Map
from tsallis.toolkit.evaluation.text_scores import CorpusScore
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.types import Attention, ModelSection
from tsallis.toolkit.training.run_folder import Run


class LabelModel(ModelSection):
    """Attention and output settings shared by all models that predict labels."""

    attention: Literal["discrete", "continuous", "combined"] = "combined"
    transform: Map | Alpha = "sparsemax"
    matching: Literal["scale", "covariance"] = "scale"
    density: Any = None
    ridge: float = Field(0.1, gt=0, allow_inf_nan=False)
    output: Map = "softmax"
    output_alpha: Alpha = 1.5

    @model_validator(mode="after")
    def _check_density(self) -> LabelModel:
        if self.density is not None and self.attention == "discrete":
            raise ValueError(
                f"density: {self.density} applies only to attention: continuous or combined, found attention: discrete"
            )
        return self


class LabelTask(Task):
    """Base class of tasks whose outputs are single labels, scored by accuracy."""

    def spell(self, text: str, run: Run) -> list[int]:
        labels: Any = run.tgt_vocab
        return [int(number) for number in labels.encode([text])]

    def ambiguous_text(self, vocabulary: Any) -> None:
        return None  # a label has one spelling

    scores = ("accuracy",)
    hidden_scores = frozenset(
        {"symbol_accuracy", "complete", "optimal", "bounded", "none", "output_sum", "attention_support_teacher_forced"}
        | {"empty", "empty_rate", "empty_best", "empty_possible"}
    )

    def split_typed(self, text: str, run: Run) -> tuple[list[int], str]:
        return [], text

    def score(self, texts: Sequence[str], references: Sequence[str], quick: bool = False) -> list[CorpusScore]:
        return [CorpusScore.mean("accuracy", [float(a == b) for a, b in zip(texts, references, strict=True)])]


def label_attention(attention: Any, grid: Sequence[int] | None = None) -> dict[str, Attention]:
    """Return the attention of a batch by name: "discrete" has weights, "continuous" has masses and a density.

    Args:
        attention: Attention of a batch, as an :class:`~tsallis.models.classifier.AttentionMap` or a
            :class:`~tsallis.models.vqa.GridAttention`.
        grid: Height and width of the image of a GridAttention.
    """
    entries = {}
    if attention.weights is not None:
        entries["discrete"] = Attention(attention.weights.flatten(1).unsqueeze(1), grid=grid)  # [batch, 1, source]
    if attention.density is not None:
        entries["continuous"] = Attention(attention.masses.flatten(1).unsqueeze(1), attention.density, grid)
    return entries
