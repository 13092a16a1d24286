"""Compare the speed of beam search with CTranslate2, or of compiled and plain steps of recurrent models."""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import Row, announce, machine, table, verdict, write
from ctranslate2_model import hand_over, peer_search, words
from torch import Tensor

import tsallis
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.search import Ensemble, Result, beam_search
from tsallis.symbols import BOS, EOS
from tsallis.toolkit.data.batching import make_batch
from tsallis.toolkit.training.run_folder import load_run

SIZES: dict[str, dict[str, int]] = {
    "multi30k": {"symbols": 5000, "d_model": 128, "heads": 4, "layers": 3, "d_ff": 512},
    "d256": {"symbols": 16000, "d_model": 256, "heads": 8, "layers": 3, "d_ff": 1024},
}
# Attention and output of our models; all share the parameters of the first.
MODELS = {"softmax": ("softmax", "softmax"), "1.5-entmax": ("softmax", "entmax"), "learned": ("learned", "entmax")}
LONGEST = 60  # maximum number of symbols per output
RECURRENT: dict[str, list[dict[str, Any]]] = {  # string models; several options make an ensemble
    "lstm": [{}],
    "gru": [{"cell": "gru"}],
    "lstm, additive": [{"scorer": "additive"}],
    "lstm, softmax": [{"attention": "softmax", "output": "softmax"}],
    "lstm, no input feeding": [{"input_feeding": False}],
    "3 lstms": [{}, {}, {}],
}
RECURRENT_COLUMNS = (
    "size",
    "name",
    "beam",
    "batch",
    "to_plain",
    "median_to_plain",
    "cpu_to_plain",
    "steps_to_plain",
    "agree",
)
COLUMNS = ("size", "name", "owner", "beam", "batch", "threads", "to_peer", "median_to_peer", "cpu_to_peer", "agree")
TARGETS = {"softmax": 0.8, "1.5-entmax": 0.7}


class Task(NamedTuple):
    """Batches of sources, and the settings of their search."""

    batches: list[tuple[Tensor, Tensor]]
    beam: int
    threads: int
    competing_ends: bool


def build(symbols: int, seed: int = 0, attention: str = "softmax", output: str = "softmax", **sizes: int) -> Any:
    """Build a random Transformer whose scores are as peaked as a trained one's."""
    torch.manual_seed(seed)
    model = TransformerSeq2Seq(
        symbols, symbols, **sizes, dropout=0.0, norm="pre", attention=attention, output=output, output_alpha=1.5
    )
    return model.eval()


@torch.no_grad()
def teach_to_end(model: Any, mean: float = 13.0) -> None:
    """Fit the score of the end symbol to grow with the output's length, by least squares over random outputs.

    After about `mean` symbols, the end is as probable as all other symbols together, as in real sentences.
    """
    generator = torch.Generator().manual_seed(1)
    symbols = len(model.output.weight)
    src = torch.randint(4, symbols, (64, 14), generator=generator)
    tgt = torch.randint(4, symbols, (64, 30), generator=generator)
    tgt[:, 0] = BOS
    hidden = model(src, torch.full((64,), 14), tgt).hidden.flatten(0, 1)  # [64 * 30, d]
    weight = model.output.weight
    weight.mul_(8 / (hidden @ weight.T).std())
    total = (hidden @ weight.T).logsumexp(-1).mean()
    wish = total + 1.5 * (torch.arange(30.0).repeat(64) - mean)
    inputs = torch.cat([hidden, torch.ones(len(hidden), 1)], 1)
    solution = torch.linalg.lstsq(inputs, wish.unsqueeze(1)).solution.squeeze(1)
    weight[EOS], model.output.projection.bias[EOS] = solution[:-1], solution[-1]


def sources(symbols: int, sentences: int, batch: int) -> list[tuple[Tensor, Tensor]]:
    """Create batches of random sources of 5 to 25 symbols."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(5, 26, (sentences,), generator=generator)
    rows = torch.randint(4, symbols, (sentences, 25), generator=generator)
    parts = zip(rows.split(batch), lengths.split(batch), strict=True)
    return [(part[:, : int(n.max())], n) for part, n in parts]


class PlainTransformer(TransformerSeq2Seq):
    """A model class that compiled code does not support, so that search runs the modules at each step."""


class PlainRNN(RNNSeq2Seq):
    """A recurrent model class that compiled code does not support."""


PLAIN = {TransformerSeq2Seq: PlainTransformer, RNNSeq2Seq: PlainRNN}


def with_plain_steps(model: Any) -> Any:
    """Return a copy of a model or an ensemble that runs its modules at each step, without compiled code."""
    plain = copy.deepcopy(model)
    for part in plain.modules():
        part.__class__ = PLAIN.get(type(part), type(part))
    return plain


Search = Callable[[Tensor, Tensor], list[Any]]


def our_search(model: Any, task: Task, backend: str = "auto") -> Search:
    end_rule = "competing" if task.competing_ends else "every"
    options: dict[str, Any] = {"beam_size": task.beam, "end_rule": end_rule}

    def run(src: Tensor, lengths: Tensor) -> list[Result]:
        with tsallis.backend(backend):
            return beam_search(model, src, lengths, n_best=1, max_length=LONGEST, **options)

    return run


def symbols_of(answer: Any) -> tuple[int, ...]:
    """Return the symbols of an output of our search or of a peer's."""
    if isinstance(answer, Result):
        return answer.best.tokens if answer.best else ()
    if isinstance(answer, tuple):
        return answer
    return tuple(int(word[1:]) if word[0] == "w" else words(4).index(word) for word in answer)


class Run(NamedTuple):
    """The times of one search for each batch, and its outputs."""

    seconds: list[float]
    cpu_seconds: list[float]  # sum over all threads
    answers: list[Any]


def interleave(searches: dict[str, Search], task: Task, rounds: int) -> dict[str, Run]:
    """Run all searches batch by batch, in a new random order each time."""
    torch.set_num_threads(task.threads)
    order = random.Random(0)
    runs = {name: Run([], [], []) for name in searches}
    for search in searches.values():
        search(*task.batches[0])
    for round_ in range(rounds):
        for batch in task.batches:
            names = list(searches)
            order.shuffle(names)
            for name in names:
                start, cpu_start = time.perf_counter(), time.process_time()
                answers = searches[name](*batch)
                runs[name].seconds.append(time.perf_counter() - start)
                runs[name].cpu_seconds.append(time.process_time() - cpu_start)
                if round_ == 0:
                    runs[name].answers.extend(answers)
    return runs


def random_models(size: str) -> dict[str, TransformerSeq2Seq]:
    """Build the models of a size; all share the parameters of the first."""
    models = {name: build(**SIZES[size], attention=a, output=o) for name, (a, o) in MODELS.items()}
    teach_to_end(models["softmax"])
    alphas = {k: v for k, v in models["learned"].state_dict().items() if "alpha" in k}
    for model in models.values():
        model.load_state_dict({**alphas, **models["softmax"].state_dict()}, strict=False)
    return models


KINDS = ("encoder_attention", "decoder_attention", "cross_attention")


def name_of(model: TransformerSeq2Seq) -> str:
    """Return the name of a model's output function, and of its attention if that is not softmax."""
    output = model.output
    names = {"softmax": "softmax", "sparsemax": "sparsemax", "entmax": f"{output.alpha:g}-entmax"}
    attention = [kind for kind in dict.fromkeys(model.arguments[kind] for kind in KINDS) if kind != "softmax"]
    name = names.get(output.transform, f"alpha-ReLU {output.alpha:g}")
    return f"{name}, {' and '.join(attention)} attention" if attention else name


def trained_models(folders: Sequence[Path]) -> tuple[dict[str, TransformerSeq2Seq], Any]:
    """Return the models of trained runs by name, and their source vocabulary; the first run must be all softmax."""
    runs = [load_run(folder) for folder in folders]
    models: dict[str, TransformerSeq2Seq] = {}
    for folder, run in zip(folders, runs, strict=True):
        name = name_of(run.model)
        if not models and name != "softmax":
            raise SystemExit(f"the first run must have softmax everywhere, {folder} has {name}")
        if (run.src_vocab, run.tgt_vocab) != (runs[0].src_vocab, runs[0].tgt_vocab):
            raise SystemExit(f"all runs must have the same symbols, {folder} and {folders[0]} have not")
        models[f"{name} ({folder.name})" if name in models else name] = run.model
    return models, runs[0].src_vocab


def text_sources(symbols: Any, path: Path, sentences: int, batch: int) -> list[tuple[Tensor, Tensor]]:
    """Encode the first lines of a file in batches."""
    lines = path.read_text(encoding="utf-8").splitlines()[:sentences]
    rows = [symbols.encode(line) for line in lines]
    parts = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    batches = [make_batch(part, [[]] * len(part), range(len(part))) for part in parts]
    return [(one.src, one.src_lengths) for one in batches]


def joey_search(model: TransformerSeq2Seq, beam: int) -> Search | None:
    """Return Joey NMT's search with our model's parameters, or None if it is not installed or can't build the model."""
    if find_spec("joeynmt") is None or model.arguments["share"] != "all" or model.arguments["norm"] != "pre":
        return None
    from training import Joey

    joey = Joey(len(model.output.weight), model.arguments, 0.0, 0)
    joey.take(model.state_dict())

    def run(src: Tensor, lengths: Tensor) -> list[Any]:
        rows = [row[:n] for row, n in zip(src.tolist(), lengths.tolist(), strict=True)]
        return list(joey.translate(make_batch(rows, [[]] * len(rows), range(len(rows))), beam))

    return run


def measure(
    size: str, models: dict[str, TransformerSeq2Seq], task: Task, rounds: int, eager: bool, plain: bool
) -> list[Row]:
    """Measure all searches for one size, beam, batch size and number of threads; return their rows."""
    peer = "ctranslate2 float32"
    searches = {f"tsallis {name}": our_search(model, task) for name, model in models.items()}
    joey = joey_search(models["softmax"], task.beam)
    if joey is not None:
        searches["joeynmt softmax"] = joey
    if plain:
        for name, model in models.items():
            searches[f"tsallis plain {name}"] = our_search(with_plain_steps(model), task)
    if eager:
        searches["tsallis eager softmax"] = our_search(models["softmax"], task, "eager")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").mkdir()
        hand_over(models["softmax"], Path(folder, "model"))
        for kind in ("float32", "int8"):
            symbols = len(models["softmax"].output.weight)
            searches[f"ctranslate2 {kind}"] = peer_search(
                Path(folder, "model"), task.beam, task.threads, kind, symbols, LONGEST
            )
        runs = interleave(searches, task, rounds)
    first = [symbols_of(x) for x in runs["tsallis softmax"].answers]
    rows = []
    for name, run in runs.items():
        kinds = Counter(x.certificate.kind for x in run.answers if isinstance(x, Result))
        outputs = [symbols_of(x) for x in run.answers]
        pairs = zip(run.seconds, runs[peer].seconds, strict=True)
        rows.append(
            {
                "size": size,
                "name": name.split(" ", 1)[1],
                "owner": name.split(" ")[0],
                "beam": task.beam,
                "batch": len(task.batches[0][0]),
                "threads": task.threads,
                "competing_ends": task.competing_ends,
                "seconds": sum(run.seconds),
                "to_peer": sum(run.seconds) / sum(runs[peer].seconds),
                "median_to_peer": statistics.median(a / b for a, b in pairs),
                "cpu_to_peer": sum(run.cpu_seconds) / sum(runs[peer].cpu_seconds),
                "agree": sum(a == b for a, b in zip(outputs, first, strict=True)) / len(first),
                "length": statistics.mean(map(len, outputs)),
                **{kind: kinds[kind] / len(outputs) if kinds else "" for kind in ("complete", "optimal", "bounded")},
                "sentences": len(outputs),
                "rounds": rounds,
                "ctranslate2": version("ctranslate2"),
                **{key: value for key, value in machine().items() if key != "threads"},
            }
        )
    return rows


def recurrent_models(units: int, symbols: int = 100) -> dict[str, Any]:
    """Build random recurrent models whose scores are as peaked as a trained one's."""
    models: dict[str, Any] = {}
    for name, parts in RECURRENT.items():
        each = []
        for seed, options in enumerate(parts):
            torch.manual_seed(seed)
            each.append(RNNSeq2Seq(symbols, symbols, d_model=units, dropout=0.0, **options).eval())
            teach_to_end(each[-1])
        models[name] = each[0] if len(each) == 1 else Ensemble(each)
    return models


def measure_recurrent(units: int, task: Task, rounds: int) -> list[Row]:
    """Compare compiled and plain search of the recurrent models of one size; return their rows."""
    rows = []
    for name, model in recurrent_models(units).items():
        encode = torch.no_grad()(lambda src, lengths, model=model: [model.encode(src, lengths)])
        plain = our_search(with_plain_steps(model), task)
        runs = interleave({"compiled": our_search(model, task), "plain": plain, "encoder": encode}, task, rounds)
        compiled, plain_run, encoder = runs.values()
        pairs = list(zip(compiled.answers, plain_run.answers, strict=True))
        times = zip(compiled.seconds, plain_run.seconds, strict=True)
        read = sum(encoder.cpu_seconds)
        rows.append(
            {
                "size": f"{units} units",
                "name": name,
                "beam": task.beam,
                "batch": len(task.batches[0][0]),
                "threads": task.threads,
                "seconds": sum(compiled.seconds),
                "to_plain": sum(compiled.seconds) / sum(plain_run.seconds),
                "median_to_plain": statistics.median(a / b for a, b in times),
                "cpu_to_plain": sum(compiled.cpu_seconds) / sum(plain_run.cpu_seconds),
                "steps_to_plain": (sum(compiled.cpu_seconds) - read) / (sum(plain_run.cpu_seconds) - read),
                "agree": sum(symbols_of(a) == symbols_of(b) for a, b in pairs) / len(pairs),
                "same_kinds": sum(a.certificate.kind == b.certificate.kind for a, b in pairs) / len(pairs),
                "length": statistics.mean(len(symbols_of(a)) for a, _ in pairs),
                "sentences": len(pairs),
                "rounds": rounds,
                **{key: value for key, value in machine().items() if key != "threads"},
            }
        )
    return rows


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Compare with the targets; with one thread, use processor time, which other processes affect less."""
    lines = []
    for name, bound in TARGETS.items():
        values = {
            f"{row['size']}, beam {row['beam']}, batch {row['batch']}, threads {row['threads']}": row[
                "cpu_to_peer" if row["threads"] == 1 else "median_to_peer"
            ]
            for row in rows
            if row["owner"] == "tsallis" and row["name"] == name
        }
        lines += verdict(f"{name}: time of CTranslate2's float32", bound, values)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=SIZES, help="sizes of random models")
    parser.add_argument("--run", nargs="+", type=Path, help="trained runs to use instead, softmax first; needs --file")
    parser.add_argument("--file", type=Path, help="file of sources for the runs, one per line")
    parser.add_argument(
        "--competing-ends", action="store_true", help="use the end rule of the peers, competing (default: every)"
    )
    parser.add_argument("--beams", nargs="+", type=int, default=[5, 1])
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 1])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--single", type=int, default=48, help="number of sentences for batch size 1")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="also measure the eager backend")
    parser.add_argument("--plain", action="store_true", help="also measure search without compiled steps")
    parser.add_argument("--recurrent", nargs="+", type=int, help="sizes of recurrent models to measure instead")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if (options.run is None) != (options.file is None):
        parser.error("--run and --file go together")
    announce()
    rows: list[Row] = []
    for units, threads, beam, batch in product(
        options.recurrent or (), options.threads, options.beams, options.batches
    ):
        sentences = options.single if batch == 1 else options.sentences
        task = Task(sources(100, sentences, batch), beam, threads, options.competing_ends)
        rows += measure_recurrent(units, task, options.rounds)
        write(options.out, rows)
    if rows:
        print(table(rows, RECURRENT_COLUMNS))
        return
    for size in ["trained"] if options.run else options.sizes:
        models, symbols = trained_models(options.run) if options.run else (random_models(size), None)
        for threads in options.threads:
            for beam in options.beams:
                for batch in options.batches:
                    sentences = options.single if batch == 1 else options.sentences
                    batches = (
                        sources(SIZES[size]["symbols"], sentences, batch)
                        if symbols is None
                        else text_sources(symbols, options.file, sentences, batch)
                    )
                    task = Task(batches, beam, threads, options.competing_ends)
                    new = measure(size, models, task, options.rounds, options.eager, options.plain)
                    print(table(new, COLUMNS), file=sys.stderr, flush=True)
                    rows += new
                    write(options.out, rows)
    print("\n".join(verdicts(rows)))


if __name__ == "__main__":
    main()
