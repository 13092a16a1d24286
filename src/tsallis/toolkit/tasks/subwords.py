"""The options of learning subwords, which several tasks have."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tsallis.toolkit.config import Section

LEARNING = ("size", "kind", "coverage", "split_digits")  # options of learning subwords


class LearningConfig(Section):
    """The options of learning subwords."""

    size: int = Field(8000, ge=8, lt=2**31)  # symbols of a vocabulary
    kind: Literal["bpe", "unigram", "word"] = "bpe"  # word: what white space separates are the symbols
    coverage: float = Field(1.0, ge=0.98, le=1)  # share of characters; a little less than 1 where there are thousands
    split_digits: bool = False  # every digit a symbol of its own

    def learning(self) -> dict[str, Any]:
        """Return the options for learning subwords, without those for using them."""
        return self.model_dump(include=set(LEARNING))

    def learning_options(self) -> list[str]:
        """Return the names of the options for learning that are not the defaults."""
        return [name for name in LEARNING if getattr(self, name) != type(self).model_fields[name].default]
