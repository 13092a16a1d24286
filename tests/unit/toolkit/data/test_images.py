"""Images by name from arrays, folders and archives, damaged and forged files, and a store of images."""

from __future__ import annotations

import builtins
import io
import lzma
import pickle
import tarfile
import tracemalloc
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tsallis.toolkit.data.images as images_module
from tsallis.errors import InputError
from tsallis.toolkit.data.image_store import ImageStore
from tsallis.toolkit.data.images import ArrayPictures, Photos, decode_picture, open_pictures
from tsallis.toolkit.tasks.vqa import parse_questions

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def stored(folder: Path, ending: str, blob: bytes) -> Path:
    """Write the content of an array file, compressed if the name ends in .xz."""
    path = folder / f"a{ending}"
    path.write_bytes(lzma.compress(blob) if ending == ".npy.xz" else blob)
    return path


def test_plain_and_xz_arrays_are_read(tmp_path: Path) -> None:
    plain = open_pictures(stored(tmp_path, ".npy", npy(PIXELS)))
    again = open_pictures(stored(tmp_path, ".npy.xz", npy(PIXELS)), (4, 5))
    assert isinstance(plain, ArrayPictures) and isinstance(plain.array, np.memmap)
    for pictures in (plain, again):
        assert len(pictures) == 3 and pictures.shape == (4, 5, 3)
        assert (pictures.batch(["2", "0", "2"]).numpy() == PIXELS[[2, 0, 2]]).all()
        assert "02" in pictures and (pictures.batch(["02"]).numpy() == PIXELS[[2]]).all()
        for name in ("3", "-1", "1.0", "", "²", "١", "9" * 30):
            assert name not in pictures
            with pytest.raises(InputError, match="expected an image number from 0 to 2, found"):
                pictures.batch(["0", name])
    saved = plain.batch(["0"])
    saved.zero_()  # a batch is a copy
    assert (plain.batch(["0"]).numpy() == PIXELS[[0]]).all()


def test_feature_arrays_are_converted_to_float32(tmp_path: Path) -> None:
    features = np.random.default_rng(1).normal(size=(2, 3, 3, 7)).astype(np.float16)
    np.save(tmp_path / "a.npy", np.asfortranarray(features))
    result = open_pictures(tmp_path / "a.npy").batch(["1"])
    assert result.dtype == torch.float32 and (result[0].numpy() == features[1].astype(np.float32)).all()
    features[1, 2, 0, 3] = np.nan
    np.save(tmp_path / "a.npy", features)
    with pytest.raises(InputError, match=r"a\.npy: image 1 contains NaN or infinity"):
        open_pictures(tmp_path / "a.npy").batch(["0", "1"])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (PIXELS[0], r"expected shape \[images, height, width, channels\], found \[4, 5, 3\]"),
        (PIXELS[:0], r"found \[0, 4, 5, 3\]"),
        (PIXELS[..., :2], "3 channels, found 2"),
        (PIXELS.astype(np.int64), "floating-point dtype, found int64"),
        (PIXELS.astype(object), "not an array file"),
    ],
    ids=["dimensions", "empty", "channels", "dtype", "objects"],
)
@pytest.mark.parametrize("ending", [".npy", ".npy.xz"])
def test_invalid_arrays_raise(tmp_path: Path, array: Any, message: str, ending: str) -> None:
    with pytest.raises(InputError, match=message):
        open_pictures(stored(tmp_path, ending, npy(array)))


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (builtins.exec, ("raise SystemExit('code was run')",))


@pytest.mark.parametrize(
    ("name", "blob", "message"),
    [
        ("a.npy", pickle.dumps(Evil()), "not an array file"),
        ("a.npy", b"", "not an array file"),
        ("a.npy.xz", b"abc", "can't be unpacked as .xz"),
        ("a.npy.xz", lzma.compress(pickle.dumps(Evil())), "not an array file"),
        ("a.npy.xz", lzma.compress(b"x" * 9999)[:-20], "can't be unpacked|not an array"),
        ("a.tar", b"abc", "not a tar archive"),
        ("a.zip", b"abc", r"a.zip: expected .npy, .npy.xz, .tar or a folder"),
    ],
)
def test_damaged_files_raise(tmp_path: Path, name: str, blob: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(blob)
    with pytest.raises(InputError, match=message):
        open_pictures(tmp_path / name)


@pytest.mark.parametrize("ending", [".npy", ".npy.xz"])
def test_truncated_arrays_raise(tmp_path: Path, ending: str) -> None:
    with pytest.raises(InputError, match="not an array file"):
        open_pictures(stored(tmp_path, ending, npy(PIXELS)[:-7]))


@pytest.mark.parametrize("name", ["a.npy", "a.npy.xz", "a.tar", "a"])
def test_missing_files_raise(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"can't be read: No such file|no such file or folder"):
        open_pictures(tmp_path / name)


def forged(shape: object, descr: str = "|u1", header: str | None = None, length: int | None = None) -> bytes:
    """Return a file in NumPy's format with this header and a hundred bytes of data."""
    text = (header or f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}").encode()
    size = len(text) if length is None else length
    return b"\x93NUMPY\x02\0" + size.to_bytes(4, "little") + text + bytes(100)


@pytest.mark.parametrize(
    "blob",
    [
        forged((1, 4, 4, 3), length=(1 << 32) - 1),
        forged((10**6, 1000, 1000, 100)),
        forged((10**3, 1000, 1000, 10)),
        forged((-1, 4, 4, 3)),
        forged((1 << 63, 4, 4, 3)),
        forged((10**40, 4, 4, 3)),
        forged((1, 5, 7, 3)),
        forged((1, 4, 4, 3), "|S1000000000"),
        forged((1, 4, 4, 3), "|O"),
        forged(0, header="(" * 5000),
        forged(0, header="{'a': " + "[" * 200),
        forged(0, header="{" * 9000),
        forged("(1, 4, 4, 3.5)"),
        b"\x93NUMPY\x09\0" + bytes(200),
        b"\x93NUMPY\x01\0\xff",
    ],
    ids=range(15),
)
@pytest.mark.parametrize("ending", [".npy", ".npy.xz"])
def test_forged_array_headers_raise_without_allocating(tmp_path: Path, blob: bytes, ending: str) -> None:
    path = stored(tmp_path, ending, blob)
    tracemalloc.start()  # the size in a header must not be allocated at once
    with pytest.raises(InputError, match=rf"^{path}: .*(not an array file|memory|expected )"):
        open_pictures(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 << 20


@pytest.mark.filterwarnings("error")
def test_python_2_arrays_are_read_without_warnings(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(forged("(1L, 3L, 11L, 3L)"))
    assert open_pictures(tmp_path / "a.npy").batch(["0"]).numel() == 99


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("ending", [".npy", ".npy.xz"])
def test_c_and_fortran_order_are_read(tmp_path: Path, order: Any, ending: str) -> None:
    array = np.random.default_rng(0).random((3, 4, 5, 2)).astype(np.float32, order=order)
    path = stored(tmp_path, ending, npy(array))
    assert np.array_equal(open_pictures(path).batch(["0", "1", "2"]).numpy(), array)


def test_long_image_names_are_truncated_in_errors(tmp_path: Path) -> None:
    for name in ("x" * 10**6, "9" * 10**6):
        with pytest.raises(InputError, match=r"in:1: image .* does not exist") as caught:
            parse_questions([(0, f"{name}\tis it red?\tno")], "in", ArrayPictures(PIXELS))
        assert len(str(caught.value)) < 200


def test_invalid_sizes_raise() -> None:
    with pytest.raises(InputError, match="at most 67108864 pixels, got"):
        open_pictures("a.tar", (100_000, 100_000))
    with pytest.raises(InputError, match="size must be 4 x 5, got 8 x 8"):
        ArrayPictures(PIXELS, size=(8, 8))


def photo(height: int, width: int, colour: Any, kind: str = "PNG", **more: Any) -> bytes:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    mode = "L" if isinstance(colour, int) else "RGBA" if len(colour) == 4 else "RGB"
    image.new(mode, (width, height), colour).save(stream, kind, **more)
    return stream.getvalue()


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    for name, blob in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(blob)
    return path


def tar_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, blob in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(blob)
            archive.addfile(info, io.BytesIO(blob))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    return path


def test_photographs_are_read_from_folders_and_archives(tmp_path: Path) -> None:
    files = {
        "a.png": photo(4, 6, (10, 20, 30)),
        "sub/b.JPG": photo(8, 12, (200, 100, 0), "JPEG", quality=95),
        "grey.jpeg": photo(4, 6, 77, "JPEG"),
        "clear.png": photo(2, 3, (1, 2, 3, 9)),
        "notes.txt": b"no image",
    }
    folder, archive = folder_of(tmp_path / "f", files), tar_of(tmp_path / "f.tar", files)
    for pictures in (open_pictures(folder, (4, 6)), open_pictures(archive, (4, 6))):
        assert len(pictures) == 4 and pictures.shape == (4, 6, 3)
        for name in ("a", "a.png", "sub/b", "sub/b.JPG", "grey", "clear"):
            assert name in pictures
        assert "b" not in pictures and "notes" not in pictures and "link" not in pictures
        result = pictures.batch(["sub/b", "a.png", "grey", "clear", "a"])
        assert result.shape == (5, 4, 6, 3) and result.dtype == torch.uint8
        expected = torch.tensor([[200, 100, 0], [10, 20, 30], [77, 77, 77], [246, 246, 246], [10, 20, 30]])
        assert (result.long() - expected[:, None, None]).abs().max() <= 2
        with pytest.raises(InputError, match=r"image '../f.tar' does not exist"):
            pictures.batch(["../f.tar"])


def test_photographs_of_several_sizes_require_a_size(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a.png": photo(4, 6, (1, 2, 3)), "b.png": photo(5, 6, (1, 2, 3))})
    pictures = open_pictures(folder)
    assert pictures.shape == (4, 6, 3) and len(pictures.batch(["a"])) == 1
    with pytest.raises(InputError, match=r"b.png has 5 x 6 pixels, but the first image has 4 x 6; set size"):
        pictures.batch(["a", "b"])


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    turned = image.Exif()
    turned[0x0112] = 6
    folder_of(tmp_path, {"a.jpg": photo(4, 6, (1, 2, 3), "JPEG", exif=turned)})
    assert open_pictures(tmp_path).shape == (6, 4, 3)


def saved(image: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG", **options)
    return stream.getvalue()


def test_16_bit_grey_values_are_scaled_to_8_bits() -> None:
    image = pytest.importorskip("PIL.Image")
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16)
    pixels = decode_picture(saved(image.fromarray(257 * levels)), "a.png")
    assert (pixels == levels[..., None]).all()
    masked = decode_picture(saved(image.fromarray(257 * levels), transparency=257 * 9), "a.png")
    assert (masked == np.where(levels == 9, 255, levels)[..., None]).all()


def test_transparent_pixels_are_white() -> None:
    image = pytest.importorskip("PIL.Image")
    alphas = np.array([[0, 51, 255]], np.uint8)
    grey = np.stack([np.zeros_like(alphas), alphas], -1)
    colours = np.concatenate([np.zeros((1, 3, 3), np.uint8), alphas[..., None]], -1)
    for blob in (saved(image.fromarray(grey, "LA")), saved(image.fromarray(colours))):
        assert (decode_picture(blob, "a.png") == (255 - alphas)[..., None]).all()
    palette = image.fromarray(np.array([[0, 1]], np.uint8)).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    for indexed in (palette, palette.convert("RGB")):
        transparency = 0 if indexed is palette else (10, 20, 30)
        pixels = decode_picture(saved(indexed, transparency=transparency), "a.png")
        assert pixels.tolist() == [[[255, 255, 255], [40, 50, 60]]]
    pixels = np.concatenate([PIXELS[0], np.full((4, 5, 1), 255, np.uint8)], -1)
    assert (decode_picture(saved(image.fromarray(pixels)), "a.png") == PIXELS[0]).all()


def test_metadata_files_of_macos_are_ignored(tmp_path: Path) -> None:
    files = {"._a.png": b"metadata", "a.png": photo(4, 6, (1, 2, 3)), "sub/._b.jpg": b"metadata"}
    for path in (folder_of(tmp_path / "f", files), tar_of(tmp_path / "f.tar", files)):
        assert len(open_pictures(path)) == 1 and "a" in open_pictures(path)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_match_in_every_unicode_form(form: Any) -> None:
    blob = photo(4, 6, (1, 2, 3))
    pictures = Photos({unicodedata.normalize(form, "café.png"): lambda: blob}, "photos")
    for name in ("caf\u00e9", "cafe\u0301", "caf\u00e9.png", "cafe\u0301.png"):
        assert name in pictures and pictures.batch([name]).shape == (1, 4, 6, 3)


def test_invalid_photographs_raise(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    good = photo(4, 6, (1, 2, 3))
    with pytest.raises(InputError, match=r"expected images \(.jpg, .jpeg, .png\), found none"):
        open_pictures(folder_of(tmp_path / "none", {"a.txt": b"text"}))
    with pytest.raises(InputError, match=r"a.png can't be read as an image"):
        open_pictures(folder_of(tmp_path / "damaged", {"a.png": good[:40]}))
    with pytest.raises(InputError, match=r"a.png can't be read as an image"):
        open_pictures(folder_of(tmp_path / "other", {"a.png": photo(4, 6, (1, 2, 3), "GIF")}))
    both = open_pictures(folder_of(tmp_path / "both", {"a.png": good, "a.jpg": photo(4, 6, (1, 2, 3), "JPEG")}))
    assert both.batch(["a.png", "a.jpg"]).shape == (2, 4, 6, 3)
    with pytest.raises(InputError, match=r"have the name 'a': a.jpg, a.png"):
        both.batch(["a"])


def test_too_large_photographs_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a.png": photo(4, 6, (1, 2, 3))}
    size = len(files["a.png"])
    monkeypatch.setattr(images_module, "MAX_BYTES", size - 1)
    for path in (folder_of(tmp_path / "f", files), tar_of(tmp_path / "f.tar", files)):
        with pytest.raises(InputError, match=rf"a\.png: expected at most {size - 1} bytes, found (more|{size})"):
            open_pictures(path)


def test_photographs_without_pillow_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(InputError, match=r"need Pillow: pip install 'tsallis\[vision\]'"):
        Photos({"a.png": lambda: b""}, "photos")


def test_a_store_holds_images_of_one_size() -> None:
    small, large = (ArrayPictures(np.full((3, n, 4, 3), n, np.uint8)) for n in (4, 5))
    other = ArrayPictures(np.full((3, 4, 4, 3), 9, np.uint8))
    store = ImageStore()
    request = [(small, "0"), (other, "1"), (other, "0")]
    assert store.add(request) == [0, 1, 2] and store.add(request[1:]) == [1, 2] and len(store) == 3
    result = store(torch.tensor([1, 0, 2, 0]))
    assert result[:, 0, 0, 0].tolist() == [9, 4, 9, 4]
    with pytest.raises(InputError, match="4 x 4 x 3, got 5 x 4 x 3"):
        store.add([(large, "2")])


def test_the_digest_of_a_store_covers_pixels_shape_and_order() -> None:
    def digest(numbers: list[int], shape: tuple[int, ...] = (2, 4, 4, 3), value: int = 5) -> str:
        array = np.arange(96, dtype=np.uint8).reshape(shape)
        array.flat[-1] = value
        store, pictures = ImageStore(), ArrayPictures(array)
        store.add((pictures, str(number)) for number in numbers)
        return store.digest()

    assert digest([0, 1]) == digest([0, 1, 0])
    others = [digest([1, 0]), digest([0]), digest([0, 1], (2, 2, 8, 3)), digest([0, 1], value=6)]
    assert len({digest([0, 1]), *others}) == 5
