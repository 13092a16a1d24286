"""The command `tsallis demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsallis.cli.input import open_run
from tsallis.cli.options import Device
from tsallis.cli.output import score_table
from tsallis.cli.train import run_training

if TYPE_CHECKING:
    from tsallis.tasks.base import Lines
    from tsallis.training import Run

SHOWN = 3  # words whose answers the demo lists
LISTED = 10  # answers listed a word


def demo(
    run_dir: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/english-verbs"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Fewer or more than the recipe's.")] = None,
    device: Device = "auto",
) -> None:
    """Train on the embedded English verbs, and list every answer the model holds possible for three words."""
    from importlib.resources import as_file, files

    import torch

    from tsallis.tasks.registry import load_config
    from tsallis.training.distributed import World, device_kind

    with as_file(files("tsallis.recipes").joinpath("demo.yaml")) as path:
        config = load_config(path, [] if epochs is None else [f"training.epochs={epochs}"])
    print("Learning to inflect English verbs with sparse attention and a sparse output (1.5-entmax).")
    run_training(config, run_dir, World(device=torch.device(device_kind(device))))
    run, task = open_run(run_dir, device=device)
    dev = task.split(run, config.data, "dev")
    print("\nOn verbs never seen in training:")
    print(score_table(task.evaluate(run, dev, config.search.beam_size)))
    print("\nThe complete set of answers the model holds possible for three of them:")
    _show_answers(run, dev)
    print(f"\nThe run is in {run_dir}. Ask it for more:")
    print(f"  printf 'rebel\\tV;PST\\n' | tsallis translate {run_dir} --all")


def _show_answers(run: Run, lines: Lines) -> None:
    """Print the words the model is least decided about, with all it holds possible for them."""
    from tsallis.evaluation.metrics import device_of, search_corpus
    from tsallis.search import exhaustive

    beams = search_corpus(run.model, lines.corpus, beam_size=LISTED)
    complete = [i for i, r in enumerate(beams) if r.certificate.kind == "complete" and 0 < len(r.hypotheses) <= LISTED]
    rows = sorted(complete, key=lambda i: beams[i].hypotheses[0].log_prob)[:SHOWN]
    batch = lines.corpus.batch(rows or range(SHOWN)).to(device_of(run.model))
    results = exhaustive(run.model, batch.src, batch.src_lengths)
    for i, result in zip(batch.index, results, strict=True):
        count = len(result.hypotheses)
        print(f"  {lines.titles[i]}: {count} answer{'s' * (count != 1)}, {result.certificate.kind}")
        for hypothesis in result.hypotheses[:LISTED]:
            print(f"    {run.tgt_vocab.text(hypothesis.tokens):<20}{hypothesis.prob:.6f}")
        if count > LISTED:
            print(f"    and {count - LISTED} more")
        print(f"    {'sum':<20}{result.mass:.6f}")
