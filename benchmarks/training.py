"""Compare the speed of training and translation with Joey NMT, on the same sentences.

All candidates run in one process and take turns to train on the same batches; then trained runs translate the same
batches with beam search. Joey NMT gets the parameters of the first run, which must use softmax everywhere. Both then
search for the same translations, and the script reports how many agree. If Joey NMT can't be imported (its folder may
be on PYTHONPATH), the script measures only our models.

    python benchmarks/training.py --folder data/multi30k --run runs/multi30k-de-en --out benchmarks/results/training.csv
    python benchmarks/training.py --folder data/multi30k --only "LSTM softmax" "LSTM 1.5-entmax" "LSTM sparsemax" \
        "LSTM 1.33-entmax" --layers 2 --dropout 0.3 --updates 60 --no-peer --out lstms.csv
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import Row, announce, machine, table, verdict, write
from torch import nn

from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.batch import Batch
from tsallis.search import beam_search
from tsallis.toolkit.data.batching import BatchPlan
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.corpus_cache import cached_corpus, cached_subwords
from tsallis.toolkit.data.io import find_packed
from tsallis.toolkit.training import Settings
from tsallis.toolkit.training.distributed import World
from tsallis.toolkit.training.engine import Engine
from tsallis.toolkit.training.run_folder import Run, load_run

OURS = {
    "softmax": {"attention": "softmax", "output": "softmax"},
    "entmax-1.5 attention": {"attention": "entmax", "output": "softmax"},
    "learned attention": {"attention": "learned", "output": "softmax"},
    "sparsemax output": {"attention": "softmax", "output": "sparsemax"},
    "entmax-1.5 output": {"attention": "softmax", "output": "entmax"},
    "alpha-ReLU output": {"attention": "softmax", "output": "alpha_relu", "tau": 0.3},
    "learned attention, entmax-1.5 output": {"attention": "learned", "output": "entmax"},
}
# Function and alpha of attention and output, as in figure 6 of Peters et al. 2019, who used bisection for any alpha.
LSTMS = {
    "LSTM softmax": ("softmax", 1.0),
    "LSTM 1.5-entmax": ("entmax", 1.5),
    "LSTM sparsemax": ("sparsemax", 2.0),
    "LSTM 1.33-entmax": ("entmax", 1.33),
}
COLUMNS = ("operation", "name", "owner", "tokens_per_second", "to_peer", "to_softmax", "agree", "rounds")
Tokens = list[tuple[int, ...]]


@dataclass
class Candidate:
    """A model whose training or translation is measured."""

    name: str
    owner: str
    act: Callable[[Batch], Tokens | None]
    seconds: list[float] = field(default_factory=list)
    outputs: list[Tokens] = field(default_factory=list)  # translations of each batch

    def run(self, batch: Batch) -> None:
        began = time.perf_counter()
        result = self.act(batch)
        self.seconds.append(time.perf_counter() - began)
        self.outputs.append(result or [])


def ours(name: str, vocab: int, sizes: argparse.Namespace) -> Candidate:
    torch.manual_seed(sizes.seed)
    same = {"d_model": sizes.d_model, "layers": sizes.layers, "dropout": sizes.dropout}
    model: RNNSeq2Seq | TransformerSeq2Seq
    if name in LSTMS:
        function, alpha = LSTMS[name]
        maps = {"attention": function, "output": function, "attention_alpha": alpha, "output_alpha": alpha}
        model = RNNSeq2Seq(vocab, vocab, **same, **maps)
    else:
        arguments = {"attention_alpha": 1.5, "output_alpha": 1.5, **OURS[name]}
        more = {"heads": sizes.heads, "d_ff": sizes.d_ff, "attention_dropout": sizes.dropout, "share": "all"}
        model = TransformerSeq2Seq(vocab, vocab, **same, **more, **arguments)
    engine = Engine(model, Settings(clip=1.0, label_smoothing=sizes.label_smoothing), World())

    def update(batch: Batch) -> None:
        model.train()
        engine.update([batch], 1, 1, 1e-4)

    return Candidate(name, "tsallis", update)


def our_run(folder: Path, beam: int) -> tuple[Candidate, Run]:
    """Return a candidate that translates with a trained run, and the run."""
    run = load_run(folder)
    inputs = run.model.arguments
    kinds = dict.fromkeys(inputs[f"{kind}_attention"] for kind in ("encoder", "decoder", "cross"))

    def translate(batch: Batch) -> Tokens:
        results = beam_search(run.model, batch.src, batch.src_lengths, beam_size=beam, n_best=1)
        return [r.best.tokens if r.best else () for r in results]

    return Candidate(f"{'/'.join(kinds)} attention, {inputs['output']} output", "tsallis", translate), run


class Joey:
    """Joey NMT's model, loss and search, called as in its training and prediction.

    Sources have no end symbol, as in our models. Joey NMT numbers the special symbols differently.
    """

    def __init__(self, vocab: int, arguments: dict[str, Any], label_smoothing: float, seed: int) -> None:
        from joeynmt.model import build_model
        from joeynmt.vocabulary import Vocabulary

        torch.manual_seed(seed)
        names = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "sep_token": None}
        numbers = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3, "sep_id": None}
        symbols = Vocabulary([f"w{i}" for i in range(4, vocab)], SimpleNamespace(**names, **numbers, lang_tags=[]))
        part = {
            "type": "transformer",
            "embeddings": {"embedding_dim": arguments["d_model"], "scale": True},
            "hidden_size": arguments["d_model"],
            "ff_size": arguments["d_ff"],
            "num_heads": arguments["heads"],
            "dropout": arguments["dropout"],
            "layer_norm": arguments["norm"],
        }
        layers = [{**part, "num_layers": arguments[f"{side}_layers"]} for side in ("encoder", "decoder")]
        tied = {"tied_embeddings": True, "tied_softmax": True}
        self.model = build_model({"encoder": layers[0], "decoder": layers[1], **tied}, symbols, symbols)
        self.model.loss_function = ("crossentropy", label_smoothing)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.order = torch.tensor([1, 2, 3, 0, *range(4, vocab)])

    def take(self, state: dict[str, torch.Tensor]) -> None:
        """Load the parameters of our model, which must normalize before each sublayer."""
        model = self.model
        model.decoder.output_layer = nn.Linear(*reversed(state["output.projection.weight"].shape))
        turned = state["src_embedding.weight"][self.order.argsort()]
        table = {"src_embed.lut.weight": turned, "trg_embed.lut.weight": turned, "decoder.output_layer.weight": turned}
        table["decoder.output_layer.bias"] = state["output.projection.bias"][self.order.argsort()]
        norms = {"encoder": ["layer_norm", "feed_forward.layer_norm"]}
        norms["decoder"] = ["x_layer_norm", "dec_layer_norm", "feed_forward.layer_norm"]
        attentions = {"encoder": {"self_attn": "src_src_att"}}
        attentions["decoder"] = {"self_attn": "trg_trg_att", "multihead_attn": "src_trg_att"}
        for side in ("encoder", "decoder"):
            for i in range(len(getattr(model, side).layers)):
                ours, theirs = (f"{side}.layers.{i}." for _ in range(2))
                for mine, its in attentions[side].items():
                    for kind in ("weight", "bias"):
                        parts = state[f"{ours}{mine}.in_proj_{kind}"].chunk(3)
                        for name, value in zip("qkv", parts, strict=True):
                            table[f"{theirs}{its}.{name}_layer.{kind}"] = value
                        table[f"{theirs}{its}.output_layer.{kind}"] = state[f"{ours}{mine}.out_proj.{kind}"]
                for kind in ("weight", "bias"):
                    for n, its in enumerate(norms[side], start=1):
                        table[f"{theirs}{its}.{kind}"] = state[f"{ours}norm{n}.{kind}"]
                    for n, location in ((1, 0), (2, 3)):
                        table[f"{theirs}feed_forward.pwff_layer.{location}.{kind}"] = state[f"{ours}linear{n}.{kind}"]
            for kind in ("weight", "bias"):
                table[f"{side}.layer_norm.{kind}"] = state[f"{side}.norm.{kind}"]
        missing, unexpected = model.load_state_dict(table, strict=False)
        assert not unexpected and all(name.endswith(".pe") for name in missing), (missing, unexpected)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-5

    def batch(self, batch: Batch, gold: bool) -> Any:
        from joeynmt.batch import Batch as JoeyBatch

        rows = torch.arange(len(batch.src))
        # Joey NMT's targets have the start and the end symbol in one sequence.
        trg = torch.full((len(rows), batch.tgt_in.shape[1] + 1), 1)
        trg[:, :-1] = self.order[batch.tgt_in]
        trg[rows, (batch.tgt_out != -100).sum(1)] = 3
        inputs = trg if gold else None
        src = self.order[batch.src]
        return JoeyBatch(src, batch.src_lengths, None, inputs, None, rows, torch.device("cpu"), 1, 3, gold)

    def update(self, batch: Batch) -> None:
        self.model.train()
        result = self.batch(batch, True)
        loss, _, _, _ = self.model(return_type="loss", **vars(result))
        result.normalize(loss, "tokens").backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.model.zero_grad()

    @torch.no_grad()
    def translate(self, batch: Batch, beam: int) -> Tokens:
        from joeynmt.search import search

        self.model.eval()
        limit = 2 * int(batch.src_lengths.max()) + 20
        rows, _, _ = search(self.model, self.batch(batch, False), limit, beam, -1, n_best=1, generate_unk=False)
        back = self.order.argsort().tolist()
        result = []
        for row in rows.tolist():
            saved = row[: row.index(3)] if 3 in row else row
            result.append(tuple(back[t] for t in saved if t != 1))
        return result


def paths(inputs: argparse.Namespace, split: str) -> list[Path]:
    """Return the source and the target file of a split, compressed or not."""
    names = [Path(inputs.folder) / f"{split}.{side}" for side in (inputs.src, inputs.tgt)]
    return [find_packed(name) or name for name in names]


def corpus(inputs: argparse.Namespace) -> tuple[Corpus, int]:
    """Return the training data and the size of its vocabulary."""
    files = paths(inputs, inputs.train)
    subwords = cached_subwords(inputs.cache, files, inputs.vocab)
    return cached_corpus(inputs.cache, *files, subwords, subwords, 100), len(subwords)


def measure(candidates: list[Candidate], batches: list[Batch], seed: int) -> None:
    """Run every candidate on every batch, in a random order; the first batch is a warm-up."""
    order = random.Random(seed)
    turn = list(candidates)
    for location, batch in enumerate(batches):
        order.shuffle(turn)
        for candidate in turn:
            candidate.run(batch)
        if location == 0:
            for candidate in candidates:
                candidate.seconds.clear()
                candidate.outputs.clear()


def rows(operation: str, candidates: list[Candidate], symbols: int, location: Row) -> list[Row]:
    """Return one row per candidate; `symbols` is the number of target symbols in all batches."""
    peer = next((c for c in candidates if c.owner == "joeynmt"), None)
    first = next(c for c in candidates if c.owner == "tsallis")  # it uses softmax everywhere

    def ratio(other: Candidate | None, candidate: Candidate) -> float | str:
        """Return the median, over batches, of the other's time divided by the candidate's."""
        if other is None:
            return ""
        return statistics.median(b / a for b, a in zip(other.seconds, candidate.seconds, strict=True))

    def agree(candidate: Candidate) -> float | str:
        """Return the share of translations that are equal to those of our first model."""
        pairs = [
            p for one, two in zip(candidate.outputs, first.outputs, strict=True) for p in zip(one, two, strict=True)
        ]
        return sum(a == b for a, b in pairs) / len(pairs) if pairs else ""

    return [
        {
            "operation": operation,
            "name": c.name,
            "owner": c.owner,
            "tokens_per_second": symbols / sum(c.seconds),
            "to_peer": ratio(peer, c),
            "to_softmax": ratio(first, c),
            "agree": agree(c),
            "rounds": len(c.seconds),
            **location,
            **machine(),
            "joeynmt": _joey_version() if peer else "",
        }
        for c in candidates
    ]


def training(inputs: argparse.Namespace) -> list[Row]:
    train, vocab = corpus(inputs)
    candidates = [ours(name, vocab, inputs) for name in inputs.only or OURS]
    sizes = {"d_model": inputs.d_model, "d_ff": inputs.d_ff, "heads": inputs.heads, "dropout": inputs.dropout}
    layers = {"encoder_layers": inputs.layers, "decoder_layers": inputs.layers, "norm": "post"}
    if peer_is_there(inputs):
        joey = Joey(vocab, {**sizes, **layers}, inputs.label_smoothing, inputs.seed)
        candidates.insert(0, Candidate("softmax", "joeynmt", joey.update))
    plan = BatchPlan(train.lengths(), max_tokens=inputs.max_tokens, seed=inputs.seed).epoch(0)
    batches = [train.batch(plan[i]) for i in range(inputs.updates + 1)]
    measure(candidates, batches, inputs.seed)
    shape = f"d {inputs.d_model}, ff {inputs.d_ff}, {inputs.heads} heads, {inputs.layers} + {inputs.layers} layers"
    if candidates[0].name in LSTMS:
        shape = f"LSTM, d {inputs.d_model}, {inputs.layers} + {inputs.layers} layers"
    columns = {"model": shape, "batch": f"{inputs.max_tokens} tokens"}
    return rows("training", candidates, sum(b.tokens for b in batches[1:]), columns)


def translation(inputs: argparse.Namespace) -> list[Row]:
    candidates, runs = (list(x) for x in zip(*(our_run(f, inputs.beam) for f in inputs.run), strict=True))
    subwords: Any = runs[0].src_vocab
    dev = cached_corpus(inputs.cache, *paths(inputs, inputs.dev), subwords, runs[0].tgt_vocab, 100)
    arguments = runs[0].model.arguments
    if peer_is_there(inputs):
        joey = Joey(len(subwords), arguments, 0.0, inputs.seed)
        joey.take(runs[0].model.state_dict())
        candidates.append(Candidate("softmax", "joeynmt", lambda batch: joey.translate(batch, inputs.beam)))
    batches = [dev.batch(range(i * inputs.rows, (i + 1) * inputs.rows)) for i in range(inputs.translations + 1)]
    measure(candidates, batches, inputs.seed)
    layers = f"{arguments['encoder_layers']} + {arguments['decoder_layers']} layers"
    shape = f"d {arguments['d_model']}, ff {arguments['d_ff']}, {arguments['heads']} heads, {layers}"
    columns = {"model": shape, "batch": f"{inputs.rows} rows, beam {inputs.beam}"}
    symbols = sum(len(tokens) + 1 for result in candidates[0].outputs for tokens in result)
    return rows("translation", candidates, symbols, columns)


def peer_is_there(inputs: argparse.Namespace) -> bool:
    if inputs.no_peer:
        return False
    try:
        import joeynmt.search  # noqa: F401
    except ImportError as error:
        print(f"without Joey NMT: {error}", file=sys.stderr)
        return False
    return True


def _joey_version() -> str:
    try:
        return version("joeynmt")
    except PackageNotFoundError:
        return ""


def verdicts(measured: list[Row]) -> list[str]:
    def pick(operation: str, name: str, column: str) -> dict[str, float]:
        chosen = [r for r in measured if r["operation"] == operation and r["owner"] == "tsallis"]
        return {r["model"]: r[column] for r in chosen if r["name"] == name and r[column] != ""}

    return [
        *verdict("training beside Joey NMT, softmax", 1.5, pick("training", "softmax", "to_peer"), True),
        *verdict("training, learned / softmax", 0.9, pick("training", "learned attention", "to_softmax"), True),
        *verdict(
            "translation beside Joey NMT, softmax",
            2.0,
            pick("translation", "softmax attention, softmax output", "to_peer"),
            True,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="folder of the parallel text")
    parser.add_argument("--run", nargs="*", type=Path, default=[], help="trained runs that translate, softmax first")
    parser.add_argument("--train", default="train", help="name of the training files (default: %(default)s)")
    parser.add_argument("--dev", default="val", help="name of the files to translate (default: %(default)s)")
    parser.add_argument("--src", default="de", help="suffix of source files (default: %(default)s)")
    parser.add_argument("--tgt", default="en", help="suffix of target files (default: %(default)s)")
    parser.add_argument("--cache", help="folder for subwords and encoded text (default: temporary)")
    parser.add_argument("--vocab", type=int, default=5000, help="number of subwords (default: %(default)s)")
    parser.add_argument("--d-model", type=int, default=256, help="size of the model (default: %(default)s)")
    parser.add_argument("--d-ff", type=int, default=1024, help="size of feed-forward layers (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="number of attention heads (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=3, help="layers of encoder and decoder (default: %(default)s)")
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout probability (default: %(default)s)")
    parser.add_argument("--label-smoothing", type=float, default=0.1, help="label smoothing (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=2048, help="tokens per batch (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=64, help="sentences per translated batch (default: %(default)s)")
    parser.add_argument("--beam", type=int, default=5, help="beam size (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=15, help="number of updates, may be 0 (default: %(default)s)")
    parser.add_argument("--translations", type=int, default=5, help="batches to translate (default: %(default)s)")
    parser.add_argument("--only", nargs="*", metavar="NAME", help=f"some of {', '.join((*OURS, *LSTMS))}")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="number of threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed (default: %(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="leave out Joey NMT")
    parser.add_argument("--out", type=Path, help="CSV file for the results")
    inputs = parser.parse_args()
    inputs.cache = Path(inputs.cache or tempfile.mkdtemp())
    torch.set_num_threads(inputs.threads)
    announce()
    measured: list[Row] = training(inputs) if inputs.updates else []
    write(inputs.out, measured)
    if inputs.run:
        measured += translation(inputs)
        write(inputs.out, measured)
    print(table(measured, COLUMNS))
    print("", *verdicts(measured), sep="\n")


if __name__ == "__main__":
    main()
