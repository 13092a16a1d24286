"""A table of every differentiable operation as a function of tensors, each with its float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tsallis
from contract.maps import FUNCTIONS
from tsallis.ops import reference

Compute = Callable[..., Tensor]
SHAPE = (2, 3, 5)  # shape of the scores


@dataclass(frozen=True, eq=False)
class Operation:
    """`ours(*inputs)` should have the values and derivatives of `exact(*inputs)`."""

    name: str
    ours: Compute
    exact: Compute
    shapes: dict[str, tuple[int, ...]]  # shapes of the inputs; an input named "alpha" lies between 1 and 2
    tiled: bool = False  # has a separate implementation in tiles or chunks
    traced: bool = False  # also runs in the slow tests of compilers: one operation of each kind
    scale: float = 1.5

    def __str__(self) -> str:
        return self.name

    def inputs(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)

        def draw(name: str, shape: tuple[int, ...]) -> Tensor:
            if name == "alpha":
                return torch.rand(shape, generator=generator, dtype=torch.float64) * 0.9 + 1.05
            return torch.randn(shape, generator=generator, dtype=torch.float64) * self.scale

        return tuple(draw(name, shape).to(dtype) for name, shape in self.shapes.items())


def along(dim: int, function: Compute) -> Compute:
    """Apply a reference for the last dimension along `dim`; alpha broadcasts to the scores as in the library."""

    def compute(scores: Tensor, *alpha: Tensor) -> Tensor:
        sizes = list(scores.shape)
        sizes[dim] = 1
        rows = scores.movedim(dim, -1)
        moved = [a.expand(sizes).movedim(dim, -1) for a in alpha]
        out = function(rows, *moved)
        return out if out.shape != rows.shape else out.movedim(-1, dim)

    return compute


def masked(scores: Tensor) -> Tensor:
    """Return a mask that excludes some entries and one whole row."""
    mask = torch.ones(scores.shape, dtype=torch.bool)
    mask[0, 1], mask[1, 0, 2:], mask[1, 2, 0] = False, False, False
    return mask


MAPS = [
    *(
        Operation(
            f"entmax alpha={alpha}",
            lambda z, alpha=alpha: tsallis.entmax(z, alpha),
            lambda z, alpha=alpha: reference.entmax(z, alpha),
            {"scores": SHAPE},
            traced=alpha in (1.0, 1.5),
        )
        for alpha in (0.25, 1.0, 1.3, 1.5, 2.0, 2.5)
    ),
    Operation(
        "entmax below one",
        lambda z, a: tsallis.entmax(z, a / 2),
        lambda z, a: reference.entmax(z, a / 2),
        {"scores": SHAPE, "alpha": ()},
    ),
    *(
        Operation(
            f"entmax alpha{list(shape)} dim={dim}",
            lambda z, a, dim=dim: tsallis.entmax(z, a, dim),
            along(dim, reference.entmax),
            {"scores": SHAPE, "alpha": shape},
            traced=shape in ((3, 1), (1, 5)),
        )
        for dim, shapes in (
            (-1, [(), (1,), (1, 1), (1, 1, 1), (3, 1), (2, 1, 1), (2, 3, 1)]),
            (1, [(), (1, 1), (1, 5), (2, 1, 1), (2, 1, 5)]),
            (0, [(1, 1, 1), (3, 5), (3, 1)]),
        )
        for shape in shapes
    ),
    Operation(
        "entmax masked alpha[]",
        lambda z, a: tsallis.entmax(z, a, mask=masked(z)),
        lambda z, a: reference.entmax(z.masked_fill(~masked(z), -torch.inf), a),
        {"scores": SHAPE, "alpha": ()},
    ),
    Operation(
        "entmax of long rows",
        lambda z: tsallis.entmax(z, 1.7),
        lambda z: reference.entmax(z, 1.7),
        {"scores": (2, 300)},
        scale=3.0,
    ),
    Operation("sparsemax", tsallis.sparsemax, lambda z: reference.entmax(z, 2.0), {"scores": SHAPE}),
    Operation(
        "entmax15 dim=1",
        lambda z: tsallis.entmax15(z, 1),
        along(1, lambda z: reference.entmax(z, 1.5)),
        {"scores": SHAPE},
    ),
    Operation(
        "normmax",
        lambda z: tsallis.normmax(z, 1.5, 1),
        along(1, lambda z: reference.normmax(z, 1.5)),
        {"scores": SHAPE},
        traced=True,
    ),
    *(
        Operation(
            f"budgeted_entmax alpha{list(shape)}",
            lambda z, a: tsallis.budgeted_entmax(z, a, 2),
            along(-1, lambda z, a: reference.budgeted_entmax(z, a, 2)),
            {"scores": SHAPE, "alpha": shape},
            traced=shape == (),
            scale=0.4,  # small, so that more than one entry depends on the scores
        )
        for shape in [(), (3, 1), (2, 3, 1)]
    ),
    *(
        Operation(
            f"tsallis_entropy alpha{list(shape)}",
            lambda z, a: tsallis.tsallis_entropy(z.softmax(-1), a),
            along(-1, lambda z, a: reference.tsallis_entropy(z.softmax(-1), a)),
            {"scores": SHAPE, "alpha": shape},
            traced=shape == (),
        )
        for shape in [(), (3, 1), (2, 3, 1)]
    ),
    Operation(
        "escort",
        lambda z: tsallis.escort(z.softmax(-1), 0.7),
        lambda z: (z.softmax(-1) ** 0.7) / (z.softmax(-1) ** 0.7).sum(-1, keepdim=True),
        {"scores": SHAPE},
        traced=True,
    ),
    Operation(
        "alpha_relu",
        lambda z, tau: tsallis.alpha_relu(z, 1.5, tau),
        lambda z, tau: reference.alpha_relu(z, 1.5, tau),
        {"scores": SHAPE, "tau": ()},
        traced=True,
    ),
]
# All maps of the contract that have no row above.
MAPS += [
    Operation(m.function, m.ours, m.reference, {"scores": SHAPE}, traced=True)
    for m in FUNCTIONS.values()
    if m.function not in {row.name.split()[0] for row in MAPS}
]

TARGET = torch.tensor([[0, 4, 2], [1, -100, 3]])
COUNTED = TARGET >= 0
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5], dtype=torch.float64)


def each_loss(scores: Tensor, alpha: Any) -> Tensor:
    return torch.where(COUNTED, reference.entmax_loss(scores, TARGET.clamp(min=0), alpha), 0)


def smoothed(scores: Tensor, alpha: Tensor) -> Tensor:
    """Compute the loss with class weights and label smoothing, reduced as in `cross_entropy`."""
    classes = scores.shape[-1]
    every = torch.stack([reference.entmax_loss(scores, torch.full_like(TARGET, c), alpha) for c in range(classes)], -1)
    share = WEIGHT[TARGET.clamp(min=0)]
    own = every.gather(-1, TARGET.clamp(min=0).unsqueeze(-1)).squeeze(-1) * share
    loss = torch.where(COUNTED, 0.8 * own + 0.2 * (every * WEIGHT).mean(-1), 0)
    return loss.sum() / share[COUNTED].sum()


LOSSES = [
    *(
        Operation(
            f"entmax_loss alpha={alpha}",
            lambda z, alpha=alpha: tsallis.entmax_loss(z, TARGET, alpha, reduction="none"),
            lambda z, alpha=alpha: each_loss(z, alpha),
            {"scores": SHAPE},
        )
        for alpha in (0.5, 1.0, 1.5, 2.0)
    ),
    *(
        Operation(
            f"entmax_loss alpha{list(shape)}",
            lambda z, a: tsallis.entmax_loss(z, TARGET, a, reduction="none"),
            along(-1, each_loss),
            {"scores": SHAPE, "alpha": shape},
            traced=shape == (3, 1),
        )
        for shape in [(), (1,), (3, 1), (2, 1, 1), (2, 3, 1)]
    ),
    Operation(
        "entmax_loss weighted and smoothed",
        lambda z, a: tsallis.entmax_loss(z, TARGET, a, weight=WEIGHT, label_smoothing=0.2),
        smoothed,
        {"scores": SHAPE, "alpha": ()},
    ),
    Operation(
        "entmax_loss of probabilities",
        lambda z, y, a: tsallis.entmax_loss(z, y.softmax(-1), a),
        lambda z, y, a: reference.entmax_loss(z, y.softmax(-1), a.expand(2, 3, 1)).mean(),
        {"scores": SHAPE, "target": SHAPE, "alpha": (3, 1)},
    ),
    Operation(
        "alpha_relu_loss",
        lambda z: tsallis.alpha_relu_loss(z, TARGET, 1.5, 0.2, reduction="none"),
        lambda z: torch.where(COUNTED, reference.alpha_relu_loss(z, TARGET.clamp(min=0), 1.5, 0.2), 0),
        {"scores": SHAPE},
        traced=True,
    ),
    Operation(
        "alpha_relu_loss tau[]",
        lambda z, tau: tsallis.alpha_relu_loss(z, TARGET, 1.4, tau, reduction="none"),
        lambda z, tau: torch.where(COUNTED, reference.alpha_relu_loss(z, TARGET.clamp(min=0), 1.4, tau), 0),
        {"scores": SHAPE, "tau": ()},
    ),
    *(
        Operation(
            f"linear_entmax_loss alpha{list(shape)} {reduction}",
            lambda h, w, b, a, reduction=reduction: tsallis.linear_entmax_loss(
                h, w, TARGET, a, bias=b, reduction=reduction
            ),
            lambda h, w, b, a, reduction=reduction: reduce(along(-1, each_loss)(F.linear(h, w, b), a), reduction),
            {"hidden": (2, 3, 4), "weight": (5, 4), "bias": (5,), "alpha": shape},
            tiled=True,
            traced=shape == (),
            scale=1.0,
        )
        for shape, reduction in [((), "sum"), ((1,), "none"), ((3, 1), "mean"), ((2, 3, 1), "none")]
    ),
    Operation(
        "linear_alpha_relu_loss",
        lambda h, w, b: tsallis.linear_alpha_relu_loss(h, w, TARGET, 1.5, 0.2, bias=b, reduction="sum"),
        lambda h, w, b: (reference.alpha_relu_loss(h @ w.T + b, TARGET.clamp(min=0), 1.5, 0.2) * COUNTED).sum(),
        {"hidden": (2, 3, 4), "weight": (5, 4), "bias": (5,)},
        tiled=True,
        traced=True,
        scale=1.0,
    ),
]


def reduce(loss: Tensor, reduction: str) -> Tensor:
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / COUNTED.sum()}[reduction]


def attention_formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor = 1.5,
    attn_mask: Tensor | None = None,
    key_lengths: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    slopes: Tensor | None = None,
    query_offset: int = 0,
    key_norms: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute output and weights by the formula in float64."""
    group = query.shape[-3] // key.shape[-3]
    key, value = (x.double().repeat_interleave(group, -3) for x in (key, value))
    scores = query.double() @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    i, j = query_offset + torch.arange(scores.shape[-2]).unsqueeze(-1), torch.arange(scores.shape[-1])
    if slopes is not None:
        scores = scores - slopes[..., None, None] * (i - j).abs()
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask.double()
    if is_causal:
        scores = scores.masked_fill(j > i, -torch.inf)
    if key_lengths is not None:
        scores = scores.masked_fill(j >= torch.as_tensor(key_lengths)[..., None, None, None], -torch.inf)
    if isinstance(alpha, Tensor) and alpha.dim():
        alpha = alpha[..., None, None]
    weights = reference.entmax(scores, alpha)
    return weights @ value, weights


def attention(
    name: str, traced: bool = False, options: dict[str, Any] | None = None, **shapes: tuple[int, ...]
) -> Operation:
    """Create an operation whose inputs are the arguments with a shape; queries, keys and values have default shapes."""
    shapes = {**dict.fromkeys(("query", "key", "value"), (2, 2, 4, 3)), **shapes}

    def call(function: Callable[..., Any]) -> Compute:
        return lambda *inputs: function(**dict(zip(shapes, inputs, strict=True)), **(options or {}))

    exact = call(lambda **arguments: attention_formula(**arguments)[0])
    return Operation(name, call(tsallis.entmax_attention), exact, shapes, tiled=True, traced=traced)


ATTENTION = [
    attention("attention"),
    *(attention(f"attention alpha{list(shape)}", shape == (2,), alpha=shape) for shape in [(), (1,), (2,), (2, 2)]),
    attention("attention causal", options={"is_causal": True}),
    attention("attention of some keys", options={"key_lengths": [3, 1]}),
    attention("attention with slopes", options={"is_causal": True, "query_offset": 1}, slopes=(2,)),
    *(
        attention(f"attention alpha[2] mask{list(shape)}", alpha=(2,), attn_mask=shape)
        for shape in [(4, 4), (2, 1, 4), (2, 1, 1, 4), (2, 2, 4, 4)]
    ),
    attention(
        "attention of groups",
        options={"enable_gqa": True, "is_causal": True},
        query=(2, 4, 4, 3),
        value=(2, 2, 4, 2),
        alpha=(4,),
    ),
]

OPERATIONS = [*MAPS, *LOSSES, *ATTENTION]
