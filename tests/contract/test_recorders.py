"""Every public function and module, recorded by every tool that records operations, is right for new inputs.

The table is derived: it includes a new public function automatically if the arguments have known names.
"""

from __future__ import annotations

import functools
import inspect
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tsallis
from pairs import pairwise
from tsallis import compat, nn

CLASSES, SIZE, LENGTH = 5, 4, 3
FIXED = {  # required arguments, and arguments whose default is too large or has another layout
    **dict.fromkeys(("embed_dim", "d_model", "d_query", "d_memory"), SIZE),
    **dict.fromkeys(("num_heads", "nhead"), 2),
    **{"d_vocab": CLASSES, "dim_feedforward": 8, "batch_first": True, "beta": 0.7},
}
OPTIONS: dict[str, list[Any]] = {  # the first value of each option is its default or equals it
    "alpha": [1.5, 1.0, 1.25, 2.0, 2.5, torch.tensor(1.3)],
    "dim": [-1, 0],
    "mask": [None, torch.arange(CLASSES) != 1],
    "weight": [None, torch.linspace(0.5, 2, CLASSES)],
    "tau": [0.1, torch.tensor(0.2)],
    "label_smoothing": [0.0, 0.1],
    "reduction": ["mean", "none", "sum"],
    "attn_mask": [None, torch.ones(LENGTH, LENGTH).tril().bool(), torch.eye(LENGTH)],
    "src_mask": [None, torch.ones(LENGTH, LENGTH).triu(1).bool()],
    "is_causal": [False, True],
    "scale": [None, 0.3],
    "return_weights": [False, True],
    "return_support": [False, True],
    "slopes": [None, torch.tensor([0.1, 0.4])],
    "need_weights": [True, False],
    "positions": ["none", "rope", "alibi", "nape"],
    "add_zero_attn": [False, True],
    "transform": ["entmax", "softmax", "sparsemax"],
    "return_support_size": [False, True],
    "norm_first": [False, True],
    "bias": [True, False],
    "points": [None, 40],
}
NO_OPTIONS = {"key": ["positions", "mask"], "values": ["positions", "mask", "transform"], "memory": ["mask"]}


class Case(torch.nn.Module):
    """A call of a public function or module with options, as a module whose inputs are tensors."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.public = find(name)
        call = self.public
        if inspect.isclass(self.public):
            torch.manual_seed(zlib.crc32(name.encode()))
            made = {k: v for k, v in options.items() if k in inspect.signature(self.public).parameters}
            options = {k: v for k, v in options.items() if k not in made}
            self.call = call = self.public(**required(self.public), **made).eval()
            if name == "nn.OutputLayer":
                call = lambda hidden: self.call.probs(self.call(hidden))  # noqa: E731
        if name == "nn.ContinuousAttention2d":
            options["grid"] = (1, LENGTH)
        parameters = inspect.signature(self.public.forward if inspect.isclass(self.public) else self.public).parameters
        fixed = {k: FIXED[k] for k, p in parameters.items() if k in FIXED and p.default is p.empty}
        self.names = [k for k, p in parameters.items() if p.default is p.empty and k not in (*FIXED, "self", "alpha")]
        if "key" in parameters:
            self.names = ["query", "key", "value"]
        self.compute = functools.partial(call, **fixed, **options)

    def forward(self, *inputs: Tensor) -> Any:
        results = self.compute(**dict(zip(self.names, inputs, strict=True)))
        return tuple(x for x in tree_leaves(results) if isinstance(x, Tensor))

    def inputs(self, batch: int, seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)

        def draw(name: str) -> Tensor:
            def normal(*shape: int) -> Tensor:
                return torch.randn(shape, generator=generator)

            if name in ("scores", "X"):
                return normal(batch, CLASSES)
            if name == "probs":
                return normal(batch, CLASSES).softmax(-1)
            if name == "target":
                return torch.randint(CLASSES, (batch,), generator=generator)
            if name == "weight":
                return normal(CLASSES, SIZE)
            if name == "hidden" or (name == "query" and "key" not in self.names):
                return normal(batch, SIZE)
            if name in ("query", "key", "value") and self.public is tsallis.entmax_attention:
                return normal(batch, 2, LENGTH, SIZE)
            if name in ("query", "key", "value", "memory", "src", "tgt", "x", "values"):
                return normal(batch, LENGTH, SIZE)
            if name == "visible":
                return torch.arange(1, LENGTH + 1)
            if name == "mask":
                return torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (batch, 1), generator=generator)
            raise LookupError(f"no values for the argument {name}: enter them here, or in FIXED or OPTIONS")

        return tuple(draw(name) for name in self.names)


def find(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr({"": tsallis, "compat": compat, "nn": nn}[module], attribute)


def required(made: Any) -> dict[str, Any]:
    return {k: FIXED[k] for k in inspect.signature(made).parameters if k in FIXED}


def public_calls() -> Iterator[str]:
    """Yield the name of every public function that returns tensors, and of every public module."""
    for prefix, names in (("", tsallis.__all__), ("compat.", compat.__all__), ("nn.", nn.__all__)):
        for name in names:
            public = find(prefix + name)
            if inspect.isclass(public):
                found = issubclass(public, torch.nn.Module)
            else:
                found = callable(public) and str(inspect.signature(public).return_annotation) in TENSORS
            if found:
                yield prefix + name


TENSORS = ("Tensor", "MapResult", "Tensor | tuple[Tensor, Tensor]", "Tensor | tuple[Tensor, ...]")


def options_of(name: str) -> dict[str, list[Any]]:
    public = find(name)
    parameters = dict(inspect.signature(public).parameters)
    if inspect.isclass(public):
        parameters |= inspect.signature(public.forward).parameters
    excluded = {x for argument, names in NO_OPTIONS.items() if argument in parameters for x in names}
    if name == "nn.MultiheadAttention":
        excluded = set()
    found = {
        k: OPTIONS[k] for k, p in parameters.items() if k in OPTIONS and (k == "alpha" or p.default is not p.empty)
    }
    found = {k: v for k, v in found.items() if k not in excluded}
    if str(getattr(parameters.get("alpha"), "annotation", "")) == "float":
        found["alpha"] = [1.5, 1.25, 2.0, 2.5]
    if str(getattr(parameters.get("tau"), "annotation", "")) == "float":
        found["tau"] = [0.1, 0.3]
    if "normmax" in name.lower():
        found["alpha"] = [2.0, 1.25, 2.5]
    if {"num_heads", "nhead"} & parameters.keys() and "alpha" in found:
        found["alpha"] = [1.5, 1.0, 1.25, 2.0, 2.5, torch.tensor([1.3, 1.7]), "learned"]
    if name.startswith("linear"):
        found["bias"] = [None, torch.linspace(-1, 1, CLASSES)]
    return found


def valid(options: dict[str, Any]) -> bool:
    """Return whether these options can be combined."""
    if options.get("positions", "none") != "none" and options.get("add_zero_attn"):
        return False
    return not (options.get("src_mask") is not None and options.get("is_causal"))


def jit_trace(case: Case, inputs: tuple[Tensor, ...], folder: Path) -> Callable[..., Any]:
    """Trace with tensors that need gradients, as in training, then save and load the trace."""
    leaves = tuple(x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs)
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(case, leaves), file)
    file.seek(0)
    return torch.jit.load(file)


def proxy(case: Case, inputs: tuple[Tensor, ...], folder: Path) -> Callable[..., Any]:
    return make_fx(case)(*inputs)


def fake_proxy(case: Case, inputs: tuple[Tensor, ...], folder: Path) -> Callable[..., Any]:
    return make_fx(case, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)


def functionalized(case: Case, inputs: tuple[Tensor, ...], folder: Path) -> Callable[..., Any]:
    return make_fx(torch.func.functionalize(case))(*inputs)


def exported(case: Case, inputs: tuple[Tensor, ...], folder: Path) -> Callable[..., Any]:
    return torch.export.export(case, inputs, strict=False).module()


def exported_strictly(case: Case, inputs: tuple[Tensor, ...], folder: Path) -> Callable[..., Any]:
    return torch.export.export(case, inputs, strict=True).module()


def onnx_by_tracing(case: Case, inputs: tuple[Tensor, ...], folder: Path) -> Callable[..., Any]:
    onnxruntime = pytest.importorskip("onnxruntime")
    path, names = folder / "case.onnx", [f"x{i}" for i in range(len(inputs))]
    dynamic = {name: {0: "batch"} for name, kind in zip(names, case.names, strict=True) if kind not in UNBATCHED}
    torch.onnx.export(case, inputs, path, dynamo=False, input_names=names, dynamic_axes=dynamic)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    read = {x.name for x in session.get_inputs()}

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        fed = {n: x.numpy() for n, x in zip(names, tensors, strict=True) if n in read}
        return tuple(torch.from_numpy(x) for x in session.run(None, fed))

    return call


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def watched(case: Case, inputs: tuple[Tensor, ...], folder: Path) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        with Watch():
            return case(*tensors)

    return call


UNBATCHED = ("weight", "visible")
QUICK = (jit_trace, proxy, functionalized, watched)
SLOW = (fake_proxy, exported, exported_strictly, onnx_by_tracing)
ANY_BATCH = (jit_trace, onnx_by_tracing, watched)


def rows(recorders: Any) -> list[Any]:
    """Return cases that cover all pairs of a recorder and an option's value, and all pairs of values."""
    found = []
    for name in public_calls():
        options = options_of(name)
        keys = list(options)
        fitting = lambda _, *values, keys=keys: valid(dict(zip(keys, values, strict=True)))  # noqa: E731
        for recorder, *values in pairwise(recorders, *options.values(), valid=fitting):
            chosen = dict(zip(keys, values, strict=True))
            shown = ",".join(f"{k}={tuple(v.shape) if isinstance(v, Tensor) else v}" for k, v in chosen.items())
            found.append(pytest.param(name, chosen, recorder, id=f"{name}-{recorder.__name__}-{shown}"))
    return found


def refusal(name: str, options: dict[str, Any], recorder: Any) -> tuple[type[Exception], str] | None:
    """Return the expected error and words of its message if recording is impossible, else None."""
    if "Continuous" not in name or recorder is watched:
        return None
    if options["points"] is None:
        if recorder is exported_strictly:  # torch.compile leaves the expectation out of its graph
            return torch._dynamo.exc.Unsupported, "_expect"
        return NotImplementedError, "pass points="
    return (torch.onnx.errors.UnsupportedOperatorError, "cholesky|mT") if recorder is onnx_by_tracing else None


def check(name: str, options: dict[str, Any], recorder: Any, folder: Path) -> None:
    torch.manual_seed(0)
    case = Case(name, options).eval()
    example, others = case.inputs(2, 0), case.inputs(3 if recorder in ANY_BATCH else 2, 1)
    if refused := refusal(name, options, recorder):
        with pytest.raises(refused[0], match=refused[1]):
            recorder(case, example, folder)
        return
    record = recorder(case, example, folder)
    expected, actual = case(*others), record(*others)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other.detach() if recorder is onnx_by_tracing else other, rtol=1e-4, atol=1e-5)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = case(*(mode.from_tensor(x) for x in others))
    assert [(x.shape, x.dtype) for x in fake] == [(x.shape, x.dtype) for x in expected]
    if recorder is jit_trace and expected and expected[0].requires_grad | others[0].is_floating_point():
        results = []
        for function in (record, case):
            leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in others]
            learning = [x for x in leaves if x.requires_grad]
            loss = function(*leaves)[0]
            loss = (loss * torch.linspace(-1, 1, loss.numel()).view(loss.shape)).sum()
            results.append(torch.autograd.grad(loss, learning, allow_unused=True))
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "options", "recorder"), rows(QUICK))
def test_quick_recorders_match_eager_for_new_inputs(name: str, options: Any, recorder: Any, tmp_path: Path) -> None:
    check(name, options, recorder, tmp_path)


@pytest.mark.filterwarnings("ignore")
# The two excluded modules use only PyTorch's operations.
@pytest.mark.parametrize("name", [x for x in public_calls() if x not in ("nn.LengthScale", "nn.PerHeadAlpha")])
def test_jit_trace_raises_in_forward_mode(name: str) -> None:
    case = Case(name, {k: 40 if k == "points" else values[0] for k, values in options_of(name).items()}).eval()
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=r"jit\.trace can't record"):
        torch.jit.trace(case, case.inputs(2, 0))
    assert torch._C._get_tracing_state() is None


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Any]]] = {
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1],
    "jacfwd": torch.func.jacfwd,
    "jacrev": torch.func.jacrev,
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "hessian": lambda f: torch.func.hessian(lambda x: f(x).sum()),
    "vmap": torch.func.vmap,
    "functionalize": torch.func.functionalize,
}
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "entmax": tsallis.entmax,
    "entmax_loss": lambda x: tsallis.entmax_loss(x, torch.tensor([0, 1, 2])),
    "alpha_relu": tsallis.alpha_relu,
    "escort": lambda x: tsallis.escort(x, 0.5),
    "entmax_attention": lambda x: tsallis.entmax_attention(x, x, x),
    "linear_entmax_loss": lambda x: tsallis.linear_entmax_loss(x, x, torch.tensor([0, 1, 2])),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_jit_trace_raises_inside_torch_func(transform: str, function: str) -> None:
    with pytest.raises(NotImplementedError, match=r"jit\.trace can't record"):
        torch.jit.trace(TRANSFORMS[transform](FUNCTIONS[function]), torch.randn(3, 3))
    assert torch._C._get_tracing_state() is None


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_records_offsets_that_are_computed_from_sizes() -> None:
    """Sizes are tensors under this tracer."""

    def attend(q: Tensor, k: Tensor) -> Any:
        return tsallis.entmax_attention(q, k, k, is_causal=True, query_offset=k.shape[-2] - q.shape[-2])

    def step(x: Tensor) -> Tensor:
        cache = nn.KeyValueCache()
        module(earlier, earlier, earlier, is_causal=True, need_weights=False, cache=cache)
        return module(x, x, x, is_causal=True, need_weights=False, cache=cache)[0]

    module = nn.MultiheadAttention(SIZE, 2, batch_first=True).eval().requires_grad_(False)
    earlier = torch.randn(2, 3, SIZE)
    for function, shapes in ((attend, ((2, 2, SIZE), (2, 5, SIZE))), (step, ((2, 1, SIZE),))):
        first, second = ([torch.randn(shape) for shape in shapes] for _ in range(2))
        traced = torch.jit.trace(function, tuple(first), check_trace=False)  # the cache changes between calls
        torch.testing.assert_close(traced(*second), function(*second))
    with pytest.raises(TypeError, match="query_offset must contain integers, got"):
        torch.jit.trace(lambda q: tsallis.entmax_attention(q, q, q, query_offset=q.sum()), torch.ones(1, 2, SIZE))


class Applied(torch.nn.Module):
    """A function as a module, because torch.export requires one."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.forward = function


@pytest.mark.parametrize("transform", ["jvp", "jacrev", "grad"])
def test_export_raises_for_derivatives(transform: str) -> None:
    with pytest.raises(NotImplementedError, match=r"torch\.export can't record"):
        torch.export.export(Applied(TRANSFORMS[transform](tsallis.entmax)), (torch.randn(3, 3),), strict=False)


def test_compiled_vmap_matches_eager() -> None:
    x, alphas = torch.randn(3, 4), torch.tensor([1.0, 1.5, 2.0])
    batched = torch.func.vmap(lambda row, alpha: tsallis.entmax(row, alpha))
    torch._dynamo.reset()
    compiled = torch.compile(batched, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, alphas), batched(x, alphas))
    torch.testing.assert_close(compiled(x, alphas), tsallis.entmax(x, alphas.unsqueeze(1)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "options", "recorder"), rows(SLOW))
def test_slow_recorders_match_eager_for_new_inputs(name: str, options: Any, recorder: Any, tmp_path: Path) -> None:
    check(name, options, recorder, tmp_path)
