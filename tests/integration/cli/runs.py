"""Configurations of tiny trainings, and their data."""

from __future__ import annotations

from pathlib import Path

from integration.cli.conftest import write_examples
from run_seed import SEED
from tsallis.toolkit.tasks.strings import english_verbs

STRINGS = """\
version: 1
data: {{folder: {folder}, train: train.tsv, dev: dev.tsv}}
model: {{d_model: 4, layers: 1}}
training: {{epochs: 2, batch_size: 8, checkpoint_every: 2, learning_rate: 0.01, keep: 2, seed: {seed}}}
"""
TRANSLATION = """\
version: 1
data:
  {{task: translation, folder: {folder}, train: train, dev: dev, cache: {folder}/cache,
    subwords: {{size: 90, sample: 0.2}}}}
model: {{architecture: transformer, d_model: 4, heads: 2, encoder_layers: 1, decoder_layers: 1, d_ff: 4,
  attention: learned}}
training: {{epochs: 2, max_tokens: 400, checkpoint_every: 3, learning_rate: 0.01, seed: {seed}}}
"""


def strings(folder: Path, lines: int = 32) -> Path:
    """Write a configuration for inflection and its data."""
    folder.mkdir(exist_ok=True)
    verbs = english_verbs()
    write_examples(folder / "train.tsv", verbs["train"][:lines])
    write_examples(folder / "dev.tsv", verbs["dev"][:6])
    return _written(folder, STRINGS)


def translation(folder: Path, dev: int = 6) -> Path:
    """Write a configuration for translation and its data; subwords are sampled."""
    from tsallis.toolkit.datasets.embedded import german_english_numbers

    folder.mkdir(exist_ok=True)
    corpus = german_english_numbers()
    for split, count in (("train", 120), ("dev", dev)):
        pairs = corpus[split][:count]
        for side, name in enumerate(("de", "en")):
            (folder / f"{split}.{name}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return _written(folder, TRANSLATION)


def _written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text.format(folder=folder, seed=SEED))
    return path
