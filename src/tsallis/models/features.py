"""Find features, such as morphological tags, among source symbols, and attend to them separately."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tsallis.errors import check_integer
from tsallis.functional import entmax
from tsallis.nn import GlobalAttention
from tsallis.ops.constants import ConstantBuffers
from tsallis.symbols import FIRST


class Features(ConstantBuffers):
    """Base class of modules that know which source symbols are features.

    Subclasses have parameters. The constant table moves with these parameters.

    Raises:
        ValueError: If a feature is special or not in the vocabulary.
    """

    table: Tensor

    def set_features(self, src_vocab: int, features: Sequence[int], like: Tensor) -> None:
        """Set which of `src_vocab` source symbols are features, on the device of the parameter `like`."""
        features = [check_integer("a feature", number, 0) for number in features]
        if wrong := [number for number in features if not FIRST <= number < src_vocab]:
            raise ValueError(f"features must be source symbols from {FIRST} to {src_vocab - 1}, got {wrong[0]}")
        table = torch.zeros(src_vocab + 1, dtype=torch.bool, device="cpu")
        table[list(features)] = True
        self.register_constant("table", table, like.device)

    def mask(self, src: Tensor) -> Tensor:
        """Return which symbols [...] are features; symbols outside the vocabulary are not."""
        return self.table[src.clamp(max=len(self.table) - 1)]


class FeatureTypes(Features):
    """Embeddings of the two types of source symbols, and positions that do not depend on the order of features.

    All features have position 0. The other symbols have positions 1, 2, ... (Wu et al. 2021, sec. 3).

    Args:
        src_vocab: Number of source symbols.
        features: Source symbols that are features.
        d_model: Size of the embeddings.

    Example:
        >>> positions, _ = FeatureTypes(7, [4, 6], 8)(torch.tensor([[6, 4, 5, 5]]))
        >>> positions
        tensor([[0, 0, 1, 2]])
    """

    def __init__(self, src_vocab: int, features: Sequence[int], d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, d_model) * d_model**-0.5)
        self.set_features(src_vocab, features, self.weight)

    def forward(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """Return the position of each symbol [batch, src], and the embedding of its type [batch, src, d_model]."""
        mask = self.mask(src)
        return (~mask).cumsum(1).masked_fill(mask, 0), self.weight[mask.long()]


class GatedAttention(Features):
    r"""Attention to symbols and to features, each with its own weights, combined by a gate.

    .. math:: \tilde h = g_1 \tanh(W_1 [c_1; s]) + g_2 \tanh(W_2 [c_2; s]), \qquad
              g = \mathrm{entmax}_\alpha(U [c_1; c_2; s] + b)

    (Peters and Martins 2020, *DeepSPIN*.) :math:`c_1` and :math:`c_2` are the contexts of the state :math:`s` in
    symbols and in features. A source without features has :math:`g_1 = 1`.

    This module contains the part for features. The model has the attention to symbols and :math:`W_1`.

    Args:
        src_vocab: Number of source symbols.
        features: Source symbols that are features.
        d_model: Size of states and of the memory.
        transform: Activation of attention and gate.
        alpha: Alpha of "entmax".
        scorer: Score function, see :class:`tsallis.nn.GlobalAttention`.
    """

    def __init__(
        self, src_vocab: int, features: Sequence[int], d_model: int, transform: str, alpha: float, scorer: str
    ) -> None:
        super().__init__()
        self.attention = GlobalAttention(d_model, d_model, transform, alpha, scorer)
        self.combine = nn.Linear(2 * d_model, d_model, bias=False)
        self.gate = nn.Linear(3 * d_model, 2)
        self.set_features(src_vocab, features, self.gate.weight)

    def keys(self, memory: Tensor, features: Tensor, symbol_keys: Tensor) -> Tensor:
        """Return keys [batch, src, d_model] of all positions, given the keys of symbols."""
        return torch.where(features.unsqueeze(-1), self.attention.keys(memory), symbol_keys)

    def forward(
        self,
        states: Tensor,
        memory: Tensor,
        mask: Tensor,
        features: Tensor,
        keys: Tensor,
        attention: Callable[..., tuple[Tensor, Tensor]],
        mix: Callable[[Tensor, Tensor], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return attentional states and weights of states [batch, d_model] or [batch, tgt, d_model].

        Args:
            states: Decoder states.
            memory: Encoder states [batch, src, d_model].
            mask: Mask of the source [batch, src].
            features: Mask of features [batch, src].
            keys: Result of :meth:`keys`.
            attention: Attention to symbols, called as :class:`tsallis.nn.GlobalAttention` is.
            mix: Function from states and contexts to attentional states of symbols.
        """
        masks = mask & ~features, mask & features
        first_context, first_weights = attention(states, memory, masks[0], keys)
        context, weights = self.attention(states, memory, masks[1], keys)
        available = torch.stack([part.any(1) for part in masks], -1)  # [batch, 2]
        scores = self.gate(torch.cat([first_context, context, states], -1))
        gates = entmax(scores, self.attention.alpha, mask=available if states.dim() == 2 else available.unsqueeze(1))
        first, second = gates.unsqueeze(-2).unbind(-1)  # [..., 1] each
        feature_states = torch.tanh(self.combine(torch.cat([context, states], -1)))
        return first * mix(states, first_context) + second * feature_states, first * first_weights + second * weights
