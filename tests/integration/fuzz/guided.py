"""Search with atheris for files that reach new lines of a reader, or read the files of earlier searches.

python -m integration.fuzz.guided [READER ...] [--seconds SECONDS] [--save] [--faults FOLDER]

The files of a reader are stored in `corpus/READER.zip`. A search starts with them and with the reader's sample. If a
reader returns neither results nor a one-line error for a file, the file is kept in the folder of faults.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

from integration.fuzz.readers import READERS, Reader
from integration.fuzz.runner import judge
from integration.fuzz.samples import write_samples

CORPUS = Path(__file__).with_name("corpus")
LONGEST = 1 << 14  # maximum size of a file in bytes
LIMITS = ["-timeout=20", "-rss_limit_mb=4000", f"-max_len={LONGEST}", "-verbosity=0", "-print_final_stats=1"]
DATE = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that the same files give the same archive


def read_once(reader: Reader, blob: bytes, folder: Path) -> None:
    """Read bytes as a file.

    Raises:
        AssertionError: If there are neither results nor a one-line error.
    """
    from tsallis.toolkit.cli import main

    path = folder / Path(reader.sample).name
    path.write_bytes(blob)
    printed, errors = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(errors):
            main(partial(reader.read, path))
    except SystemExit as leave:
        fault = judge(leave.code if isinstance(leave.code, int) else 0, printed.getvalue(), errors.getvalue())
        assert not fault, f"{fault}: {errors.getvalue()[:500]}"
    for made in folder.iterdir():  # a reader may have unpacked the file
        if made.is_dir():
            shutil.rmtree(made)
        else:
            made.unlink()


def load(name: str) -> list[bytes]:
    """Return the stored files of earlier searches."""
    path = CORPUS / f"{name}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(member) for member in archive.namelist()]


def save(name: str, blobs: set[bytes]) -> None:
    """Store files under their digests, in sorted order."""
    CORPUS.mkdir(exist_ok=True)
    with zipfile.ZipFile(CORPUS / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for digest, blob in sorted((hashlib.sha256(blob).hexdigest()[:16], blob) for blob in blobs):
            member = zipfile.ZipInfo(digest, DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, blob)


def search_in_this_process(names: list[str], arguments: list[str]) -> None:
    """Search until libFuzzer ends the process. The first byte of a file selects its reader."""
    import atheris

    with atheris.instrument_imports(include=["tsallis"]):
        pass
    os.fsync = lambda handle: None  # an fsync takes as long as reading a hundred files
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:

        def read(blob: bytes) -> None:
            if blob:
                read_once(READERS[names[blob[0] % len(names)]], blob[1:], Path(work))

        atheris.Setup([sys.argv[0], *arguments], read)
        atheris.Fuzz()


def search(names: list[str], seconds: float, base: Path, faults: Path, keep: bool) -> bool:
    """Search in a new process, and return whether it ended without a fault."""
    folder = base / "files"
    folder.mkdir()
    for choice, name in enumerate(names):
        for number, blob in enumerate([(base / READERS[name].sample).read_bytes(), *load(name)]):
            (folder / f"{name}-{number}").write_bytes(bytes([choice]) + blob)
    faults.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "integration.fuzz.guided", *names, "--inside"]
    limits = [f"-max_total_time={max(1, round(seconds))}", f"-artifact_prefix={faults}/", *LIMITS, str(folder)]
    done = subprocess.run([*command, *limits], capture_output=True, text=True)
    blobs: dict[str, set[bytes]] = {name: set() for name in names}
    for path in folder.iterdir():
        blob = path.read_bytes()
        blobs[names[blob[0] % len(names)]].add(blob[1:])
    for name in names if keep else ():
        save(name, blobs[name])
    if done.returncode:
        print(f"exit status {done.returncode}; a file with a fault is in {faults}, its first byte chooses the reader")
        print(done.stdout[-3000:] or done.stderr[-3000:])
        return False
    count = next(line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line)
    print(f"{count} files read by {len(names)} readers, {sum(map(len, blobs.values()))} reach lines of their own")
    return True


def main() -> None:
    """Run a search, or read the stored files."""
    if "--inside" in sys.argv:
        at = sys.argv.index("--inside")
        search_in_this_process(sys.argv[1:at], sys.argv[at + 1 :])
    parser = argparse.ArgumentParser()
    parser.add_argument("readers", nargs="*", choices=[[], *READERS], help="all, if none is named")
    parser.add_argument("--seconds", type=float, default=0, help="of all searches together; 0: read the stored files")
    parser.add_argument("--save", action="store_true", help="store the files that reach lines of their own")
    parser.add_argument("--faults", type=Path, default=Path("fuzz-faults"), help="where files with a fault are left")
    inputs = parser.parse_args()
    names = inputs.readers or list(READERS)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        if not inputs.seconds:
            for name in names:
                for blob in load(name):
                    read_once(READERS[name], blob, Path(work))
            print(f"{sum(len(load(name)) for name in names)} files of {len(names)} readers")
            return
        base = Path(work) / "samples"
        write_samples(base)
        ends_well = search(names, inputs.seconds, base, inputs.faults.resolve(), inputs.save)
    raise SystemExit(0 if ends_well else 1)


if __name__ == "__main__":
    main()
