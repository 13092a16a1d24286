"""Record what every head of a model attends to, batch by batch."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from tsallis.analysis.weights import AttentionLayer, Sentence, SparseWeights, Text
from tsallis.models import LanguageModel, RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.batch import Batch
from tsallis.models.modes import eval_mode
from tsallis.nn import ContinuousGlobalAttention, GlobalAttention
from tsallis.symbols import IGNORE_INDEX

Receive = Callable[[int, Tensor], None]
DENSITY_ALPHAS = {"gaussian": 1.0, "laplace": 1.0, "truncated_parabola": 2.0, "triangular": 2.0}


class Symbols(Protocol):
    """Protocol of vocabularies, which spell symbols."""

    def name(self, number: int) -> str:
        """Return the spelling of a symbol."""
        ...


class AttentionReader(Protocol):
    """Protocol of adapters, which record models. :func:`read_model` returns the adapters of this package."""

    @property
    def layers(self) -> tuple[AttentionLayer, ...]:
        """Describe the attention modules."""
        ...

    def texts(self, batch: Any) -> list[Text]:
        """Return the pieces of each sentence of a batch: one per query or key, without padding."""
        ...

    def run(self, batch: Any, receive: Receive) -> Any:
        """Run a batch, call `receive(number, weights)` once per layer in any order, and return the result.

        Weights are [batch, heads, queries, keys], padded at the end. :func:`record_batches` returns the result to
        callers that need more than weights.
        """
        ...


class Recording:
    """Sentences with their attention weights.

    Args:
        layers: Attention modules, in the order of the weights of each sentence.
        sentences: Iterable of sentences. It may compute or read them again at each iteration, or be a list.

    Example:
        >>> recording = Recording([AttentionLayer("encoder", 0, (1.5,))], [Sentence.of([[[1, 0], [0.5, 0.5]]])])
        >>> [sentence.weights[0].support.tolist() for sentence in recording]
        [[[1, 2]]]
    """

    def __init__(self, layers: Sequence[AttentionLayer], sentences: Iterable[Sentence]) -> None:
        self.layers, self.sentences = tuple(layers), sentences

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)


@dataclass(frozen=True)
class _Sentences:
    """Iterable of sentences, which runs the model during iteration."""

    reader: AttentionReader
    batches: Iterable[Any]

    def __iter__(self) -> Iterator[Sentence]:
        for batch in record_batches(self.reader, self.batches):
            yield from batch.sentences


def record(reader: AttentionReader, batches: Iterable[Any]) -> Recording:
    """Return a recording of the non-zero weights of every head on every sentence.

    The model runs only during iteration over the recording, batch by batch, without dropout and gradients. Only the
    weights of one attention module are dense at a time.

    Args:
        reader: an adapter of the model, see :func:`read_model`.
        batches: Batches for the adapter. A list or `corpus.batches(size)` allows several iterations.

    Returns:
        The recording.

    Raises:
        ValueError: The weights do not match the layers or the sentences.

    Example:
        >>> from types import SimpleNamespace
        >>> from tsallis.models import Batch, TransformerSeq2Seq
        >>> symbols = SimpleNamespace(name=["<pad>", "<s>", "</s>", "<unk>", "▁a", "▁b"].__getitem__)
        >>> model = TransformerSeq2Seq(6, 6, d_model=8, heads=2, layers=1, d_ff=8, attention="sparsemax")
        >>> source, lengths = torch.tensor([[4, 5, 4], [5, 0, 0]]), torch.tensor([3, 1])
        >>> read, target = torch.tensor([[1, 5, 0], [1, 4, 4]]), torch.tensor([[5, 2, -100], [4, 4, 2]])
        >>> batch = Batch(source, lengths, read, target, (0, 1))
        >>> recording = record(read_model(model, symbols, symbols), [batch])
        >>> [layer.name for layer in recording.layers]
        ['encoder layer 1', 'decoder layer 1', 'cross layer 1']
        >>> [(s.text.target, s.weights[2].shape) for s in recording]
        [(('<s>', '▁b'), (2, 2, 3)), (('<s>', '▁a', '▁a'), (2, 3, 1))]
    """
    return Recording(reader.layers, _Sentences(reader, batches))


class RecordedBatch(NamedTuple):
    """A batch, its sentences with their weights, and the result of the model's pass over the batch."""

    batch: Any
    sentences: list[Sentence]  # sentences in the order of the batch
    result: Any  # result of the adapter's `run`


def record_batches(reader: AttentionReader, batches: Iterable[Any]) -> Iterator[RecordedBatch]:
    """Yield the sentences of each batch with the result of the same pass, batch by batch.

    Args:
        reader: an adapter of the model, see :func:`read_model`.
        batches: Batches for the adapter.

    Yields:
        Each batch, its sentences, and what the adapter's `run` returns.

    Raises:
        ValueError: The weights do not match the layers or the sentences.

    Example:
        >>> from types import SimpleNamespace
        >>> symbols = SimpleNamespace(name=["<pad>", "<s>", "</s>", "<unk>", "▁a", "▁b"].__getitem__)
        >>> reader = read_model(RNNSeq2Seq(6, 6, d_model=8), symbols, symbols)
        >>> source, target = torch.tensor([[4, 5]]), torch.tensor([[5, 2]])
        >>> batch = Batch(source, torch.tensor([2]), torch.tensor([[1, 5]]), target, (0,))
        >>> (part,) = record_batches(reader, [batch])
        >>> len(part.sentences), part.result.hidden.shape
        (1, torch.Size([1, 2, 8]))
    """
    for batch in batches:
        yield _record_batch(reader, batch)


def _record_batch(reader: AttentionReader, batch: Any) -> RecordedBatch:
    layers, texts = reader.layers, reader.texts(batch)
    by_layer: dict[int, list[SparseWeights]] = {}

    def receive(number: int, weights: Tensor) -> None:
        by_layer[number] = _compress(layers[number], texts, weights)

    result = reader.run(batch, receive)
    missing = [layer.name for number, layer in enumerate(layers) if number not in by_layer]
    if missing:
        raise ValueError(f"the model must return weights for each layer, got none for {', '.join(missing)}")
    rows = zip(*(by_layer[number] for number in range(len(layers))), strict=True)
    return RecordedBatch(batch, [Sentence(text, weights) for text, weights in zip(texts, rows, strict=True)], result)


def _compress(layer: AttentionLayer, texts: Sequence[Text], weights: Tensor) -> list[SparseWeights]:
    """Return the non-zero weights of each sentence, from dense weights [batch, heads, queries, keys]."""
    sizes = [tuple(map(len, text.sides(layer.kind))) for text in texts]
    shape = (len(texts), layer.heads, *(max(size) for size in zip(*sizes, strict=True)))
    fits = weights.dim() == 4 and weights.shape[:2] == shape[:2]
    if not fits or any(actual < required for actual, required in zip(weights.shape, shape, strict=True)):
        raise ValueError(
            f"weights of {layer.name} must have shape {shape}, or a larger shape with padding, "
            f"got {tuple(weights.shape)}"
        )
    # NumPy has no bfloat16. Keep float64, because some of its positive weights would be 0 in float32.
    rows = weights.detach().to(torch.promote_types(weights.dtype, torch.float32)).cpu().numpy()
    return [SparseWeights.of(row[:, :queries, :keys]) for row, (queries, keys) in zip(rows, sizes, strict=True)]


@contextlib.contextmanager
def capture_weights(attentions: Sequence[nn.Module], receive: Receive) -> Iterator[None]:
    """Call `receive(number, weights)` for every pass through attention modules inside the context.

    The results that the modules return to their callers stay the same.

    Args:
        attentions: Modules that are called like :class:`torch.nn.MultiheadAttention`.
        receive: Function of the module's number in `attentions`, and its weights [batch, heads, queries, keys].

    Returns:
        A context manager.

    Example:
        >>> from tsallis.nn import MultiheadAttention
        >>> attention = MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.randn(1, 3, 8)
        >>> with capture_weights([attention], lambda number, weights: print(number, tuple(weights.shape))):
        ...     _, returned = attention(x, x, x, need_weights=False)
        0 (1, 2, 3, 3)
        >>> returned is None
        True
    """
    handles = []
    for number, attention in enumerate(attentions):
        handles += _register_hooks(attention, number, receive)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _register_hooks(attention: nn.Module, number: int, receive: Receive) -> list[Any]:
    signature = inspect.signature(attention.forward)
    flags: dict[str, Any] = {}

    def request_weights(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        flags.update((name, call.arguments[name]) for name in ("need_weights", "average_attn_weights"))
        call.arguments.update(need_weights=True, average_attn_weights=False)
        return call.args, call.kwargs

    def take_weights(_: nn.Module, __: Any, result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        output, weights = result  # weights: [batch, heads, queries, keys]
        receive(number, weights)
        if not flags["need_weights"]:
            return output, None
        return output, weights.mean(-3) if flags["average_attn_weights"] else weights

    pre_hook = attention.register_forward_pre_hook(request_weights, with_kwargs=True)
    return [pre_hook, attention.register_forward_hook(take_weights)]


def read_model(model: Any, src_vocab: Symbols, tgt_vocab: Symbols) -> AttentionReader:
    """Return an adapter for a model of this package.

    Args:
        model: A :class:`~tsallis.models.TransformerSeq2Seq`, :class:`~tsallis.models.LanguageModel` or
            :class:`~tsallis.models.RNNSeq2Seq`. Texts of a language model are targets without a source. Weights of
            continuous attention are the masses of the density in each word.
        src_vocab, tgt_vocab: Vocabularies of the sources and the targets.

    Returns:
        The adapter, for :func:`record`.

    Raises:
        ValueError: The model is of another class. Write an :class:`AttentionReader` for it.

    Example:
        >>> from types import SimpleNamespace
        >>> symbols = SimpleNamespace(name=["<pad>", "<s>", "</s>", "<unk>", "▁a", "▁b"].__getitem__)
        >>> reader = read_model(RNNSeq2Seq(6, 6, d_model=8), symbols, symbols)
        >>> reader.layers
        (AttentionLayer(kind='cross', layer=0, alphas=(1.5,), causal=False),)
    """
    if isinstance(model, LanguageModel):
        return LanguageReader(model, src_vocab, tgt_vocab)
    if isinstance(model, TransformerSeq2Seq):
        return TransformerReader(model, src_vocab, tgt_vocab)
    if isinstance(model, RNNSeq2Seq) and isinstance(model.attention, GlobalAttention | ContinuousGlobalAttention):
        return RNNReader(model, src_vocab, tgt_vocab)
    raise ValueError(
        f"model must be a TransformerSeq2Seq, an RNNSeq2Seq or a LanguageModel, got {type(model).__name__}"
    )


def _without_underflow(weights: Tensor, layer: AttentionLayer) -> Tensor:
    """Replace zeros in softmax heads by tiny weights, because float32 rounds small weights to 0."""
    softmax = torch.tensor(layer.alphas, device=weights.device) == 1
    if not softmax.any():
        return weights
    float_weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    positive = float_weights.clamp(min=torch.finfo(torch.float32).tiny)
    return torch.where(softmax[:, None, None], positive.tril() if layer.causal else positive, float_weights)


class _Reader:
    """Base class of adapters, which runs batches and spells their symbols."""

    def __init__(self, model: Any, src_vocab: Symbols, tgt_vocab: Symbols) -> None:
        self.model, self.src_vocab, self.tgt_vocab = model, src_vocab, tgt_vocab

    def texts(self, batch: Batch) -> list[Text]:
        """Return the pieces of each sentence."""
        targets = (batch.tgt_out != IGNORE_INDEX).sum(1).tolist()
        return [
            Text(
                index,
                tuple(map(self.src_vocab.name, batch.src[row, :src].tolist())),
                tuple(map(self.tgt_vocab.name, batch.tgt_in[row, :tgt].tolist())),
            )
            for row, (index, src, tgt) in enumerate(zip(batch.index, batch.src_lengths.tolist(), targets, strict=True))
        ]

    @torch.no_grad()
    def _forward(self, batch: Batch) -> Any:
        device = next(self.model.parameters()).device
        with eval_mode(self.model):
            inputs = (x.to(device) for x in (batch.src, batch.src_lengths, batch.tgt_in))
            return self.model(*inputs, need_attention=True)


class TransformerReader(_Reader):
    """Adapter of a Transformer (encoder-decoder or language model), which reads the target in one pass."""

    def __init__(self, model: TransformerSeq2Seq | LanguageModel, src_vocab: Symbols, tgt_vocab: Symbols) -> None:
        super().__init__(model, src_vocab, tgt_vocab)
        self.attentions: list[nn.Module] = []
        layers = []
        for kind, attentions in model.attentions().items():
            for number, attention in enumerate(attentions):
                alphas = tuple(attention.alphas().tolist())
                layers.append(AttentionLayer(kind, number, alphas, causal=kind == "decoder"))
                self.attentions.append(attention)
        self.layers = tuple(layers)

    def run(self, batch: Batch, receive: Receive) -> Any:
        """Run a batch, send the weights of each attention to `receive`, and return the decoder's output."""

        def receive_positive(number: int, weights: Tensor) -> None:
            receive(number, _without_underflow(weights, self.layers[number]))

        with capture_weights(self.attentions, receive_positive):
            return self._forward(batch)


class LanguageReader(TransformerReader):
    """Adapter of a :class:`~tsallis.models.LanguageModel`, whose prompt and continuation form one text."""

    def texts(self, batch: Batch) -> list[Text]:
        """Return the pieces of each text, including its prompt."""
        return [
            Text(text.index, (), (*text.target[:1], *text.source, *text.target[1:])) for text in super().texts(batch)
        ]


def _alpha_of(attention: Any) -> float:
    """Return the alpha of a recurrent model's attention; for continuous attention, the alpha of its density."""
    if isinstance(attention, GlobalAttention):
        return float(attention.alpha)
    kind = attention.attention.kind
    return DENSITY_ALPHAS[kind.name] if kind.alpha is None else float(kind.shape(1)["alpha"])


class RNNReader(_Reader):
    """Adapter of a :class:`~tsallis.models.RNNSeq2Seq`, which has one head of cross-attention."""

    def __init__(self, model: RNNSeq2Seq, src_vocab: Symbols, tgt_vocab: Symbols) -> None:
        super().__init__(model, src_vocab, tgt_vocab)
        self.layers = (AttentionLayer("cross", 0, (_alpha_of(model.attention),)),)

    def run(self, batch: Batch, receive: Receive) -> Any:
        """Run a batch, send the weights of each step to `receive`, and return the decoder's output."""
        decoded = self._forward(batch)
        weights = decoded.attention.unsqueeze(1)  # [batch, 1, tgt, src]
        receive(0, _without_underflow(weights, self.layers[0]))
        return decoded
