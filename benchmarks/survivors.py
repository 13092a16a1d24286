"""Count the keys and output rows of trained models that remain after an 8-bit scan, relative to the support.

For the attention of a language model, there is one row per layer. The model reads `--length` tokens of joined texts,
possibly more than in training. For output layers, the states come from a split with teacher forcing. The survivors are
the rows whose upper bound exceeds the threshold of all lower bounds (see the page "Exact attention from 8-bit keys").

    python benchmarks/survivors.py RUN... --commit COMMIT [--length 1024] [--out FILE.csv]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from common import Row, announce, machine, table, write
from torch import Tensor
from trained import open_split

import tsallis
from tsallis.nn import MultiheadAttention
from tsallis.ops.cpu.screening import _channels
from tsallis.symbols import BOS, EOS

STATES = 500  # maximum number of states per output layer
COLUMNS = ("output", "part", "layer", "rows", "queries", "support", "survivors", "per_supported", "worst_head")


class Scan:
    """Rows [heads, rows, size] in 8 bits, which give bounds of their scores."""

    def __init__(self, rows: Tensor) -> None:
        mean, self.channel = (x.squeeze(0).unsqueeze(1).double() for x in _channels(rows.unsqueeze(0)))
        own = (rows.double() - mean) / self.channel
        scale = own.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
        self.rounded = (own / scale).round() * scale
        self.error = (own - self.rounded).norm(dim=-1)  # [heads, rows]
        self.mean = mean

    def bounds(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds of the scores [heads, queries, rows] of scaled queries [heads, queries, size]."""
        x = query.double() * self.channel
        scores = x @ self.rounded.transpose(1, 2) + (query.double() @ self.mean.transpose(1, 2))
        error = x.norm(dim=-1, keepdim=True) * self.error.unsqueeze(1)
        return scores - error, scores + error


def count(query: Tensor, rows: Tensor, alpha: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers [heads] of rows in the support and of survivors.

    `alpha` [heads] must be greater than 1. `added` is added to the scores; -inf hides a row.
    """
    low, high = (x + added for x in Scan(rows).bounds(query))
    scores = query.double() @ rows.double().transpose(1, 2) + added
    by_row = alpha.double().view(-1, 1, 1)

    def threshold(values: Tensor) -> Tensor:
        probs = tsallis.entmax(values, by_row.expand(*values.shape[:2], 1))
        top = values.amax(-1, keepdim=True)
        return top - probs.amax(-1, keepdim=True) ** (by_row - 1) / (by_row - 1)

    return (scores > threshold(scores)).sum((1, 2)), (high > threshold(low)).sum((1, 2))


class Queries:
    """A replacement of `attend` that records its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor, Any, Any, Any]] = []
        self.attend = tsallis.nn.multihead_attention.attend

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, alpha: Any, *rest: Any, **options: Any) -> Any:
        self.calls.append((query, key, alpha, options.get("slopes"), options.get("scale")))
        return self.attend(query, key, value, alpha, *rest, **options)


def attention_rows(model: Any, tokens: Tensor) -> list[Row]:
    """Return one row per layer; the queries are every eighth token of the second half."""
    recorded = Queries()
    tsallis.nn.multihead_attention.attend = recorded
    try:
        model.read(tokens)
    finally:
        tsallis.nn.multihead_attention.attend = recorded.attend
    layers = [module for module in model.modules() if isinstance(module, MultiheadAttention)]
    result, length = [], tokens.shape[1]
    for number, (layer, call) in enumerate(zip(layers, recorded.calls, strict=True)):
        query, key, alpha, slopes, scale = call
        scaled = query[0] * (query.shape[-1] ** -0.5 if scale is None else scale)
        chosen = torch.arange(length // 2, length, 8)
        distance = (chosen.unsqueeze(1) - torch.arange(length)).double()
        added = torch.where(distance < 0, -torch.inf, 0.0).expand(layer.num_heads, -1, -1)
        if slopes is not None:
            added = added - slopes.detach().double().view(-1, 1, 1) * distance.clamp(min=0)
        keys = key[0].repeat_interleave(layer.num_heads // len(key[0]), 0)
        alphas = torch.as_tensor(alpha, dtype=torch.float64).expand(layer.num_heads)
        scanned = alphas > 1
        supported, survivors = count(scaled[scanned][:, chosen], keys[scanned], alphas[scanned], added[scanned])
        about = {"part": "attention", "layer": number + 1, "rows": length, "queries": len(chosen)}
        result.append(about | summary(supported, survivors, len(chosen)))
    return result


def summary(supported: Tensor, survivors: Tensor, queries: int) -> Row:
    return {
        "support": float(supported.double().mean()) / queries,
        "survivors": float(survivors.double().mean()) / queries,
        "per_supported": float(survivors.sum() / supported.sum()),
        "worst_head": float((survivors / supported).max()),
    }


def output_row(model: Any, corpus: Any, lines: int) -> Row:
    """Return the row of results for an output layer."""
    some = corpus.batch(range(min(len(corpus), lines)))
    decoded = model(some.src, some.src_lengths, some.tgt_in)
    hidden = decoded.hidden[some.tgt_out >= 0][:STATES]
    layer = model.output
    weight, bias = layer.projection.weight, layer.projection.bias
    added = torch.zeros(len(weight), dtype=torch.float64) if bias is None else bias.double()
    added[layer._forbidden] = -torch.inf
    alpha = torch.tensor([{"sparsemax": 2.0}.get(layer.transform, layer.alpha)])
    supported, survivors = count(hidden.unsqueeze(0), weight.unsqueeze(0), alpha, added.view(1, 1, -1))
    about = {"part": "output", "layer": "", "rows": len(weight), "queries": len(hidden)}
    return about | summary(supported, survivors, len(hidden))


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--length", type=int, default=1024, help="number of tokens of the joined text")
    parser.add_argument("--lines", type=int, default=50, help="number of lines for output layers")
    parser.add_argument("--commit", required=True, help="commit of the code that trained the runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    announce()
    rows: list[Row] = []
    for folder in options.runs:
        config, run, corpus = open_split(folder, options.split)
        model: Any = run.model.eval()
        found = [output_row(model, corpus, options.lines)]
        if config.model.architecture == "language":
            texts = [token for row in range(len(corpus)) for token in corpus.tgt[row] if token not in (BOS, EOS)]
            found += attention_rows(model, torch.tensor([[BOS, *map(int, texts[: options.length - 1])]]))
        about = {"run": folder.name, "task": config.data.task, "output": config.model.output}
        rows += [about | row | {"commit": options.commit} | machine() for row in found]
    print(table(rows, COLUMNS))
    write(options.out, rows)


if __name__ == "__main__":
    main()
