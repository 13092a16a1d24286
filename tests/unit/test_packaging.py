"""The contents of an installation, and consistency of the files around the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import resources
from pathlib import Path

import pytest

import tsallis
from tsallis.errors import InputError
from tsallis.ops.cpu.build import BuildError, find_compiler, source_hash

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(tsallis.__file__).parent
KERNEL = "tsallis/ops/cpu/_kernel.so"
WARNED = "tsallis runs several times slower on the CPU, because it can't use its compiled kernels: "
CONTENT = "To use PyTorch's operations without this warning, set TSALLIS_BACKEND=eager."


@pytest.fixture(scope="module")
def project() -> dict:
    if sys.version_info < (3, 11):
        pytest.skip("needs tomllib: Python 3.11")
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_data_files_are_found_through_the_package() -> None:
    package = resources.files("tsallis")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("toolkit/datasets/english-verbs.tsv.xz").is_file()
    assert package.joinpath("toolkit/recipes/demo.yaml").is_file()


def test_recipes_are_found_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tsallis.toolkit.tasks import load_config

    monkeypatch.chdir(tmp_path)
    packaged, local = load_config("recipes/tiny/strings.yaml"), load_config(ROOT / "recipes/tiny/strings.yaml")
    assert packaged.model.d_model == local.model.d_model
    (tmp_path / "recipes/tiny").mkdir(parents=True)
    own = (ROOT / "recipes/tiny/strings.yaml").read_text(encoding="utf-8").replace("run_dir: ", "run_dir: own/")
    (tmp_path / "recipes/tiny/strings.yaml").write_text(own, encoding="utf-8")
    assert str(load_config("recipes/tiny/strings.yaml").run_dir).startswith("own/")
    with pytest.raises(InputError, match="nothing"):
        load_config("recipes/tiny/nothing.yaml")


def test_gitignore_does_not_exclude_package_folders() -> None:
    """The build follows .gitignore: an unanchored `data/` there would remove `tsallis.toolkit.data`."""
    patterns = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    folders = {p.name for p in SOURCE.rglob("*") if p.is_dir()} - {"__pycache__"}
    assert not folders & {p.rstrip("/") for p in patterns}


def test_versions_agree(project: dict) -> None:
    assert project["project"]["version"] == tsallis.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(tsallis.__version__)}$", citation, re.MULTILINE)
    assert f"## {tsallis.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_core_depends_only_on_torch(project: dict) -> None:
    assert [re.split(r"[><=]", d)[0] for d in project["project"]["dependencies"]] == ["torch"]


def test_every_dependency_is_pinned(project: dict) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {_normal(line.split("==")[0]) for line in lines if "==" in line}
    extras = project["project"]["optional-dependencies"].values()
    expected = {_normal(re.split(r"[\[><=]", d)[0]) for extra in extras for d in extra} - {"tsallis"}
    assert expected | {"torch"} <= pinned


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an unpacked sdist, built from a copy of the project that contained a stale kernel."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "project"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so*"))
    shutil.copytree(ROOT / "recipes", copy / "recipes")
    for name in (".gitignore", "LICENSE", "README.md", "hatch_build.py", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    (copy / "src" / KERNEL).write_text("stale")
    _build(copy, "sdist", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder)
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture
def tree(sdist: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sdist, tmp_path / "tree"))


@pytest.fixture
def compiler() -> None:
    try:
        find_compiler()
    except BuildError as reason:
        pytest.skip(f"needs compiler: {reason}")


def test_the_sdist_has_the_kernels_sources_and_no_kernel(sdist: Path) -> None:
    folder = sdist / "src" / KERNEL
    assert not folder.exists()
    assert (folder.parent / "build.py").is_file()
    assert {"isa.cpp", "decoding.cpp", "bindings.cpp"} <= {p.name for p in (folder.parent / "csrc").iterdir()}
    assert source_hash(folder.parent / "csrc") == source_hash(SOURCE / "ops" / "cpu" / "csrc")


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_a_wheel_from_the_sdist_has_the_kernel_and_is_for_this_platform(tree: Path) -> None:
    _build(tree, "wheel", tree / "dist", TSALLIS_KERNEL="1")
    (wheel,) = (tree / "dist").iterdir()
    assert re.fullmatch(r"tsallis-.+-py3-none-(?!any)\w+\.whl", wheel.name)
    assert {KERNEL, "tsallis/toolkit/recipes/tiny/strings.yaml"} <= set(_names(wheel))
    assert not (tree / "src" / KERNEL).exists()
    with zipfile.ZipFile(wheel) as packed:
        # Code that runs at loading must not use an instruction set that the machine may lack.
        kernel = packed.read(KERNEL)
        runs_at_loading = [b"_GLOBAL__sub_I_" + name in kernel for name in (b"isa.cpp", b"decoding.cpp")]
    assert not any(runs_at_loading)
    installed = _installed(wheel, tree / "installed")
    assert installed["p"] == [[0.5, 0.5, 0.0]]
    assert installed["available"], installed["reason"]


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_pure_and_works(tree: Path) -> None:
    (tree / "src" / KERNEL).write_text("stale")
    said = _build(tree, "wheel", tree / "dist", CXX="/nonexistent")
    assert "WITHOUT its CPU kernel" in said and "/nonexistent" in said
    (wheel,) = (tree / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in _names(wheel) if ".so" in name]
    installed = _installed(wheel, tree / "installed")
    assert installed["p"] == [[0.5, 0.5, 0.0]]
    assert not installed["available"] and "CXX is set" in installed["reason"] and "/nonexistent" in installed["reason"]
    assert installed["warnings"] == [f"{WARNED}{installed['reason']}. {CONTENT}"]


@pytest.mark.slow
def test_the_kernel_can_be_left_out_or_demanded(tree: Path) -> None:
    assert "TSALLIS_KERNEL=0" in _build(tree, "wheel", tree / "dist", TSALLIS_KERNEL="0")
    (wheel,) = (tree / "dist").iterdir()
    assert wheel.name.split("-", 2)[2] == "py3-none-any.whl"
    installed = _installed(wheel, tree / "installed")
    assert installed["reason"] == "left out of this installation, as TSALLIS_KERNEL=0 asked"
    assert not installed["available"] and not installed["warnings"]
    _build(tree, "wheel", tree / "pure", TSALLIS_KERNEL="pure")
    installed = _installed(*(tree / "pure").iterdir(), tree / "installed-pure")
    assert installed["warnings"] == [f"{WARNED}{installed['reason']}. {CONTENT}"]
    said = _build(tree, "wheel", tree / "demanded", fails=True, TSALLIS_KERNEL="1", CXX="/nonexistent")
    assert "cannot be built" in said and "/nonexistent" in said
    assert "unset, not 'yes'" in _build(tree, "wheel", tree / "demanded", fails=True, TSALLIS_KERNEL="yes")
    assert not list(tree.glob("demanded/*"))


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_sources_that_do_not_compile_leave_the_wheel_pure(tree: Path) -> None:
    (tree / "src" / KERNEL).parent.joinpath("csrc", "bindings.cpp").write_text("this is no C++")
    for name in ("isa.cpp", "decoding.cpp"):
        (tree / "src" / KERNEL).parent.joinpath("csrc", name).write_text("")
    said = _build(tree, "wheel", tree / "dist")
    assert "WITHOUT its CPU kernel" in said and "error: " in said
    assert [p.name.split("-", 2)[2] for p in (tree / "dist").iterdir()] == ["py3-none-any.whl"]


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_an_editable_installation_makes_or_removes_the_kernel_in_place(tree: Path) -> None:
    kernel = tree / "src" / KERNEL
    for name in ("isa.cpp", "decoding.cpp"):
        kernel.parent.joinpath("csrc", name).write_text("")
    bindings = kernel.parent.joinpath("csrc", "bindings.cpp")
    bindings.write_text('extern "C" __attribute__((visibility("default"))) const char *f() { return TSALLIS_SOURCE; }')
    command = ("-c", "from hatchling.build import build_editable; build_editable('.')")
    note = kernel.with_name("_no_kernel.txt")
    note.write_text("of an earlier installation")
    _python(tree, *command, TSALLIS_KERNEL="1")
    first = kernel.stat()
    assert kernel.read_bytes() and not note.exists()
    _python(tree, *command, TSALLIS_KERNEL="1")
    assert kernel.stat().st_ino == first.st_ino and kernel.stat().st_mtime_ns == first.st_mtime_ns
    with bindings.open("a") as sources:
        sources.write("  // changed")
    _python(tree, *command, TSALLIS_KERNEL="1")
    assert kernel.stat().st_mtime_ns != first.st_mtime_ns
    assert "WITHOUT its CPU kernel" in _python(tree, *command, CXX="/nonexistent")
    assert not list(kernel.parent.glob("_kernel*"))
    assert note.read_text().startswith("not compiled: no C++ compiler (CXX is set): /nonexistent")


def _build(project: Path, target: str, out: Path, fails: bool = False, **variables: str) -> str:
    return _python(project, "-m", "hatchling", "build", "-t", target, "-d", str(out), fails=fails, **variables)


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as packed:
        return packed.namelist()


def _installed(wheel: Path, folder: Path) -> dict:
    """Return a map's result and the kernel's status in a fresh installation of a wheel."""
    _python(folder.parent, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    code = (
        "import json, torch, tsallis, warnings; from tsallis.ops import cpu; status = cpu.status()\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    for _ in range(3): p = tsallis.entmax(torch.tensor([[2.0, 2.0, -1.0]]), 1.5).tolist()\n"
        "print(json.dumps({'file': tsallis.__file__, 'p': p, 'available': status.available, 'reason': status.reason,"
        " 'warnings': [str(warning.message) for warning in caught]}))"
    )
    said = json.loads(_python(folder, "-c", code, PYTHONPATH=str(folder)).splitlines()[-1])
    assert Path(said["file"]).is_relative_to(folder)
    return said


def _python(folder: Path, *arguments: str, fails: bool = False, **variables: str) -> str:
    """Run Python in a folder and return its output; only the given variables of this package are set."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith("TSALLIS_")} | variables
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=mine, capture_output=True, text=True)
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stderr + done.stdout


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower().strip()
