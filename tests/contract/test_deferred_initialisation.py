"""A module that is built without memory, gets memory later and loads a state dict equals the saved module."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tsallis
from tsallis import compat, models
from tsallis.continuous import text_basis

# Required constructor arguments, by parameter name.
REQUIRED: dict[str, Any] = {
    **dict.fromkeys(("d_model", "embed_dim", "d_query", "d_memory", "d_input", "d_values"), 8),
    **dict.fromkeys(("num_heads", "nhead", "channels"), 2),
    **dict.fromkeys(("vocab", "src_vocab", "tgt_vocab", "d_vocab", "answers"), 11),
    "classes": 3,
}
# Small sizes that replace the defaults of classes with these parameters.
SMALL: dict[str, Any] = {"d_ff": 12, "dim_feedforward": 12, "heads": 2, "layers": 1, "num_basis": 36}
ALPHAS = (1.2, 1.7)
# Arguments from which a module makes tensors other than parameters.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "EntmaxLoss": [{"weight": (1.0, 2.0, 3.0)}],
    "MultiheadAttention": [
        *({"positions": positions} for positions in ("alibi", "nape", "rope")),
        *({"length_scale": kind} for kind in ("input", "head")),
        {"alpha": "learned"},
        {"alpha": ALPHAS},
    ],
    "OutputLayer": [{"forbidden": (0, 3)}, {"transform": "alpha_relu", "tau": 0.3}],
    "LanguageModel": [{"forbidden": (0, 1, 3)}, {"positions": "alibi"}, {"alpha": "learned"}],
    "TransformerSeq2Seq": [
        {"forbidden": (0, 1, 3), "features": [4, 5]},
        {"attention": "learned", "share": "all", "positions": "nape"},
    ],
    "RNNSeq2Seq": [{"forbidden": (0, 1, 3), "features": [4, 5]}, {"density": "truncated_parabola"}],
}


def required(cls: type[nn.Module]) -> dict[str, Any]:
    """Return the required arguments of a constructor."""
    parameters = inspect.signature(cls).parameters.items()
    names = [name for name, p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    with torch.device("cpu"):
        return {name: text_basis(4) if name == "basis" else REQUIRED[name] for name in names}


def classes() -> Iterator[tuple[ModuleType, type[nn.Module]]]:
    """Yield every public module class with its package."""
    for package in (tsallis.nn, models, compat):
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isclass(value) and issubclass(value, nn.Module):
                yield package, value


def all_cases() -> Iterator[Any]:
    for package, cls in classes():
        parameters = inspect.signature(cls).parameters
        more = [{"alpha": ALPHAS}] * (package is compat and "alpha" in parameters)
        more += [{"budget": ALPHAS}] * (package is compat and "budget" in parameters)
        more += VARIANTS.get(cls.__name__, []) if package is not compat else []
        for number, variant in enumerate([{}, *more]):
            yield pytest.param(cls, variant, id=f"{package.__name__.partition('.')[2]}.{cls.__name__}-{number}")


CASES = list(all_cases())


def make(cls: type[nn.Module], variant: Mapping[str, Any]) -> nn.Module:
    """Build a module; tuples of floats become tensors on the CPU."""
    parameters = inspect.signature(cls).parameters
    small = {name: value for name, value in SMALL.items() if name in parameters}
    tensors = {
        name: torch.tensor(value, device="cpu") if isinstance(value, tuple) and isinstance(value[0], float) else value
        for name, value in variant.items()
    }
    return cls(**{**required(cls), **small, **tensors})


@contextmanager
def garbage() -> Iterator[None]:
    """Fill new memory with NaN and the largest integer, as PyTorch's deterministic mode does."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def tensors(value: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in the attributes, lists and dictionaries of a module or of an object of the library."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from tensors(each, f"{path}.{key}", seen)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, each in enumerate(value):
            yield from tensors(each, f"{path}.{number}", seen)
    elif isinstance(value, nn.Module) or type(value).__module__.startswith("tsallis."):
        yield from tensors(getattr(value, "__dict__", {}), path, seen)


def assert_equal(actual: nn.Module, expected: nn.Module) -> None:
    mine, theirs = dict(tensors(actual)), dict(tensors(expected))
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.device == theirs[name].device and torch.equal(tensor, theirs[name]), name


def on_meta(cls: type[nn.Module], variant: Mapping[str, Any]) -> nn.Module:
    with torch.device("meta"):
        return make(cls, variant)


@pytest.mark.parametrize(("cls", "variant"), CASES)
def test_meta_modules_equal_saved_modules_after_to_empty(cls: type[nn.Module], variant: Mapping[str, Any]) -> None:
    expected = make(cls, variant)
    with garbage():
        model = on_meta(cls, variant).to_empty(device="cpu")
    model.load_state_dict(expected.state_dict())
    assert_equal(model, expected)


@pytest.mark.parametrize(("cls", "variant"), [case for case in CASES if make(*case.values).state_dict()])
def test_meta_modules_equal_saved_modules_after_assign(cls: type[nn.Module], variant: Mapping[str, Any]) -> None:
    expected = make(cls, variant)
    model = on_meta(cls, variant)
    model.load_state_dict(expected.state_dict(), assign=True)
    assert_equal(model, expected)


@pytest.mark.parametrize(("cls", "variant"), CASES)
def test_copied_and_pickled_modules_equal_the_original(cls: type[nn.Module], variant: Mapping[str, Any]) -> None:
    expected = make(cls, variant)
    assert_equal(copy.deepcopy(expected), expected)
    assert_equal(pickle.loads(pickle.dumps(expected)), expected)
    stream = io.BytesIO()
    torch.save(expected, stream)
    stream.seek(0)
    assert_equal(torch.load(stream, weights_only=False), expected)
    # A copy has separate memory, which can be replaced again.
    with garbage():
        model = copy.deepcopy(expected).to_empty(device="cpu")
    model.load_state_dict(expected.state_dict())
    assert_equal(model, expected)
    assert_equal(expected.half().float(), copy.deepcopy(expected).half().float())


def plain_transformer() -> nn.Module:
    torch.manual_seed(3)
    return nn.Transformer(8, 2, 1, 1, 12, batch_first=True)


@pytest.mark.parametrize("alpha", [1.3, "learned"])
def test_sparsified_meta_transformer_equals_the_saved_model(alpha: Any) -> None:
    expected = tsallis.nn.sparsify_module(plain_transformer(), alpha=alpha).eval()
    with torch.device("meta"):
        first = tsallis.nn.sparsify_module(plain_transformer(), alpha=alpha)
        second = plain_transformer()
    with garbage():
        first.to_empty(device="cpu").load_state_dict(expected.state_dict())
        second = tsallis.nn.sparsify_module(second.to_empty(device="cpu"), alpha=alpha)
        second.load_state_dict(expected.state_dict())
    x = torch.randn(2, 5, 8)
    for model in (first, second):
        assert_equal(model, expected)
    for model in (first, second):
        assert torch.equal(model.eval()(x, x), expected(x, x))


@pytest.mark.parametrize("alpha", [1.3, [1.1, 1.9], "learned"])
def test_sparsified_meta_bert_equals_the_saved_model(alpha: Any) -> None:
    transformers = pytest.importorskip("transformers")
    from tsallis.huggingface import sparsify

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}

    def build() -> nn.Module:
        torch.manual_seed(5)
        return sparsify(transformers.BertModel(transformers.BertConfig(vocab_size=9, **sizes)), alpha=alpha).eval()

    expected, ids = build(), torch.tensor([[1, 2, 3]])
    with torch.device("meta"):
        model = build()
    with garbage():
        model.to_empty(device="cpu")
    model.load_state_dict({**expected.state_dict(), **dict(expected.named_buffers())}, strict=False)
    for name, buffer in model.named_buffers():  # the state dict lacks the buffers of Transformers itself
        if not name.startswith("embeddings."):
            assert torch.equal(buffer, dict(expected.named_buffers())[name]), name
    for name, buffer in expected.named_buffers():
        dict(model.named_buffers())[name].copy_(buffer)
    assert torch.equal(model(ids)[0], expected(ids)[0])


def test_slopes_survive_dtype_conversions() -> None:
    attention = tsallis.nn.MultiheadAttention(6, 3, positions="alibi", batch_first=True)
    slopes = attention.slopes
    attention.bfloat16().float()  # the slopes don't keep the rounding of half precision
    assert torch.equal(attention.slopes, slopes)
    x = torch.randn(1, 4, 6, requires_grad=True)
    attention(x, x, x)[0].sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_meta_alphas_raise() -> None:
    with pytest.raises(ValueError, match="alpha must not be on the device 'meta'"):
        compat.EntmaxBisect(torch.tensor([1.2, 1.7], device="meta"))


def test_data_parallel_modules_keep_their_constants() -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(2)
    expected = tsallis.nn.OutputLayer(8, 11, forbidden=(0, 3))
    with garbage():
        model = on_meta(tsallis.nn.OutputLayer, {"forbidden": (0, 3)}).to_empty(device="cpu")
    model.load_state_dict(expected.state_dict())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.randn(2, 8)
        assert torch.equal(DistributedDataParallel(model)(x), expected(x))
    finally:
        dist.destroy_process_group()
