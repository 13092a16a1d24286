"""Compute attention exactly from a scan of 8-bit keys, with the compiled kernels; see `csrc/screening.h`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tsallis.ops import cpu
from tsallis.ops.arguments import AttentionArgs
from tsallis.ops.cpu import huge_pages
from tsallis.ops.cpu.attention import allocate, call_fields, contiguous_rows
from tsallis.ops.cpu.structs import Attention, Heads, Screen

BLOCK_KEYS = 16
BOUND = 1.0  # factor of the error bounds; tests lower it and must notice
MIN_KEYS = 2048  # with fewer keys a scan saves little or nothing
MAX_QUERIES = 3  # more queries are faster as a dense product
SAMPLE = 1024  # number of keys from which the scale of each channel is chosen


class ScreenedRows:
    """Rows in 8 bits with bounds of their errors, made from keys [batch, heads, keys, size] in float32.

    A row takes `size` bytes, rounded up to a multiple of 4, and 4 bytes for its scale and its error.
    """

    def __init__(self) -> None:
        self.length = 0
        self.rows: Tensor | None = None
        self.mean = self.channel = self.longest = self.pauses = torch.empty(0)

    def update(self, key: Tensor) -> None:
        """Encode the keys that follow those of earlier calls; keys may be shorter than before, but not different."""
        batch, heads, keys, size = key.shape
        needed = -(-keys // BLOCK_KEYS) * BLOCK_KEYS * (-(-size // 4) * 4 + 4)
        if self.rows is None or self.rows.shape[-1] < needed:
            # Encode all keys again: the scales of the channels suit the new keys, too.
            capacity = needed if self.rows is None else max(needed, 2 * self.rows.shape[-1])
            memory = huge_pages.allocate(batch * heads * capacity // 4)
            self.rows = memory.view(torch.uint8).view(batch, heads, capacity)
            self.mean, self.channel = _channels(key)
            self.longest, self.length = key.new_zeros(batch, heads), 0
        if keys > self.length:
            fields = {"batch": batch, "key_heads": heads, "keys": keys, "size": size, "key": _strided(key)}
            self._run("screen", Attention(**fields), begin=self.length)
            self.length = keys

    def attend(self, args: AttentionArgs) -> tuple[Tensor, Tensor]:
        """Return the output of attention and the number of keys per query, as `attention` does."""
        args = contiguous_rows(args)
        self.update(args.key)
        output = args.query.new_empty(*args.query.shape[:-1], args.value.shape[-1])
        support = torch.empty(args.query.shape[:-1], dtype=torch.int32, device="cpu")
        if self.pauses.shape != args.query.shape[:2]:
            self.pauses = torch.zeros(args.query.shape[:2], dtype=torch.int32, device="cpu")
        saved = allocate(args, output, support, False)
        attention = Attention(**call_fields(args, saved, tile_rows=1, out=_strided(output)))
        self._run("screened", attention, pauses=self.pauses.data_ptr())
        return output, support

    def lists(self, args: AttentionArgs) -> tuple[Tensor, Tensor, Tensor]:
        """Return the supports of queries [1, heads, 1, size]: counts [heads], keys and weights [heads, keys].

        A count is -1 if the scores of a query are too flat for a scan, or not finite. The query's list is then missing.
        """
        args = contiguous_rows(args)
        self.update(args.key)
        rows, keys = args.query.shape[1], args.key.shape[2]
        count, index = (torch.empty(*shape, dtype=torch.int32, device="cpu") for shape in ((rows,), (rows, keys)))
        weight = args.query.new_empty(rows, keys)
        saved = allocate(args, weight, count, False)._replace(columns=index, weight=weight)
        self._run("screened", Attention(**call_fields(args, saved, tile_rows=1)))
        return count, index, weight

    def weights(self, args: AttentionArgs) -> Tensor | None:
        """Return the weights [1, heads, 1, keys] of queries [1, heads, 1, size]; None if a scan is not possible."""
        if args.query.shape[0] != 1 or args.query.shape[2] != 1:
            return None
        counts, index, weight = self.lists(args)
        if int(counts.min()) < 0:
            return None
        longest = int(counts.max())
        valid = torch.arange(longest, device="cpu") < counts.unsqueeze(1)
        index, weight = index[:, :longest].long().where(valid, 0), weight[:, :longest].where(valid, 0)
        dense = weight.new_zeros(1, len(counts), 1, args.key.shape[2])
        return dense.scatter_add_(3, index[None, :, None], weight[None, :, None])

    def layer(self, weight: Tensor, bias: Tensor, alpha: float) -> Screen:
        """Return the structure with which a decoder scans its output layer, until it pauses.

        Args:
            weight: Weight [symbols, size].
            bias: Bias [symbols].
            alpha: Alpha above 1 and up to 2.
        """
        symbols, size = weight.shape
        key, mask = weight[None, None], bias.view(1, 1, 1, -1)
        self.pauses, self._memory = torch.zeros(1, dtype=torch.int32, device="cpu"), (key, mask)
        self.update(key)
        query, value = weight.new_empty(1, 1, 1, size), weight.new_empty(1, 1, symbols, 0)
        args = AttentionArgs(query, key, value, None, mask, None, None, None, None, alpha, 1.0, False, 0.0)
        saved = allocate(args, query, self.pauses, False)
        return Screen(*self._arguments(Attention(**call_fields(args, saved, tile_rows=1)), self.pauses.data_ptr()))

    def select(self, index: Tensor, keys: int) -> ScreenedRows:
        """Return a copy with selected batch elements and their first `keys` keys."""
        chosen = ScreenedRows()
        if self.rows is not None:
            chosen.rows, chosen.mean, chosen.channel, chosen.longest = (
                x.index_select(0, index) for x in (self.rows, self.mean, self.channel, self.longest)
            )
            chosen.length = min(self.length, keys)
        return chosen

    def _run(self, name: str, attention: Attention, begin: int = 0, pauses: int | None = None) -> None:
        cpu.run(name, *self._arguments(attention, pauses, begin))

    def _arguments(self, attention: Attention, pauses: int | None, begin: int = 0) -> tuple[Any, ...]:
        assert self.rows is not None
        tensors = cpu.pointers(self.mean, self.channel, self.longest)
        return attention, self.rows.data_ptr(), self.rows.shape[-1], *tensors, pauses, begin, BOUND


def screens(args: AttentionArgs) -> bool:
    """Return whether a scan may be faster than the dense kernel, and computes the same."""
    fits = MIN_KEYS <= args.key.size(2) < 1 << 31 and args.query.size(2) <= MAX_QUERIES
    return fits and args.query.dtype == torch.float32


def _strided(x: Tensor) -> Heads:
    return Heads(x.data_ptr(), *x.stride()[:3])


def _channels(key: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the mean of some keys and a power of two per channel [batch, heads, size].

    Candidates of the scales are the deviations to the powers 0, 1/2 and 1. The best one has the least product of the
    keys' largest number and the queries' norm, where all channels of a query are equally large.
    """
    keys = key.shape[2]
    sample = key.detach()[:, :, :: -(-keys // SAMPLE)].double()
    sample = torch.where(sample.abs().amax(-1, keepdim=True) < 1e30, sample, 0)  # also replaces NaN
    mean = sample.mean(2, keepdim=True).float().double()
    sample = sample - mean
    deviation = sample.square().mean(2, keepdim=True).sqrt()
    deviation = (deviation / deviation.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-33)).clamp(min=1e-3)
    best = torch.ones_like(deviation)
    lowest_cost = torch.full_like(deviation[..., :1], torch.inf)
    for power in (0, 0.5, 1):
        scale = torch.exp2(torch.log2(deviation).mul(power).round())
        cost = (sample / scale).abs().amax(-1, keepdim=True).mean(2, keepdim=True) * scale.norm(dim=-1, keepdim=True)
        best, lowest_cost = torch.where(cost < lowest_cost, scale, best), torch.minimum(cost, lowest_cost)
    return mean[:, :, 0].float(), best[:, :, 0].float()
