"""Beam search beside CTranslate2: the same parameters, batches and beams in turn in one process."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import Row, announce, machine, table, verdict, write
from torch import Tensor

import tsallis
from tsallis.models import TransformerSeq2Seq
from tsallis.search import Result, beam_search
from tsallis.special_symbols import BOS, EOS

SIZES: dict[str, dict[str, int]] = {
    "multi30k": {"symbols": 5000, "d_model": 128, "heads": 4, "layers": 3, "d_ff": 512},
    "d256": {"symbols": 16000, "d_model": 256, "heads": 8, "layers": 3, "d_ff": 1024},
}
# Attention and output of our models, all with the first one's parameters.
MODELS = {"softmax": ("softmax", "softmax"), "1.5-entmax": ("softmax", "entmax"), "learned": ("learned", "entmax")}
LONGEST = 60  # symbols of an output
COLUMNS = ("size", "name", "owner", "beam", "batch", "threads", "to_peer", "median_to_peer", "cpu_to_peer", "agree")
TARGETS = {"softmax": 0.8, "1.5-entmax": 0.7}


class Task(NamedTuple):
    """Sources in batches, and how they are searched."""

    batches: list[tuple[Tensor, Tensor]]
    beam: int
    threads: int


def build(symbols: int, seed: int = 0, attention: str = "softmax", output: str = "softmax", **sizes: int) -> Any:
    """Build a random Transformer whose scores are as peaked as a trained one's."""
    torch.manual_seed(seed)
    model = TransformerSeq2Seq(
        symbols, symbols, **sizes, dropout=0.0, norm="pre", attention=attention, output=output, output_alpha=1.5
    )
    return model.eval()


@torch.no_grad()
def teach_to_end(model: TransformerSeq2Seq, mean: float = 13.0) -> None:
    """Give the end a score that grows with the length of an output, by least squares over random outputs.

    The end is as probable as all else together after about `mean` symbols, as in sentences.
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
    """Random sources of 5 to 25 symbols."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(5, 26, (sentences,), generator=generator)
    rows = torch.randint(4, symbols, (sentences, 25), generator=generator)
    parts = zip(rows.split(batch), lengths.split(batch), strict=True)
    return [(part[:, : int(n.max())], n) for part, n in parts]


def hand_over(model: TransformerSeq2Seq, folder: Path) -> None:
    """Write a model of softmax attention with norms before its parts as CTranslate2 reads it."""
    from ctranslate2.specs import TransformerSpec, common_spec

    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    sizes = model.arguments
    spec = TransformerSpec.from_config(
        (sizes["encoder_layers"], sizes["decoder_layers"]),
        sizes["heads"],
        pre_norm=True,
        activation=common_spec.Activation.RELU,
    )
    positions = model.positions(torch.zeros(1), 0, 512).detach().numpy()
    for side, table_name, own in (("encoder", "src", spec.encoder), ("decoder", "tgt", spec.decoder)):
        embeddings = own.embeddings[0] if isinstance(own.embeddings, list) else own.embeddings
        embeddings.weight = state[f"{table_name}_embedding.weight"]
        own.scale_embeddings = True
        own.position_encodings.encodings = positions
        _norm(own.layer_norm, state, f"{side}.norm")
        for number, layer in enumerate(own.layer):
            _hand_over_layer(layer, state, f"{side}.layers.{number}.", side == "decoder")
    spec.decoder.projection.weight = state["output.projection.weight"]
    spec.decoder.projection.bias = state["output.projection.bias"]
    names = words(len(state["output.projection.weight"]))
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.add_source_eos = False
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token = "<s>"
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(folder))


def words(symbols: int) -> list[str]:
    return ["<blank>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, symbols))]


def _norm(spec: Any, state: dict[str, Any], name: str) -> None:
    spec.gamma, spec.beta = state[f"{name}.weight"], state[f"{name}.bias"]


def _linear(spec: Any, state: dict[str, Any], name: str, rows: slice = slice(None), prefix: str = "") -> None:
    spec.weight, spec.bias = state[f"{name}.{prefix}weight"][rows], state[f"{name}.{prefix}bias"][rows]


def _hand_over_layer(layer: Any, state: dict[str, Any], name: str, decoder: bool) -> None:
    d = state[f"{name}norm1.weight"].shape[0]
    _linear(layer.self_attention.linear[0], state, f"{name}self_attn", prefix="in_proj_")
    _linear(layer.self_attention.linear[1], state, f"{name}self_attn.out_proj")
    _norm(layer.self_attention.layer_norm, state, f"{name}norm1")
    if decoder:
        _linear(layer.attention.linear[0], state, f"{name}multihead_attn", slice(d), "in_proj_")
        _linear(layer.attention.linear[1], state, f"{name}multihead_attn", slice(d, None), "in_proj_")
        _linear(layer.attention.linear[2], state, f"{name}multihead_attn.out_proj")
        _norm(layer.attention.layer_norm, state, f"{name}norm2")
    _norm(layer.ffn.layer_norm, state, f"{name}norm{3 if decoder else 2}")
    _linear(layer.ffn.linear_0, state, f"{name}linear1")
    _linear(layer.ffn.linear_1, state, f"{name}linear2")


Search = Callable[[Tensor, Tensor], list[Any]]


def our_search(model: TransformerSeq2Seq, beam: int, backend: str = "auto") -> Search:
    def run(src: Tensor, lengths: Tensor) -> list[Result]:
        with tsallis.backend(backend):
            return beam_search(model, src, lengths, beam_size=beam, n_best=1, max_length=LONGEST)

    return run


def peer_search(folder: Path, beam: int, threads: int, kind: str, symbols: int) -> Search:
    import ctranslate2

    names = words(symbols)
    engine = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=kind, inter_threads=1, intra_threads=threads
    )

    def run(src: Tensor, lengths: Tensor) -> list[list[str]]:
        rows = [[names[i] for i in row[:n]] for row, n in zip(src.tolist(), lengths.tolist(), strict=True)]
        answers = engine.translate_batch(
            rows,
            beam_size=beam,
            length_penalty=0,
            max_decoding_length=LONGEST,
            max_batch_size=0,
            suppress_sequences=[["<unk>"], ["<s>"], ["<blank>"]],
        )
        return [result.hypotheses[0] for result in answers]

    return run


def symbols_of(answer: Any) -> tuple[int, ...]:
    """Return the symbols of an answer, ours or the peer's."""
    if isinstance(answer, Result):
        return answer.best.tokens if answer.best else ()
    return tuple(int(word[1:]) if word[0] == "w" else words(4).index(word) for word in answer)


class Run(NamedTuple):
    """The times of one search for every batch, and its answers."""

    seconds: list[float]
    cpu_seconds: list[float]  # of all threads
    answers: list[Any]


def interleave(searches: dict[str, Search], task: Task, rounds: int) -> dict[str, Run]:
    """Run all searches batch by batch, in another order each time."""
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


def measure(size: str, task: Task, rounds: int, eager: bool) -> list[Row]:
    """Return the rows of one size, beam, batch and number of threads."""
    models = {name: build(**SIZES[size], attention=a, output=o) for name, (a, o) in MODELS.items()}
    teach_to_end(models["softmax"])
    alphas = {k: v for k, v in models["learned"].state_dict().items() if "alpha" in k}
    for model in models.values():
        model.load_state_dict({**alphas, **models["softmax"].state_dict()}, strict=False)
    peer = "ctranslate2 float32"
    searches = {f"tsallis {name}": our_search(model, task.beam) for name, model in models.items()}
    if eager:
        searches["tsallis eager softmax"] = our_search(models["softmax"], task.beam, "eager")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").mkdir()
        hand_over(models["softmax"], Path(folder, "model"))
        for kind in ("float32", "int8"):
            searches[f"ctranslate2 {kind}"] = peer_search(
                Path(folder, "model"), task.beam, task.threads, kind, SIZES[size]["symbols"]
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


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Tell where targets are met: of one thread by the processor's time, which others on the machine disturb less."""
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
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--beams", nargs="+", type=int, default=[5, 1])
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 1])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--single", type=int, default=48, help="sentences in batches of 1")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="also with PyTorch's operations alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    announce()
    rows: list[Row] = []
    for size in options.sizes:
        for threads in options.threads:
            for beam in options.beams:
                for batch in options.batches:
                    sentences = options.single if batch == 1 else options.sentences
                    task = Task(sources(SIZES[size]["symbols"], sentences, batch), beam, threads)
                    new = measure(size, task, options.rounds, options.eager)
                    print(table(new, COLUMNS), file=sys.stderr, flush=True)
                    rows += new
                    write(options.out, rows)
    print("\n".join(verdicts(rows)))


if __name__ == "__main__":
    main()
