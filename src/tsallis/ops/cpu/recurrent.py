"""Pack the decoder of an LSTM or a GRU for compiled code; `tsallis.ops.cpu.decoding` decodes.

The state of a decoder row has the address of what its last step has written: states, cells and output.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.ops.arguments import OutputWeights, RecurrentWeights
from tsallis.ops.cpu import rank_fields
from tsallis.ops.cpu.decoding import VECTOR, DecoderSteps, PackedWeights, pack, pack_output
from tsallis.ops.cpu.structs import KINDS, Decoder


def computes(weights: RecurrentWeights) -> bool:
    """Return whether the kernels support this alpha."""
    return 1 <= weights.alpha <= 2


class CompiledDecoder(PackedWeights, DecoderSteps):
    """Compiled decoder with packed weights, including the output layer.

    Args:
        weights: Weights that :func:`computes` accepts; all but the embedding are copied.
        output: Output layer with an alpha of at most 2.
    """

    def __init__(self, weights: RecurrentWeights, output: OutputWeights) -> None:
        d, d_embedding = len(weights.combine), weights.embedding.shape[1]
        self.feeding = weights.layers[0][0].shape[1] > d_embedding
        self.symbols, self.output = len(output.projection[0]), output
        alpha = torch.tensor([weights.alpha], dtype=torch.float32, device="cpu")
        query = (None, None, None) if weights.query is None else (*pack(weights.query[:2]), _pad(weights.query[2]))
        combine = pack((weights.combine, weights.combine.new_zeros(d)))
        linears = [
            linear
            for input_weight, recurrent_weight, *biases in weights.layers
            for linear in ((input_weight, biases[0]), (recurrent_weight, biases[1]))
        ]
        layers = [x for linear in linears for x in pack(linear)]
        super().__init__(weights.embedding, layers, [*query, *combine, alpha, *pack_output(output)])
        cells = 2 if weights.cell == "lstm" else 1
        self.template = Decoder(
            rank=rank_fields(self.symbols, output.alpha, output.tau),
            kind=KINDS.index(weights.cell),
            layers=len(weights.layers),
            d=d,
            hidden=len(weights.layers[0][0]),
            d_embedding=d_embedding,
            feeding=self.feeding,
            weights=self.pointers.data_ptr(),
            cache_row=(len(weights.layers) * cells + self.feeding) * d,
        )

    def start(
        self, keys: Tensor, states: Tensor, lengths: Tensor, first: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return a decoder state per source [sources, columns], and the memory that the states point to.

        Args:
            keys: Keys of the attention [sources, width, d].
            states: Encoder states [sources, width, d].
            lengths: Number of symbols per source [sources].
            first: First states of the layers, then the cells of an LSTM, [sources, d] each.
        """
        memory = torch.cat([_pad(keys), _pad(states)], -1).contiguous()
        outputs = [torch.zeros_like(first[0])] * self.feeding
        cache = torch.cat([*outputs, *first], -1).contiguous()
        row = torch.arange(len(keys), device="cpu")
        sources, caches = (x.data_ptr() + row * x[:1].numel() * x.element_size() for x in (memory, cache))
        return torch.stack([sources, lengths, torch.zeros_like(row), caches], 1), (memory, cache)


def _pad(x: Tensor) -> Tensor:
    """Pad the last dimension with zeros to whole vectors."""
    return F.pad(x, (0, -x.shape[-1] % VECTOR))
