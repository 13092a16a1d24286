"""Every command and example of the README is run, and every command of the pages on training and translation."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import environment, write_examples
from tsallis.data import english_verbs
from tsallis.data.numbers import german_english_numbers

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("training", "translation"))]
CONSOLE = [
    line.removeprefix("$ ")
    for page in PAGES
    for block in re.findall(r"```console\n(.*?)```", page, re.S)
    for line in block.splitlines()
    if line.startswith("$ ")
]
# A Transformer that trains in a second.
MINUTE = (
    " training.updates=3 training.warmup=2 training.validate_updates=3 training.validation_rows=5"
    " data.subwords.size=150 model.d_model=8 model.heads=2 model.encoder_layers=1 model.decoder_layers=1 model.d_ff=8"
)
# Quick versions of what takes minutes as it stands; everything else is run to the letter.
SMALLER = {
    "tsallis train recipes/tiny/translation": MINUTE,
    "torchrun --nproc-per-node 2 -m tsallis train recipes/tiny/translation": MINUTE,
    "tsallis train recipes/multi30k": MINUTE,
    "tsallis train recipes/tiny/inflection": " training.epochs=1 model.d_model=16",
    "tsallis train recipes/sigmorphon2018": " training.epochs=1 model.d_model=8 model.layers=1",
}
ELSEWHERE = {
    "make demo": "tests/cli/test_commands.py runs `tsallis demo`",
    "make test": "runs this test",
    "tsallis demo": "tests/cli/test_commands.py",
    "pip install": "what `make` does; see the Makefile",
}


def test_the_python_example_runs() -> None:
    for block in re.findall(r"```python\n(.*?)```", README, re.S):
        exec(compile(block, "README.md", "exec"), {})


def test_commands_run_elsewhere_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in CONSOLE:
        if command.startswith("make "):
            assert re.search(rf"^{command.split()[1]}:", makefile, re.M), command
        if command.startswith("pip "):
            assert "-c constraints.txt" in command and "PIP_CONSTRAINT" in makefile


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: the recipes, and data that stands in for the real one."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    data = folder / "data" / "sigmorphon2018"
    data.mkdir(parents=True)
    for split in ("train-high", "dev", "test"):
        write_examples(data / f"spanish-{split}", english_verbs()["dev"][:60])
    captions = folder / "data" / "multi30k"
    captions.mkdir()
    for split, name in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        pairs = german_english_numbers()[split][: 200 if split == "train" else 8]
        for i, side in enumerate(("de", "en")):
            (captions / f"{name}.{side}").write_text("".join(f"{pair[i]}\n" for pair in pairs), encoding="utf-8")
    scripts = folder / "bin"
    scripts.mkdir()
    launcher = f"torch.distributed.run --master-addr 127.0.0.1 --master-port {free_port()}"
    for name, module in (("tsallis", "tsallis"), ("torchrun", launcher)):
        script = scripts / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        script.chmod(0o755)
    return folder


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_the_commands_run_in_their_order(workplace: Path) -> None:
    for command in CONSOLE:
        bare = command.split("#")[0].strip()
        if any(bare.startswith(known) for known in ELSEWHERE):
            continue
        smaller = next((extra for start, extra in SMALLER.items() if bare.startswith(start)), "")
        path = f"{workplace / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["/bin/sh", "-c", bare + smaller], cwd=workplace, env={**environment(), "PATH": path}, capture_output=True
        )
        if bare.startswith("tsallis data get"):
            # No network here: the stand-in is found, and refused because it is not the known file.
            assert done.returncode == 2 and b"is not the known file" in done.stderr, done.stderr.decode()
        else:
            assert done.returncode == 0, f"{bare}: {done.stderr.decode()}"
            assert done.stdout
