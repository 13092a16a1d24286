"""Define models with sparse attention and sparse outputs."""

from tsallis.models.attended import calibrate_attended
from tsallis.models.batch import Batch
from tsallis.models.classifier import BiLSTMClassifier
from tsallis.models.label_decoder import LabelDecoder
from tsallis.models.language import LanguageModel
from tsallis.models.lstm import RNNSeq2Seq
from tsallis.models.protocol import Decoder, DecoderOutput, Memory, Step
from tsallis.models.transformer.model import TransformerSeq2Seq
from tsallis.models.vqa import VisualAnswerer

__all__ = [
    "Batch",
    "BiLSTMClassifier",
    "Decoder",
    "DecoderOutput",
    "LabelDecoder",
    "LanguageModel",
    "Memory",
    "RNNSeq2Seq",
    "Step",
    "TransformerSeq2Seq",
    "VisualAnswerer",
    "calibrate_attended",
]
