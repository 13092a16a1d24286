"""Wrap a classifier as a decoder that outputs a label and then the end symbol.

Classifiers are therefore trained and searched like sequence models, with the same certificates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tsallis.models.checks import check_last_pass
from tsallis.models.classifier import BiLSTMClassifier
from tsallis.models.protocol import DecoderOutput, Memory, Step
from tsallis.models.sharing import SymbolRows
from tsallis.models.vqa import GridAttention, VisualAnswerer
from tsallis.nn import OutputLayer
from tsallis.ops.transforms import traced
from tsallis.symbols import BOS, EOS, FIRST


@dataclass(frozen=True)
class LabelState:
    """Decoder state with the rows to classify."""

    hidden: Tensor  # [batch, d_model]
    masses: Tensor  # [batch, src]: attention mass per position

    def select(self, index: Tensor) -> LabelState:
        return LabelState(self.hidden[index], self.masses[index])


class LabelOutput(nn.Module):
    """Output layer of a classifier in a decoder; after the label, the end symbol has probability 1.

    Args:
        layer: Output layer from hidden states to classes.

    Hidden states have one extra number: it is above zero if the decoder already produced the label.

    Example:
        >>> output = LabelOutput(OutputLayer(3, 2, "sparsemax"))
        >>> scores = output.scores(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
        >>> output.probs(scores).detach()
        tensor([[0., 0., 1., 0., 0., 0.]])
    """

    def __init__(self, layer: OutputLayer) -> None:
        super().__init__()
        self.layer = layer

    @property
    def transform(self) -> str:
        """Return the transform of the layer."""
        return self.layer.transform

    @property
    def alpha(self) -> float:
        """Return the alpha of the wrapped output layer."""
        return self.layer.alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        self.layer.alpha = alpha

    @property
    def weight(self) -> Tensor:
        """Return the weight [classes, d_model]."""
        return self.layer.weight

    @property
    def d_model(self) -> int:
        """Return the size of the hidden states, including the extra number."""
        return self.layer.d_model + 1

    @property
    def normalized(self) -> bool:
        """Return whether the probabilities sum to 1."""
        return self.layer.normalized

    def scores(self, hidden: Tensor) -> Tensor:
        """Return scores [..., classes + 4] for hidden states [..., d_model + 1]; -inf for impossible symbols."""
        labels = pad(self.layer.scores(hidden[..., :-1]), (FIRST, 0), value=-torch.inf)
        end = torch.full_like(labels[..., :1, :] if labels.dim() > 1 else labels, -torch.inf)
        end[..., EOS] = 0
        return torch.where(hidden[..., -1:] > 0, end, labels)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scores(hidden)

    def probs(self, scores: Tensor) -> Tensor:
        """Return the probabilities [..., classes + 4]."""
        return self.layer.probs(scores)

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return log-probabilities in float64; -inf if a probability is zero."""
        return self.layer.log_probs(scores)

    def loss(
        self,
        hidden: Tensor,
        target: Tensor,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Return the loss of the targets [...] that are labels; other targets are ignored."""
        no_label = (hidden[..., -1] > 0) | (target < FIRST) | (target == ignore_index)
        target = torch.where(no_label, -100, target - FIRST)
        return self.layer.loss(hidden[..., :-1], target, -100, reduction, label_smoothing)

    def loss_of_scores(
        self, scores: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean"
    ) -> Tensor:
        """Return the loss, computed from scores, of the targets [...] that are labels; other targets are ignored."""
        target = torch.where((target < FIRST) | (target == ignore_index), -100, target)
        return self.layer.loss_of_scores(scores, target, -100, reduction)


def ends_are_certain(model: object) -> bool:
    """Return whether a model, or each model of an ensemble, outputs one label and then the end symbol.

    >>> ends_are_certain(LabelDecoder(20, 6, d_model=8))
    True
    """
    members = getattr(model, "models", None)
    return isinstance(model, LabelDecoder) if members is None else all(map(ends_are_certain, members))


@dataclass(frozen=True)
class CellAttention:
    """Attention to a batch of images, with the cells of the grid in row order."""

    grid: GridAttention

    @property
    def masses(self) -> Tensor:
        """Return the attention masses [batch, cells]."""
        return self.grid.masses.flatten(1)

    @property
    def mask(self) -> Tensor:
        """Return a mask [batch, cells] of True."""
        return torch.ones_like(self.grid.weights.flatten(1), dtype=torch.bool)


class PictureReader(nn.Module):
    """Wrapper of a :class:`VisualAnswerer`; an input row is an image's number and the symbols of a question.

    Args:
        answerer: Model that answers.

    Example:
        >>> answerer = VisualAnswerer(20, 3, d_model=8, heads=2, layers=1)
        >>> reader = PictureReader(answerer)
        >>> pictures = torch.zeros(5, 16, 16, 3, dtype=torch.uint8)
        >>> reader.image_store = lambda numbers: pictures[numbers]
        >>> hidden, attention = reader.read(torch.tensor([[4, 7, 8], [0, 9, 0]]), torch.tensor([3, 2]))
        >>> hidden.shape, attention.masses.shape
        (torch.Size([2, 16]), torch.Size([2, 4]))
    """

    def __init__(self, answerer: VisualAnswerer) -> None:
        super().__init__()
        self.answerer = answerer
        # Function that maps numbers [batch] on the CPU to images [batch, height, width, channels].
        self.image_store: Callable[[Tensor], Tensor] | None = None

    @property
    def output(self) -> OutputLayer:
        """Return the output layer of the answerer."""
        return self.answerer.output

    def read(self, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, CellAttention]:
        """Return the output layer's input [batch, d_fused], and the attention, which has no gradients.

        Raises:
            RuntimeError: No images were set.
            ValueError: A row has no question.
        """
        if self.image_store is None:
            raise RuntimeError("image_store of the reader must contain the images that the sources refer to, got None")
        if int(src_lengths.min()) < 2:
            raise ValueError(f"src_lengths must be at least 2 (an image and a question), got {src_lengths.tolist()}")
        images = self.image_store(src[:, 0].cpu()).to(src.device)
        hidden, attention = self.answerer.read(images, src[:, 1:], src_lengths - 1)
        return hidden, CellAttention(attention)


class LabelDecoder(nn.Module):
    """Classifier whose output is a sequence: the label and the end symbol.

    Args:
        src_vocab: number of source symbols; 0 is padding.
        tgt_vocab: number of target symbols: four special symbols and the labels.
        kind: "documents" for a :class:`BiLSTMClassifier`; "questions" for a :class:`VisualAnswerer`, which needs an
            `image_store`, see :class:`PictureReader`.
        options: Arguments of the classifier or answerer.

    Raises:
        ValueError: there is no label, the kind is unknown, or the classifier rejects an argument.

    Example:
        >>> model = LabelDecoder(20, 6, d_model=8)
        >>> src, lengths = torch.randint(4, 20, (2, 5)), torch.tensor([5, 3])
        >>> decoded = model(src, lengths, torch.tensor([[1, 4], [1, 5]]), need_attention=True)
        >>> model.output.scores(decoded.hidden).shape, decoded.attention.shape
        (torch.Size([2, 2, 6]), torch.Size([2, 2, 5]))
    """

    shared = ("image_store",)  # attributes that a copy of the model shares

    def __init__(self, src_vocab: int, tgt_vocab: int, kind: str = "documents", **options: Any) -> None:
        super().__init__()
        if tgt_vocab <= FIRST:
            raise ValueError(f"tgt_vocab must be above {FIRST}, the number of special symbols, got {tgt_vocab}")
        if kind not in ("documents", "questions"):
            raise ValueError(f"kind must be documents or questions, got {kind!r}")
        self.arguments: dict[str, Any] = {"src_vocab": src_vocab, "tgt_vocab": tgt_vocab, "kind": kind, **options}
        # A classifier has an output layer and a method `read`, which returns the layer's input and the attention.
        self.classifier: Any
        if kind == "documents":
            self.classifier = BiLSTMClassifier(src_vocab, tgt_vocab - FIRST, **options)
        else:
            self.classifier = PictureReader(VisualAnswerer(src_vocab, tgt_vocab - FIRST, **options))
        self._attention: Any = None  # attention of the last pass

    @property
    def image_store(self) -> Callable[[Tensor], Tensor] | None:
        """Return the function that maps numbers to images, for a model of kind "questions"."""
        images: Callable[[Tensor], Tensor] | None = getattr(self.classifier, "image_store", None)
        return images

    @image_store.setter
    def image_store(self, images: Callable[[Tensor], Tensor] | None) -> None:
        self.classifier.image_store = images

    @property
    def symbol_rows(self) -> dict[str, SymbolRows]:
        """Return the parameters with one row per symbol or label."""
        inner = "" if self.arguments["kind"] == "documents" else "answerer."
        labels = {
            f"classifier.{inner}output.projection.{name}": SymbolRows("tgt", FIRST) for name in ("weight", "bias")
        }
        return {f"classifier.{inner}embedding.weight": SymbolRows("src"), **labels}

    @property
    def output(self) -> LabelOutput:
        """Return the classifier's output layer."""
        return LabelOutput(self.classifier.output)

    def encode(self, src: Tensor, src_lengths: Tensor) -> Memory:
        """Read symbols [batch, src] with their counts [batch] into a memory."""
        hidden, attention = self.classifier.read(src, src_lengths)
        return Memory(attention.masses.unsqueeze(-1), attention.mask, (hidden,))

    def start(self, memory: Memory) -> LabelState:
        return LabelState(memory.summary[0], memory.states.squeeze(-1))

    def step(self, state: LabelState, token: Tensor) -> Step:
        """Return the scores after `token` [batch]: labels after the start symbol, the end symbol after a label."""
        hidden = torch.cat([state.hidden, (token != BOS).unsqueeze(-1).to(state.hidden)], -1)
        return Step(self.output.scores(hidden), state.masses, state)

    def forward(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, need_attention: bool = False) -> DecoderOutput:
        """Decode all steps with teacher forcing; attention masses are computed only with `need_attention`."""
        hidden, attention = self.classifier.read(src, src_lengths)
        self._attention = None if traced() else attention
        tgt = tgt_in.shape[1]
        ends = (tgt_in != BOS).unsqueeze(-1).to(hidden)  # [batch, tgt, 1]
        states = torch.cat([hidden.unsqueeze(1).expand(-1, tgt, -1), ends], -1)
        return DecoderOutput(states, attention.masses.unsqueeze(1).expand(-1, tgt, -1) if need_attention else None)

    def num_attended(self, decoded: DecoderOutput) -> Tensor:
        """Return the number of attended positions [batch, tgt] in the pass that made `decoded`.

        Raises:
            RuntimeError: The last pass did not make `decoded`, or was compiled.
        """
        shape = decoded.hidden.shape[:2]
        masses = None if self._attention is None else self._attention.masses  # a row has the same masses at each step
        check_last_pass(None if masses is None else (len(masses), shape[1]), decoded)
        assert masses is not None
        return (masses > 0).sum(-1, keepdim=True).expand(shape).float()
