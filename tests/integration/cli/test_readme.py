"""Run every command and example of the README, and every command of the pages on commands and measurements."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from integration.cli.conftest import environment, write_examples
from process_fork import Ended, run_forked
from process_fork import command as forked_command
from tsallis.toolkit.datasets.embedded import german_english_numbers
from tsallis.toolkit.tasks.strings import english_verbs

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OTHERS = """tutorial own-file tutorial-g2p how-to/from-yoyodyne how-to/cluster command-line training translation
language-models continuous-models report results-peters results-correia results-tezekbayev results-long-contexts"""
PAGES = [README, *((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in OTHERS.split())]
BLOCKS = [block for page in PAGES for block in re.findall(r"```console\n(.*?)```", page, re.S)]
CONSOLE = [command for block in BLOCKS for command in re.findall(r"^\$ (.*)$", block, re.M)]
# A Transformer that trains in a second.
MINUTE = (
    " training.updates=3 training.warmup=2 training.validate_updates=3 training.validation_rows=5"
    " data.subwords.size=150 model.d_model=8 model.heads=2 model.encoder_layers=1 model.decoder_layers=1 model.d_ff=8"
)
# Settings that shorten commands of several minutes; all other commands run exactly as written.
SMALLER = {
    "tsallis train recipes/tiny/translation": MINUTE,
    "torchrun --nproc-per-node 2 -m tsallis train recipes/tiny/translation": MINUTE,
    "tsallis train recipes/tiny/long-copy": " training.updates=3 training.warmup=1 model.d_model=16",
    "tsallis train recipes/tiny/language": " training.updates=3 training.warmup=1 training.validate_updates=3",
    "tsallis train recipes/multi30k/language": " training.updates=3 training.warmup=1 data.subwords.size=150",
    "tsallis train recipes/multi30k/de-en-lstm": " training.updates=3 data.subwords.size=150 model.d_model=8",
    "tsallis train recipes/multi30k": MINUTE,
    "tsallis train recipes/tatoeba": MINUTE,
    "tsallis train recipes/kftt": MINUTE,
    "tsallis train recipes/tiny/strings.yaml training.epochs": " training.updates=160 model.d_model=16",
    "tsallis train recipes/tiny/strings": " training.epochs=1 model.d_model=16",
    "tsallis train words.tsv": " training.updates=20 model.d_model=16",
    "tsallis train data/sigmorphon2021": " training.updates=20 model.d_model=16",
    "printf 'апэ\\nмалхъо\\n' | tsallis translate runs/adyghe --all": " --budget 20",
    "tsallis translate runs/adyghe data/sigmorphon2021-g2p/ady_test.tsv --all": " --budget 5",
    "tsallis train paradigms.tsv": " training.updates=3 model.d_model=16",
    "tsallis train recipes/sigmorphon2018": " training.epochs=1 model.d_model=8 model.layers=1",
    "tsallis train recipes/easy-vqa": " training.epochs=1 training.updates=3 training.warmup=2 model.d_model=8",
    "tsallis train recipes/martins2020/imdb": " training.epochs=1 model.d_model=8 model.num_basis=8",
    "tsallis analyze runs/alpha-1 runs/alpha-1.25 runs/tau-0.3": " --sentences 1",
    "tsallis analyze runs/kftt-learned": " --sentences 1",
    "python examples/classify.py": " --epochs 1 --d-model 8 --num-basis 8",
    "python examples/visual.py": " --epochs 1 --d-model 8",
    "python examples/shapes.py": " --train 30 --test 10",
    "python examples/timeseries.py": " --epochs 1 --num-basis 4",
}
ELSEWHERE = {
    "make demo": "tests/integration/cli/test_commands.py runs `tsallis demo`",
    "make test": "runs this test",
    "tsallis demo": "tests/integration/cli/test_commands.py",
    "tsallis serve": "tests/integration/cli/test_serve.py",
    "python examples/piece_vectors.py": "tests/unit/test_example_data.py",
    "python examples/image_features.py": "tests/unit/test_example_data.py",
    "pip install": "what `make` does; see the Makefile",
}


def test_python_examples_run_in_order() -> None:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", README, re.S):
        exec(compile(block, "README.md", "exec"), names)


def test_make_targets_exist_and_pip_uses_constraints() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in CONSOLE:
        if command.startswith("make "):
            assert re.search(rf"^{command.split()[1]}:", makefile, re.M), command
        if command.startswith("pip "):
            assert "-c constraints.txt" in command or "--no-deps" in command
    assert "PIP_CONSTRAINT" in makefile


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder like a user's, with the recipes and with small data in place of the real data."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("recipes", "examples", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name)
    data = folder / "data" / "sigmorphon2018"
    data.mkdir(parents=True)
    for language in ("adyghe", "english", "finnish", "polish", "spanish"):
        for split in ("train-high", "train-medium", "dev", "test"):
            write_examples(data / f"{language}-{split}", english_verbs()["dev"][:60])
    write_pairs(folder / "data" / "multi30k", ("train", "val", "test_2016_flickr"), "de")
    write_pairs(folder / "data" / "kftt", ("kyoto-train", "kyoto-dev", "kyoto-test"), "ja")
    write_pairs(folder / "data" / "tatoeba-de-en", ("train", "dev", "test"), "de")
    write_strings(folder)
    write_others(folder)
    scripts = folder / "bin"
    scripts.mkdir()
    launcher = "torch.distributed.run --standalone --local-addr 127.0.0.1"
    for name, module in (("tsallis", "-m tsallis"), ("torchrun", f"-m {launcher}"), ("python", "")):
        script = scripts / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        script.chmod(0o755)
    return folder


def write_pairs(folder: Path, names: tuple[str, str, str], src: str) -> None:
    folder.mkdir()
    corpus = german_english_numbers()
    for split, name in zip(("train", "dev", "test"), names, strict=True):
        pairs = corpus[split][: 200 if split == "train" else 8]
        for i, side in enumerate((src, "en")):
            (folder / f"{name}.{side}").write_text("".join(f"{pair[i]}\n" for pair in pairs), encoding="utf-8")


def write_strings(folder: Path) -> None:
    """Write files with columns like those of a spreadsheet."""
    verbs = english_verbs()["dev"][:200]
    words = [f"{e.source}\t{' '.join(e.source)}\n" for e in verbs[::4]]
    for name, lines in (("words", words[:30]), ("dev", words[30:40]), ("test", words[40:]), ("new", words[40:])):
        (folder / f"{name}.tsv").write_text("".join(lines))
    adyghe = folder / "data" / "sigmorphon2021-g2p"
    adyghe.mkdir()
    for split, lines in (("train", words), ("dev", words[:5]), ("test", words[:5])):
        (adyghe / f"ady_{split}.tsv").write_text("".join(lines))
    (folder / "paradigms.tsv").write_text("".join(f"{e.source}\t{';'.join(e.features)}\t{e.target}\n" for e in verbs))


def write_others(folder: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    names = ("imdb", "easy-vqa", "daquar", "daquar-features", "physionet2012", "sst2")
    reviews, easy, daquar, features, stays, sentences = (folder / "data" / name for name in names)
    for location in (reviews, easy, daquar, features, stays, sentences):
        location.mkdir()
    for vectors in (reviews / "scaled", sentences / "minilm"):
        safetensors.torch.save_file({"vectors": torch.ones(2, 384)}, vectors.with_suffix(".safetensors"))
        vectors.with_suffix(".txt").write_text("film\nfine\n")
    np.save(features / "features.npy", np.ones((30, 6, 8, 16), np.float16))
    pixels = np.random.default_rng(0).integers(0, 256, (30, 16, 16, 3)).astype(np.uint8)
    with tarfile.open(daquar / "images.tar", "w") as tar:
        for i, picture in enumerate(pixels):
            images.fromarray(picture).save(folder / "image.png")
            tar.add(folder / "image.png", f"image{i + 1}.png")
    for split in ("train", "test"):
        text = "".join(f"{i % 2}\t9\t{i}\tA {'fine' if i % 2 else 'dull'} film, {i}.\n" for i in range(60))
        (reviews / f"{split}.tsv").write_text(text)
        (sentences / f"{split}.tsv").write_text(text)
        np.save(easy / f"{split}_images.npy", pixels)
        request = [(i, "what color is the shape?", "red" if i % 2 else "blue") for i in range(30)]
        head = "image\tquestion\tanswer\n"
        (easy / f"{split}_questions.tsv").write_text(head + "".join(f"{i}\t{q}\t{a}\n" for i, q, a in request))
        (daquar / f"{split}.tsv").write_text(head + "".join(f"image{i + 1}\t{q}\t{a}\n" for i, q, a in request))
        (features / f"{split}.tsv").write_text("".join(f"{i}\t{q}\t{a}\n" for i, q, a in request))
    for name in "ab":
        lines = [f"{i},{60 * k},HR,{70 + i % 2 * 20 + k}\n" for i in range(40) for k in range(3)]
        (stays / f"set-{name}.csv").write_text("RecordID,minute,parameter,value\n" + "".join(lines))
        died = [f"{i},{i % 2}\n" for i in range(40)]
        (stays / f"Outcomes-{name}.csv").write_text("RecordID,In-hospital_death\n" + "".join(died))


def with_settings(command: str, settings: str) -> str:
    """Return a command with some of its settings replaced."""
    keys = [setting.partition("=")[0] for setting in settings.split()]
    kept = [word for word in command.split(" ") if "=" not in word or word.partition("=")[0] not in keys]
    return " ".join(kept) + settings


def run_in(folder: Path, line: str) -> Ended:
    """Run a command line in a folder; `tsallis` commands run in a fork of this process, which starts faster."""
    ours = re.fullmatch(r"(?:printf '([^']*)' \| )?tsallis ([^|>]*)", line)
    if ours is None:
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["/bin/sh", "-c", line], cwd=folder, env={**environment(), "PATH": path}, capture_output=True, text=True
        )
        return Ended(done.returncode, done.stdout, done.stderr)
    stdin = (ours[1] or "").replace("\\t", "\t").replace("\\n", "\n")
    work = forked_command(*shlex.split(ours[2]))

    def run() -> None:
        os.chdir(folder)
        work()

    return run_forked(run, stdin.encode(), seconds=600)


@pytest.mark.slow
def test_console_commands_run_in_order(workplace: Path) -> None:
    lines = [line.split("#")[0].strip() for line in CONSOLE]
    for bare in dict.fromkeys(lines):
        if any(bare.startswith(known) for known in ELSEWHERE):
            continue
        smaller = next((extra for start, extra in SMALLER.items() if bare.startswith(start)), "")
        done = run_in(workplace, with_settings(bare, smaller))
        if bare.startswith("tsallis data get"):
            # Without a network, the command finds the small data and rejects it, because it is not the known file. The
            # files of Tatoeba have no digests.
            refused = "differs from the known file" in done.errors or "delete it to download it again" in done.errors
            assert (done.status == 2 and refused) or "tatoeba" in bare, done.errors
        else:
            assert done.status == 0, f"{bare}: {done.errors}"
            assert done.text or ">" in bare
