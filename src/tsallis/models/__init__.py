"""Models with sparse attention and sparse outputs; plain arguments, no configuration objects."""

from tsallis.models.classifier import BiLSTMClassifier
from tsallis.models.decoder import Decoded, Decoder, Memory, Step
from tsallis.models.labels import LabelDecoder
from tsallis.models.rnn import RNNSeq2Seq
from tsallis.models.series import GridClassifier, SignalClassifier
from tsallis.models.transformer import TransformerSeq2Seq
from tsallis.models.vqa import VisualAnswerer

__all__ = [
    "BiLSTMClassifier",
    "Decoded",
    "Decoder",
    "GridClassifier",
    "LabelDecoder",
    "Memory",
    "RNNSeq2Seq",
    "SignalClassifier",
    "Step",
    "TransformerSeq2Seq",
    "VisualAnswerer",
]
