"""The command `tsallis demo`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tsallis.errors import InputError
from tsallis.search.options import SearchOptions
from tsallis.toolkit.cli.options import Device
from tsallis.toolkit.cli.output import check_folder, check_writable
from tsallis.toolkit.cli.train import prepare_training, run_training
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.optional_output import OptionalOutput

if TYPE_CHECKING:
    from tsallis.search import Result
    from tsallis.toolkit.training import Run

SEARCH = SearchOptions(beam_size=5)
SOFTMAX = ("model.output=softmax", "model.attention=softmax")
COMPARISON = ("accuracy", "output_support", "attention_support", "single", "complete", "optimal")
MAX_ANSWERS = 4  # maximum number of answers printed per word; further answers are only counted
REPORT_EXAMPLES = 200  # number of verb forms that the report analyses
BLOCKS = "░▒▓█"  # characters for weights, from small to 1


class Question(NamedTuple):
    """A question for the models, with the answers found in dictionaries."""

    line: str  # lemma and tags
    title: str
    correct_answers: tuple[str, ...]


# These verbs are not in the data: two have two spellings, and one is newer than the list of verbs.
QUESTIONS = (
    Question("travel\tV;PST", "travel, past tense", ("traveled", "travelled")),
    Question("model\tV;V.PTCP;PRS", "model, present participle", ("modeling", "modelling")),
    Question("vlog\tV;PST", "vlog, past tense", ("vlogged",)),
)


def demo(
    run_dir: Annotated[Path, typer.Option(help="Write the run to this folder.")] = Path("runs/demo"),
    updates: Annotated[
        int | None, typer.Option(min=2, help="Number of training updates (default: the recipe's).")
    ] = None,
    device: Device = "auto",
) -> None:
    """Train two small models on English verbs, and show every possible answer with its proof."""
    output: Any = OptionalOutput(sys.stdout, "the demo continues and writes its page")
    with contextlib.redirect_stdout(output):
        _run_demo(run_dir, updates, device)


def _run_demo(run_dir: Path, updates: int | None, device: str) -> None:
    from importlib.resources import as_file, files

    import torch

    from tsallis.toolkit.cli.analyze import report_runs
    from tsallis.toolkit.tasks.registry import load_config
    from tsallis.toolkit.tasks.scoring import evaluate_outputs
    from tsallis.toolkit.training.distributed import World, device_kind

    if run_dir.name in ("", ".."):
        raise InputError(f"--run-dir must be a folder with a name, such as runs/demo, got {run_dir}")
    softmax_dir = run_dir.with_name(f"{run_dir.name}-softmax")
    check_folder(run_dir)
    check_folder(softmax_dir)
    overrides = [] if updates is None else [f"training.updates={updates}", f"training.warmup={max(updates // 10, 1)}"]
    print("Two models learn to inflect English verbs: one with 1.5-entmax in attention and output, one with softmax.")
    print(f"You see the training of the first model. The second model trains at the same time, in {softmax_dir}.")
    with as_file(files("tsallis.toolkit.recipes").joinpath("demo.yaml")) as path:
        config = load_config(path, overrides)
        world = World(device=torch.device(device_kind(device)))
        check_writable(run_dir / "report.html")
        # Check both folders first: otherwise the first training could start although the second is rejected.
        for folder, settings in ((run_dir, overrides), (softmax_dir, [*overrides, *SOFTMAX])):
            prepare_training(load_config(path, settings), folder, world)
        arguments = [str(path), *overrides, *SOFTMAX, "--run-dir", str(softmax_dir), "--device", device]
        with _training_in_background(arguments):
            run_training(config, run_dir, world)
    opened = [open_run(folder, device=device) for folder in (run_dir, softmax_dir)]
    sparse, softmax, task = opened[0].run, opened[1].run, opened[0].task

    scores = [evaluate_outputs(task, run, task.split(run, config.data, "dev"), SEARCH)[0] for run in (sparse, softmax)]
    print("\n1. Scores on verbs that neither model has seen:\n")
    _print_scores(*scores)
    print("\n2. Answers for three other verbs, with the certificates of both lists:")
    answers = [_answer(run, task) for run in (sparse, softmax)]
    for question, result, softmax_result in zip(QUESTIONS, *answers, strict=True):
        _print_answers(question, result, softmax_result, sparse, softmax)
    _explain(answers[0])
    print("\n3. The letters (columns) to which the model attends at each step (rows). A blank is exactly zero:\n")
    _print_attention(sparse, task.read([QUESTIONS[0].line], "demo", sparse, gold=False).corpus.src[0], answers[0][0])
    print("\n4. A report on both models; open it in a browser:\n")
    limits = {"limit": REPORT_EXAMPLES, "sentences": 12}
    report_runs(opened, SearchOptions(), run_dir / "report.html", limits=limits)
    print("\nTo try next:\n")
    print(f"  printf 'vlog\\tV;PST\\n' | tsallis translate {run_dir} --all")
    print(f"  printf 'travel\\tV;PST\\ttrav\\n' | tsallis suggest {run_dir}")
    print(f"  printf 'travel\\ttravelt\\tV;PST\\n' | tsallis score {run_dir} --tokens")


@contextlib.contextmanager
def _training_in_background(arguments: list[str]) -> Iterator[None]:
    """Train in a second process with half of the threads; wait for that process at the end."""
    import torch

    threads = torch.get_num_threads()
    half = max(threads // 2, 1)
    command = [sys.executable, "-m", "tsallis", "train", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": str(half)}
    with tempfile.TemporaryFile() as errors:  # not a pipe: a full pipe would stop the process
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
        process = subprocess.Popen(command, env=environment, **pipes)
        torch.set_num_threads(half)
        try:
            yield
            if process.wait():
                errors.seek(0)
                print(errors.read().decode(errors="replace"), end="", file=sys.stderr)
                raise typer.Exit(process.returncode)
        finally:
            process.terminate()
            process.wait()
            torch.set_num_threads(threads)


def _print_scores(sparse: dict[str, Any], softmax: dict[str, Any]) -> None:
    """Print a table with one column per model."""
    from tsallis.analysis.score_names import SCORES

    print(f"  {'':<34}{'1.5-entmax':>12}{'softmax':>10}")
    for key in COMPARISON:
        row = SCORES[key]
        print(f"  {row.title:<34}{format(sparse[key], row.format):>12}{format(softmax[key], row.format):>10}")


def _answer(run: Run, task: Any) -> list[Result]:
    """Return a beam search result per question."""
    from tsallis.toolkit.evaluation.search_results import search_corpus

    lines = task.read([question.line for question in QUESTIONS], "demo", run, gold=False)
    return search_corpus(run.model, lines.corpus, SEARCH)


def _print_answers(question: Question, sparse: Result, softmax: Result, *runs: Run) -> None:
    """Print the hypotheses of both models side by side, with the sums of their probabilities."""
    print(f"\n  {question.title}:")
    columns = [
        [f"1.5-entmax: {sparse.certificate.kind}", *_hypotheses(question, sparse, runs[0])],
        [f"softmax: {softmax.certificate.kind}", *_hypotheses(question, softmax, runs[1])],
    ]
    for left, right in zip_longest(*columns, fillvalue=""):
        print(f"    {left:<36}{right}".rstrip())


def _hypotheses(question: Question, result: Result, run: Run) -> list[str]:
    """Return the lines of a model's column: best outputs, number of further outputs, and sum of probabilities."""
    texts = [(run.tgt_vocab.decode(hypothesis.tokens), hypothesis.prob) for hypothesis in result.hypotheses]
    rows = [
        f"  {text or '(empty)':<14}{prob:.6f}{'  correct' * (text in question.correct_answers)}"
        for text, prob in texts[:MAX_ANSWERS]
    ]
    if omitted := texts[MAX_ANSWERS:]:
        rows.append(f"  {f'and {len(omitted)} more':<14}{sum(prob for _, prob in omitted):.6f}")
    return [*rows, f"  {'sum':<14}{result.mass:.6f}"]


def _explain(results: list[Result]) -> None:
    """Print what the first model's certificates prove."""
    complete = sum(result.certificate.kind == "complete" for result in results)
    print(
        f"\n  Complete ({complete} of these {len(results)}): the search never dropped a prefix with a probability above"
        "\n  zero, so the list contains every possible answer. Every other string has probability 0."
        "\n  Optimal: no missing string is more probable than the first answer. Softmax gives every string a"
        "\n  probability above 0, so its list is never complete."
    )


def _print_attention(run: Run, source: Any, result: Result) -> None:
    """Print the attention weights of the best answer as a picture."""
    from tsallis.analysis.record import read_model, record
    from tsallis.toolkit.data.corpus import Corpus

    if result.best is None:
        return
    corpus = Corpus([source], [list(result.best.tokens)])
    (sentence,) = record(read_model(run.model, run.src_vocab, run.tgt_vocab), [corpus.batch([0])])
    queries, keys = sentence.text.sides("cross")
    weights = sentence.weights[-1].head(0).dense()[0]
    names = [piece.removeprefix("<tag:").removesuffix(">") if len(piece) > 1 else piece for piece in keys]
    for line in attention_lines(weights.tolist(), names, [*queries[1:], "end"]):
        print(f"  {line}".rstrip())


def attention_lines(weights: Sequence[Sequence[float]], src: Sequence[str], tgt: Sequence[str]) -> list[str]:
    """Draw attention weights [tgt, src] as text, with one line per target symbol; zero weights are blank.

    Example:
        >>> for line in attention_lines([[1.0, 0.0], [0.2, 0.8]], ["i", "n"], ["i", "m"]):
        ...     print(line.rstrip())
           i  n
        i  ██
        m  ░░ ██
    """
    margin = max(map(len, tgt)) + 2
    widths = [max(len(symbol), 2) + 1 for symbol in src]
    lines = [" " * margin + "".join(symbol.ljust(width) for symbol, width in zip(src, widths, strict=True))]
    for symbol, row in zip(tgt, weights, strict=True):
        cells = (_shade(weight).ljust(width) for weight, width in zip(row, widths, strict=True))
        lines.append(symbol.ljust(margin) + "".join(cells))
    return lines


def _shade(weight: float) -> str:
    return BLOCKS[min(int(weight * len(BLOCKS)), len(BLOCKS) - 1)] * 2 if weight > 0 else ""
