"""Measure the time to make a report, and its size, for an untrained Transformer with 6 layers of 8 heads.

Its searches run up to the maximum length, twice the source's length; those of a trained model end earlier.
Processor seconds are the sum over all threads: they are more reliable than wall time on a busy machine.

python benchmarks/report.py [--sentences 1000] [--length 60] [--attention entmax] [--page report.html] [--out FILE.csv]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import Row, announce, machine, table, write

from tsallis.analysis.summary_records import RunSummary
from tsallis.models import TransformerSeq2Seq
from tsallis.ops import choice
from tsallis.report.page import build_page, encode_weights
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.run_analysis import Options, summarize
from tsallis.toolkit.training import Run
from tsallis.toolkit.training.file_names import MODEL

SYMBOLS = 8000
SHARPNESS = 3.0  # factor for the query and key projections, so that heads are as sparse as trained ones


def untrained_run(folder: Path, attention: str) -> Run:
    arguments = {"d_model": 512, "heads": 8, "layers": 6, "d_ff": 2048, "attention": attention}
    symbols = Vocabulary([f"▁{number}" for number in range(SYMBOLS - 4)])
    torch.manual_seed(0)
    model = TransformerSeq2Seq(SYMBOLS, SYMBOLS, **arguments).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("in_proj_weight"):
                parameter[: 2 * 512].mul_(SHARPNESS)
    record = {"class": "transformer", "arguments": {"src_vocab": SYMBOLS, "tgt_vocab": SYMBOLS, **arguments}}
    (folder / MODEL).write_text(json.dumps(record))
    return Run(folder, model, symbols, symbols, {"task": "translation"}, {})


def measure(sentences: int, length: int, attention: str) -> tuple[RunSummary, float, float]:
    random = np.random.default_rng(0)
    rows = [random.integers(4, SYMBOLS, length).tolist() for _ in range(2 * sentences)]
    with tempfile.TemporaryDirectory() as folder:
        run = untrained_run(Path(folder), attention)
        start, processor = time.perf_counter(), time.process_time()
        corpus = Corpus(rows[:sentences], [row[:-1] for row in rows[sentences:]])
        summary = summarize(run, corpus, "random symbols", Options(limit=sentences))
    return summary, time.perf_counter() - start, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--length", type=int, default=60)
    parser.add_argument("--attention", default="entmax")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    announce()
    summary, seconds, processor = measure(options.sentences, options.length, options.attention)
    start = time.perf_counter()
    page = build_page([summary])
    row: Row = {
        "sentences": options.sentences,
        "symbols": options.length,
        "attention": options.attention,
        "density": sum(head.density for head in summary.heads) / len(summary.heads),
        "seconds": seconds,
        "processor_seconds": processor,
        "page_seconds": time.perf_counter() - start,
        "page_mb": len(page) / 1e6,
        "largest_sentence_mb": max(len(encode_weights(sentence.weights)) for sentence in summary.sentences) / 1e6,
    }
    print(table([row], list(row)))
    write(options.out, [row | {"backend": choice.explain(), **machine()}])
    if options.page:
        options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
