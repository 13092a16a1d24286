"""Options for learning subwords, shared by several tasks."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tsallis.toolkit.config import Section

LEARNING = ("size", "kind", "coverage", "split_digits")  # options for learning subwords


class LearningConfig(Section):
    """Options for learning subwords."""

    size: int = Field(8000, ge=8, lt=2**31)  # number of symbols in the vocabulary
    kind: Literal["bpe", "unigram", "word"] = "bpe"  # kind of model; with "word", symbols are words
    coverage: float = Field(1.0, ge=0.98, le=1)  # share of characters to cover; below 1 for large scripts
    split_digits: bool = False  # whether every digit is a separate symbol

    def learning(self) -> dict[str, Any]:
        """Return only the options for learning subwords; subclasses may have other options."""
        return self.model_dump(include=set(LEARNING))

    def learning_options(self) -> list[str]:
        """Return the names of the learning options that differ from their defaults."""
        return [name for name in LEARNING if getattr(self, name) != type(self).model_fields[name].default]
