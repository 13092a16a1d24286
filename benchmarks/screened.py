"""Compare attention and output layers that scan rows in 8 bits with dense ones, in one process.

`decoding`: one query over stored keys, compared with our dense kernel and with `scaled_dot_product_attention`.
`output`: the support of one state, compared with the float32 product, with and without entmax.
`louver`: one query over stored keys of size 128, compared with our dense kernel and Louver's CPU kernel. Louver's index
    gets the exact score of the last supported key. Needs a clone of github.com/UIC-InDeXLab/Louver, AVX-512 and ninja.
`generation`: one token of a language model, compared with the same model without a scan and with a softmax model.
`transformers`: one token of a Llama, with `ScreenedCache`, and with `DynamicCache` and entmax or softmax.
`search`: compiled beam searches of one source, compared with searches without a scan and with a softmax output.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import torch
from common import Row, announce, machine, table, verdict, write
from torch.nn.functional import scaled_dot_product_attention

import tsallis
from tsallis.models import LanguageModel, RNNSeq2Seq, TransformerSeq2Seq, language
from tsallis.models.language import LanguageState
from tsallis.models.transformer.decoding_state import KVBuffers, StepCache, step_cache
from tsallis.nn import OutputLayer, ScreenedKeys
from tsallis.ops.cpu import decoding as kernels
from tsallis.search import beam_search

HEADS, SIZE = 8, 64
COLUMNS = ("part", "rows", "size", "alpha", "std", "name", "support", "ms", "best_ms", "to_today", "to_peer", "gb_s")
SPREADS = (1.0, 2.0)  # standard deviations of the scores


def measure(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call in each round; a round runs all calls in a random order."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in random.sample([*calls.items()], len(calls)):
            call()
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def rows_of(
    calls: dict[str, Callable[[], object]], bytes_read: dict[str, int], rounds: int, **about: object
) -> list[Row]:
    """Measure calls and return their rows; the second call is the current dense code, the third the peer."""
    seconds = measure(calls, rounds)
    _, today, peer = seconds

    def ratio(name: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[name], seconds[other], strict=True))

    return [
        {
            **about,
            "name": name,
            "ms": statistics.median(taken) * 1e3,
            "best_ms": min(taken) * 1e3,
            "to_today": ratio(name, today),
            "to_peer": ratio(name, peer),
            "gb_s": bytes_read[name] / statistics.median(taken) / 1e9,
            **machine(),
        }
        for name, taken in seconds.items()
    ]


def decoding(keys: int, alpha: float, std: float, rounds: int) -> list[Row]:
    """Measure one query of 8 heads; `std` is the standard deviation of its scores."""
    torch.manual_seed(keys)
    key, value = torch.randn(2, 1, HEADS, keys, SIZE)
    query = torch.nn.functional.normalize(torch.randn(1, HEADS, 1, SIZE), dim=-1) * std * math.sqrt(SIZE)
    store = ScreenedKeys(key, value)
    key, value = store.read()  # all calls read the same memory, so caches help them equally
    _, support = tsallis.entmax_attention(query, store, alpha=alpha, return_support=True)
    calls: dict[str, Callable[[], object]] = {
        "screened": lambda: tsallis.entmax_attention(query, store, alpha=alpha),
        "dense": lambda: tsallis.entmax_attention(query, key, value, alpha),
        "sdpa": lambda: scaled_dot_product_attention(query, key, value),
    }
    numbers = HEADS * keys * SIZE
    bytes_read = {"screened": HEADS * keys * (SIZE + 4), "dense": 4 * numbers, "sdpa": 8 * numbers}
    about = {"part": "decoding", "rows": keys, "size": SIZE, "alpha": alpha, "std": std}
    return rows_of(calls, bytes_read, rounds, **about, support=float(support.float().mean()))


def memory(rounds: int) -> list[Row]:
    """Measure the time of a thread to read a gigabyte of memory."""
    numbers = torch.ones(1 << 28)
    calls = dict.fromkeys(("read", "again", "and again"), numbers.sum)
    about = {"part": "memory", "rows": 1 << 28, "size": 1, "alpha": "", "std": "", "support": ""}
    return rows_of(calls, dict.fromkeys(calls, 4 << 28), rounds, **about)[:1]


READER = "import torch; x = torch.ones(1 << 28); torch.set_num_threads(1)\nwhile True: x.sum()"


@contextlib.contextmanager
def busy_memory() -> Iterator[None]:
    """Run a process in the background that reads memory all the time."""
    with subprocess.Popen([sys.executable, "-c", READER]) as reader:
        time.sleep(5)
        yield
        reader.kill()


def louver(clone: Path, keys: int, clustered: bool, rounds: int) -> list[Row]:
    """Measure one query over random keys, or over keys in clusters of 64, which suit an index."""
    sys.path.insert(0, str(clone))
    from benchmark_area.kernel_impl.TA_filter_alg.cpu.cpu_index import TAIndexCPU

    torch.manual_seed(keys)
    size, std = 128, 2.0
    key, value = torch.randn(2, HEADS, keys, size)
    if clustered:
        key = torch.randn(HEADS, keys // 64, size).repeat_interleave(64, 1) + 0.3 * key
    query = torch.nn.functional.normalize(torch.randn(HEADS, size), dim=-1) * std * math.sqrt(size)
    store, one = ScreenedKeys(key[None], value[None]), query[None, :, None]
    _, support = tsallis.entmax_attention(one, store, return_support=True)
    scores = torch.einsum("hd,hnd->hn", query, key)
    least = torch.stack([row.topk(int(n)).values[-1] for row, n in zip(scores, support[0, :, 0], strict=True)])
    index = TAIndexCPU().build(key, value)
    calls: dict[str, Callable[[], object]] = {
        "screened": lambda: tsallis.entmax_attention(one, store),
        "dense": lambda: tsallis.entmax_attention(one, *store.read()),
        "louver": lambda: index.attend(query, least),
    }
    about = {"part": f"louver, {'clustered' if clustered else 'random'} keys", "rows": keys, "size": size}
    about |= {"alpha": 1.5, "std": std, "support": float(support.float().mean())}
    return [{**row, "gb_s": ""} for row in rows_of(calls, dict.fromkeys(calls, 0), rounds, **about)]


def output(classes: int, size: int, alpha: float, std: float, rounds: int) -> list[Row]:
    """Measure the search for the support of one state in an output layer."""
    torch.manual_seed(classes)
    layer = OutputLayer(size, classes, "entmax", alpha, bias=False).requires_grad_(False)
    torch.nn.init.normal_(layer.projection.weight, std=1 / math.sqrt(size))
    hidden = torch.nn.functional.normalize(torch.randn(1, size), dim=-1) * std * math.sqrt(size)
    calls: dict[str, Callable[[], object]] = {
        "screened": lambda: layer.support(hidden),
        "dense": lambda: layer.probs(layer.scores(hidden)),
        "product": lambda: layer.scores(hidden),
    }
    full = 4 * classes * size
    bytes_read = {"screened": classes * (size + 4), "dense": full, "product": full}
    about = {"part": "output", "rows": classes, "size": size, "alpha": alpha, "std": std}
    return rows_of(calls, bytes_read, rounds, **about, support=float(len(layer.support(hidden).indices)))


def generation(keys: int, std: float, rounds: int) -> list[Row]:
    """Measure steps of a language model after random keys; `std` is the standard deviation of the scores."""
    size, layers = HEADS * SIZE, 4

    def build(alpha: float, cache: Callable[..., StepCache]) -> Callable[[], object]:
        torch.manual_seed(keys)
        sizes = {"d_model": size, "heads": HEADS, "layers": layers, "d_ff": 1376, "positions": "rope"}
        model = LanguageModel(8000, **sizes, alpha=alpha).eval()
        for layer in model.layers:
            torch.nn.init.normal_(layer.self_attn.in_proj_weight[:size], std=std / math.sqrt(size))
        buffers = torch.randn(2 * layers, 1, HEADS, keys + 8 * rounds, SIZE)
        first = torch.tensor([1])
        state = LanguageState(KVBuffers(buffers.unbind(), keys), keys, None, first - 1, 0, None)

        def call() -> object:
            nonlocal state
            language.step_cache = cache
            state = model.step(state, first).state
            return state

        return call

    calls = {"screened": build(1.5, step_cache), "dense": build(1.5, StepCache), "softmax": build(1.0, StepCache)}
    about = {"part": "generation", "rows": keys, "size": size, "alpha": 1.5, "std": std, "support": ""}
    return [{**row, "gb_s": ""} for row in rows_of(calls, dict.fromkeys(calls, 0), rounds, **about)]


def transformers(keys: int, std: float, rounds: int) -> list[Row]:
    """Measure steps of a Hugging Face Llama after random keys."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    from tsallis.huggingface import ScreenedCache, sparsify

    size, layers, token = HEADS * SIZE, 4, torch.tensor([[5]])
    sizes = {"hidden_size": size, "intermediate_size": 1376, "num_attention_heads": HEADS, "num_hidden_layers": layers}
    config = LlamaConfig(vocab_size=8000, max_position_embeddings=1 << 17, **sizes)

    def build(sparse: bool, cache: DynamicCache | ScreenedCache) -> Callable[[], object]:
        torch.manual_seed(keys)
        model = LlamaForCausalLM(config).eval()
        for number, layer in enumerate(model.model.layers):
            torch.nn.init.normal_(layer.self_attn.q_proj.weight, std=std / math.sqrt(size))
            cache.update(*torch.randn(2, 1, HEADS, keys, SIZE), number)
        model = sparsify(model, 1.5) if sparse else model
        return lambda: model(token, past_key_values=cache)

    calls = {
        "screened": build(True, ScreenedCache()),
        "dense": build(True, DynamicCache()),
        "softmax": build(False, DynamicCache()),
    }
    about = {"part": "transformers", "rows": keys, "size": size, "alpha": 1.5, "std": std, "support": ""}
    return [{**row, "gb_s": ""} for row in rows_of(calls, dict.fromkeys(calls, 0), rounds, **about)]


def pair(text: str) -> tuple[int, int]:
    """Parse SIZExSYMBOLS."""
    size, symbols = text.split("x")
    return int(size), int(symbols)


def search(kind: str, size: int, symbols: int, beam: int, std: float, rounds: int) -> list[Row]:
    """Measure beam searches of 30 steps for one source of 20 symbols."""
    source, supports = (torch.randint(4, 50, (1, 20)), torch.tensor([20])), []

    def build(transform: str, scanned_rows: int) -> Callable[[], object]:
        torch.manual_seed(0)
        options = {"d_model": size, "output": transform, "attention": "softmax"}
        layers = {"layers": 3, "d_ff": 4 * size, "heads": 8, "norm": "pre", "dropout": 0.0}
        transformer = kind == "transformer"
        model = (
            TransformerSeq2Seq(50, symbols, **options, **layers) if transformer else RNNSeq2Seq(50, symbols, **options)
        )
        hidden_size = math.sqrt(size) if transformer else math.sqrt(size) / 3  # approximate norm of a state
        torch.nn.init.normal_(model.output.projection.weight, std=std / hidden_size)
        model.output.projection.bias[2] = -100.0  # the search never ends early
        state = model.eval().start(model.encode(*source))
        supports.append(int((model.output.probs(model.step(state, torch.tensor([1])).scores) > 0).sum()))

        def call() -> object:
            kernels.SCANNED_ROWS, kernels.MIN_SCANNED = scanned_rows, 1
            return beam_search(model, *source, beam_size=beam, max_length=30)

        return call

    calls = {"screened": build("entmax", 5), "dense": build("entmax", 0), "softmax": build("softmax", 0)}
    about = {"part": f"{kind}, beam {beam}", "rows": symbols, "size": size, "alpha": 1.5, "std": std}
    rows = rows_of(calls, dict.fromkeys(calls, 0), rounds, **about, support=float(supports[0]))
    return [{**row, "gb_s": ""} for row in rows]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="*", default=[1024, 2048, 4096, 8192, 16384, 65536])
    parser.add_argument("--classes", type=int, nargs="*", default=[32000])
    parser.add_argument("--size", type=int, default=512, help="size of the states of output layers")
    sizes = [(256, 5000), (256, 10000), (512, 32000)]
    parser.add_argument("--outputs", type=pair, nargs="*", default=sizes, help="output layers, as SIZExSYMBOLS")
    parser.add_argument("--busy", action="store_true", help="also measure while another process reads memory")
    parser.add_argument("--louver", type=Path, metavar="FOLDER", help="folder of a clone of Louver")
    parser.add_argument("--contexts", type=int, nargs="*", default=[8192, 65536], help="numbers of context tokens")
    parser.add_argument("--alpha", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="CSV file for the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    announce()
    rows = memory(options.rounds) if options.keys else []
    rows += [row for n in options.keys for std in SPREADS for row in decoding(n, options.alpha, std, options.rounds)]
    if options.busy:
        with busy_memory():
            busy = [*memory(options.rounds), *(x for n in options.keys for x in decoding(n, 1.5, 1.0, options.rounds))]
        rows += [{**row, "part": f"{row['part']}, busy"} for row in busy]
    for n, clustered in product(options.keys if options.louver else (), (False, True)):
        rows += louver(options.louver, n, clustered, options.rounds)
    for classes in options.classes:
        for std in (*SPREADS, 3.5):
            rows += output(classes, options.size, options.alpha, std, options.rounds)
    rows += [row for n in options.contexts for std in SPREADS for row in generation(n, std, options.rounds)]
    rows += [row for n in options.contexts for std in SPREADS for row in transformers(n, std, options.rounds)]
    for kind, beam, (size, symbols) in product(("transformer", "lstm"), (1, 2, 5), options.outputs):
        for std in SPREADS:
            rows += search(kind, size, symbols, beam, std, options.rounds)
    write(options.out, rows)
    print(table(rows, COLUMNS))
    screened = {f"{row['part']} {row['rows']} std {row['std']}": row for row in rows if row["name"] == "screened"}
    for part, size, column, bound in (
        ("decoding 65536", 65536, "to_today", 0.3),
        ("decoding 65536", 65536, "to_peer", 0.1),
        ("decoding 16384", 16384, "to_today", 0.5),
        ("output", 32000, "to_today", 0.2),
    ):
        values = {name: row[column] for name, row in screened.items() if name.startswith(part) and row["rows"] == size}
        print(*verdict(f"{part}, {column}", bound, values), sep="\n")
    values = {name: row["to_today"] for name, row in screened.items() if row["part"] == "decoding"}
    print(*verdict("decoding, never slower but for noise", 1.05, values), sep="\n")


if __name__ == "__main__":
    main()
