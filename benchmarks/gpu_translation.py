"""Train the Transformers of Correia et al. 2019 on KFTT for a few minutes on a GPU, and save the run in small files.

    python benchmarks/gpu_translation.py --data KFTT --attention learned --seconds 360 --out OUT   # on the GPU
    python benchmarks/gpu_translation.py --unpack OUT --run runs/kftt-heads-learned                # elsewhere
    tsallis evaluate runs/kftt-heads-learned --manifest kftt-heads-learned.json

The recipe is `recipes/kftt/ja-en-heads.yaml`. A first training of a few updates compiles the kernels and measures the
time per update. The second training makes as many updates as fit into the remaining seconds, and its learning rate
falls to zero at the end. If it takes longer than expected, SIGTERM ends it, and it saves a checkpoint. OUT then
contains the logs and `run.tar.*`: the run folder with its best checkpoint, without the optimizer's state, in files of
at most 15 MiB.

`tsallis train` needs the packages of `tsallis[toolkit]`. On a machine without network, put wheels of the missing ones
into a folder and pass it as `--wheels`. They are installed in a temporary folder, without their dependencies.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # the package may not be installed
RECIPE = ROOT / "recipes/kftt/ja-en-heads.yaml"
PART = 15 << 20  # maximum size of an output file, in bytes
PILOT = (20, 60)  # updates of the first training: before the timing starts, and in total
ATTENTIONS = ("learned", "softmax", "entmax")
# Packages of `tsallis train`, and those of pydantic, by module.
NEEDED = {
    **{
        name: name
        for name in ("jinja2", "numpy", "regex", "rich", "sacrebleu", "safetensors", "sentencepiece", "typer")
    },
    "yaml": "pyyaml",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "annotated_types": "annotated-types",
    "typing_inspection": "typing-inspection",
}
RESERVED = 25.0  # seconds reserved for the start, the last validation, the last checkpoint and the packing
TINY = [
    *("model.d_model=16", "model.heads=2", "model.d_ff=32", "model.encoder_layers=1", "model.decoder_layers=1"),
    "training.max_tokens=200",
]


def require_packages(wheels: Path | None, target: Path) -> None:
    """Install wheels, if there are any, in the folder `target`; exit if a package of `tsallis train` is missing."""
    if wheels and (files := sorted(wheels.glob("*.whl"))):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", f"--target={target}"]
        subprocess.run([*command, *files], check=True)
        sys.path.insert(0, str(target))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH", "")]))
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise SystemExit(
            f"tsallis train needs {', '.join(missing)}: install tsallis[toolkit]. On a machine without network, put "
            "their wheels into a folder and pass it as --wheels"
        )


def unpack_data(source: Path, target: Path) -> None:
    """Copy the corpus, and decompress its .xz files."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("kyoto-*")):
        if path.suffix == ".xz":
            with lzma.open(path) as packed, (target / path.stem).open("wb") as plain:
                shutil.copyfileobj(packed, plain)
        else:
            shutil.copy(path, target)


def train(run: Path, overrides: Sequence[str], log: Path, limit: float) -> None:
    """Run `tsallis train`; at the limit, send SIGTERM, which makes it save a checkpoint."""
    command = [sys.executable, "-m", "tsallis", "train", str(RECIPE), *overrides, "--run-dir", str(run)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    with log.open("a", encoding="utf-8") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment, cwd=run.parent)
        try:
            process.wait(max(1.0, limit))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    if not (run / "timing.jsonl").exists():
        raise SystemExit(f"no update was made: {log.read_text(encoding='utf-8').strip()}")


def seconds_per_update(run: Path) -> float:
    """Return the mean seconds per update of the first training, without its first updates."""
    seconds: dict[int, float] = {}
    before = 0.0  # seconds of finished epochs: the log counts from the start of each epoch
    for line in (run / "timing.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        seconds[record["step"]] = before + record["seconds"]
        before += record["seconds"] if record["event"] == "epoch" else 0.0
    steps = sorted(seconds)
    first, last = (steps[0] if len(steps) > 1 else 0), steps[-1]
    return (seconds[last] - seconds.get(first, 0.0)) / (last - first)


def pack(run: Path, out: Path) -> list[Path]:
    """Archive the run folder in parts, with only the best checkpoint and without the optimizer's state."""
    index = json.loads((run / "checkpoints/index.json").read_text(encoding="utf-8"))
    best = index["best"]
    content = json.dumps({**index, "last": best, "kept": [best]}).encode()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo("checkpoints/index.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
        for path in sorted(run.rglob("*")):
            other = "checkpoints" in path.parts and path.parent.name != best
            if path.is_file() and not other and path.name not in ("training.pt", ".lock"):
                archive.add(path, path.relative_to(run))
    data, parts = stream.getvalue(), []
    for number, start in enumerate(range(0, len(data), PART)):
        parts.append(out / f"run.tar.{number:02d}")
        parts[-1].write_bytes(data[start : start + PART])
    return parts


def unpack(out: Path, run: Path) -> None:
    """Restore the run folder from the parts of the archive."""
    if run.exists():
        raise SystemExit(f"{run}: exists already")
    data = b"".join(path.read_bytes() for path in sorted(out.glob("run.tar.*")))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(run, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with kyoto-train.ja and the other files, plain or .xz")
    parser.add_argument("--attention", choices=ATTENTIONS, default="learned", help="attention (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=360, help="total time limit (default: %(default)s)")
    parser.add_argument("--subwords", type=Path, help="sentencepiece model (default: train a new one)")
    parser.add_argument("--out", type=Path, help="output folder")
    parser.add_argument("--rehearse", action="store_true", help="train a tiny model, as a check")
    parser.add_argument("--wheels", type=Path, help="folder with wheels of missing packages")
    parser.add_argument("--unpack", type=Path, metavar="OUT", help="restore the run folder from OUT, and exit")
    parser.add_argument("--run", type=Path, help="run folder to create with --unpack")
    arguments = parser.parse_args()
    if arguments.unpack:
        if arguments.run is None:
            parser.error("--unpack needs --run")
        return unpack(arguments.unpack, arguments.run)
    if arguments.data is None or arguments.out is None:
        parser.error("--data and --out are needed")
    if not arguments.rehearse:
        from gpu import require_gpu

        require_gpu()
    work = Path(tempfile.mkdtemp(prefix="tsallis-kftt-"))
    require_packages(arguments.wheels, work / "packages")
    end = time.monotonic() + arguments.seconds
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    unpack_data(arguments.data, work / "data/kftt")  # the folder that the recipe expects
    overrides = [f"data.cache={work / 'cache'}"]
    overrides += [f"model.attention={arguments.attention}", *(TINY if arguments.rehearse else [])]
    if arguments.subwords:
        overrides.append(f"data.subwords={{model: {arguments.subwords.resolve()}}}")
    elif arguments.rehearse:
        overrides.append("data.subwords.size=80")
    first, last = PILOT
    short = [f"training.updates={last}", f"training.checkpoint_every={first}", f"training.validate_updates={last}"]
    short.append("training.validation_rows=4")
    train(work / "pilot", [*overrides, *short, "training.warmup=10"], out / "pilot.log", arguments.seconds * 3 / 4)
    shutil.copy(work / "pilot/timing.jsonl", out / "pilot-timing.jsonl")
    each = seconds_per_update(work / "pilot")
    reserved = 0.0 if arguments.rehearse else RESERVED
    left = end - time.monotonic()
    updates = max(last, int((left - reserved) / (each * 1.05)))
    print(f"{each:.4f} s an update; {updates} updates in {left:.0f} s", flush=True)
    size = [f"training.updates={updates}", f"training.warmup={max(1, updates // 10)}"]
    size += [f"training.validate_updates={max(1, updates // 3)}", f"training.checkpoint_every={max(1, updates // 16)}"]
    train(work / "run", [*overrides, *size], out / "train.log", left - reserved / 2)
    for path in pack(work / "run", out):
        print(path.name, path.stat().st_size)
    shutil.copy(work / "run/log.jsonl", out / "log.jsonl")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
