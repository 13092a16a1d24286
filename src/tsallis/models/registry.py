"""List the models that commands can train, by their names in configurations and run folders."""

from __future__ import annotations

from typing import Any

from tsallis.models.label_decoder import LabelDecoder
from tsallis.models.language import LanguageModel
from tsallis.models.lstm import RNNSeq2Seq
from tsallis.models.transformer.model import TransformerSeq2Seq

MODELS: dict[str, Any] = {
    "rnn": RNNSeq2Seq,
    "transformer": TransformerSeq2Seq,
    "classifier": LabelDecoder,
    "answerer": LabelDecoder,
    "language": LanguageModel,
}
