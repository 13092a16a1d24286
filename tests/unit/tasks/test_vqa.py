"""Questions about images: lines, words, answers, splits, numbers, and where the images are from."""

from __future__ import annotations

import builtins
import gzip
import io
import lzma
import pickle
import random
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsallis.data.image_store import ImageStore
from tsallis.data.images import ArrayPictures, Photos, open_pictures
from tsallis.data.vocabulary import UNK, Vocabulary
from tsallis.errors import InputError
from tsallis.tasks.base import Vocabularies
from tsallis.tasks.labels import label_numbers
from tsallis.tasks.vqa import (
    ImageQuestion,
    Question,
    Visual,
    answer_kind,
    answer_names,
    parse_question,
    parse_questions,
    question_words,
    read_questions,
    split_by_image,
)

LINES = "0\tWhat is it?\tbook, pen\nimg/2.jpg\tHow  many\u0085 pens\t11\n"
ASKED = [Question("0", "What is it?", "book, pen"), Question("img/2.jpg", "How  many\u0085 pens", "11")]
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8", newline="\n")
    return path


def test_lines_plain_or_packed_with_a_header_or_without(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.tsv", LINES)
    with lzma.open(tmp_path / "train.tsv.xz", "wt", encoding="utf-8", newline="\n") as stream:
        stream.write("image\tquestion\tanswer\n" + LINES)
    with gzip.open(tmp_path / "dev.tsv.gz", "wt", encoding="utf-8", newline="\n") as stream:
        stream.write("Image\tQuestion\n0\twhat is it\n1\twhat is it\ta box\n")
    assert read_questions(plain) == read_questions(tmp_path / "train.tsv.xz") == ASKED
    found = read_questions(tmp_path / "dev.tsv.gz", gold=False)
    assert found == [Question("0", "what is it", ""), Question("1", "what is it", "")]
    below = write(tmp_path / "below.tsv", LINES + "image\tquestion\tanswer\n")
    assert read_questions(below)[2] == Question("image", "question", "answer")  # a header stands above alone


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0\twhat\tbox\n1\twhat\n", r"f.tsv:2: expected image<TAB>question<TAB>answer, found 2 columns: '1\\twhat'"),
        ("image\tquestion\tanswer\n0\ta\tb\tc\n", r"f.tsv:2: expected .* found 4 columns"),
        ("0\twhat\tbox\n\n", r"f.tsv:2: .* found 1 columns: ''"),
        ("0\t \tbox\n", r"f.tsv:1: .* found an empty question"),
        ("0\twhat\t\n", r"f.tsv:1: .* found 2 columns"),
        ("x\twhat\tbox\n", r"f.tsv:1: there is no image 'x'"),
        ("0\twhat\tbox\n3\twhat\tbox\n", r"f.tsv:2: there is no image '3'"),
        ("image\tquestion\tanswer\n", "a header and no questions"),
        ("", "the file is empty"),
    ],
)
def test_malformed_lines(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path / "f.tsv", content)
    with pytest.raises(InputError, match=message):
        read_questions(path, ArrayPictures(PIXELS))


def test_lines_without_answers() -> None:
    with pytest.raises(InputError, match="q:3: expected image<TAB>question, found 1 columns: 'what'"):
        parse_question("what", "q:3", gold=False)
    with pytest.raises(InputError, match="q:3: expected image<TAB>question, found an empty image"):
        parse_question("\twhat", "q:3", gold=False)
    assert parse_question("7\twhat\t", "q:3", gold=False) == Question("7", "what", "")


def test_words() -> None:
    assert question_words("What’s in Image3, at 10.5m?") == [
        "what’s", "in", "image", "3", ",", "at", "10", ".", "5", "m", "?",
    ]  # fmt: skip
    assert question_words("Ünter tape_dispenser") == ["ünter", "tape_dispenser"] and question_words(" \t") == []


def test_answers() -> None:
    asked = [Question("0", "?", a) for a in ("b", "a", "c", "c", "b, a")]
    assert answer_names(asked) == ["c", "a", "b", "b, a"] and answer_names(asked, 2) == ["c", "a"]
    with pytest.raises(ValueError, match="most must be at least 1, got 0"):
        answer_names(asked, 0)
    assert [answer_kind(a) for a in ("yes", "No", "0", "12", "yes, no", "two")] == [
        "yes/no", "yes/no", "number", "number", "other", "other",
    ]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.text("xyz", min_size=1, max_size=2))), st.randoms())
def test_a_split_by_image(pairs: list[tuple[str, str]], chance: random.Random) -> None:
    asked = [Question(image, text, "a") for image, text in pairs]
    rest, taken = split_by_image(asked, 0.25, seed=4)
    assert sorted(rest + taken) == sorted(asked)
    images = [{q.image for q in part} for part in (rest, taken)]
    assert not images[0] & images[1] and len(images[1]) == round(0.25 * len(images[0] | images[1]))
    shuffled = split_by_image(chance.sample(asked, len(asked)), 0.25, seed=4)
    assert sorted(shuffled[1]) == sorted(taken)


def test_a_split_by_a_seed() -> None:
    asked = [Question(str(i), "?", "a") for i in range(50)]
    parts = [split_by_image(asked, 0.2, seed)[1] for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2] and len(parts[2]) == 10
    with pytest.raises(ValueError, match="between 0 and 1, got 1"):
        split_by_image(asked, 1.0)


def test_questions_in_numbers() -> None:
    pictures = ArrayPictures(PIXELS)
    asked = [Question(str(i % 3), "what " * (1 + i % 4), "abc"[i % 3]) for i in range(7)]
    vocabularies = Vocabularies(Vocabulary(["what"]), Vocabulary(["b", "a"]), ImageStore())
    lines = Visual(max_length=3).encode([ImageQuestion(q, pictures) for q in asked], vocabularies)
    batch = lines.corpus.batch([4, 1, 2])
    assert batch.src.tolist() == [[1, 4, 0, 0], [1, 4, 4, 0], [2, 4, 4, 4]]  # the image's number, then the words
    assert batch.src_lengths.tolist() == [2, 3, 4] and label_numbers(batch).tolist() == [0, 0, -100]
    assert vocabularies.images is not None and len(vocabularies.images) == 3
    images = vocabularies.images(batch.src[:, 0])
    assert images.dtype == torch.uint8 and (images.numpy() == PIXELS[[1, 1, 2]]).all()
    assert lines.references == [*"abcabca"] and lines.titles[1] == "1: what what "
    (row,) = Visual().encode([ImageQuestion(Question("0", "\u200b"), pictures)], vocabularies).corpus.src
    assert list(row) == [0, UNK]  # a question without words


def packed(path: Path, array: Any) -> Path:
    with lzma.open(path, "wb") as stream:
        np.save(stream, array)
    return path


def test_arrays_plain_or_packed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", PIXELS)
    plain, again = open_pictures(tmp_path / "a.npy"), open_pictures(packed(tmp_path / "b.npy.xz", PIXELS), (4, 5))
    assert isinstance(plain, ArrayPictures) and isinstance(plain.array, np.memmap)
    for pictures in (plain, again):
        assert len(pictures) == 3 and pictures.shape == (4, 5, 3)
        assert (pictures.batch(["2", "0", "2"]).numpy() == PIXELS[[2, 0, 2]]).all()
        assert "02" in pictures and (pictures.batch(["02"]).numpy() == PIXELS[[2]]).all()
        for name in ("3", "-1", "1.0", "", "²", "١", "9" * 30):
            assert name not in pictures
            with pytest.raises(InputError, match=r"numbered from 0 to 2, there is no "):
                pictures.batch(["0", name])
    kept = plain.batch(["0"])
    kept.zero_()  # what comes out is nobody else's
    assert (plain.batch(["0"]).numpy() == PIXELS[[0]]).all()


def test_arrays_of_features(tmp_path: Path) -> None:
    features = np.random.default_rng(1).normal(size=(2, 3, 3, 7)).astype(np.float16)
    np.save(tmp_path / "a.npy", np.asfortranarray(features))
    found = open_pictures(tmp_path / "a.npy").batch(["1"])
    assert found.dtype == torch.float32 and (found[0].numpy() == features[1].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (PIXELS[0], r"expected an array \[images, height, width, channels\], found \[4, 5, 3\]"),
        (PIXELS[:0], r"found \[0, 4, 5, 3\]"),
        (PIXELS[..., :2], "3 channels, found 2"),
        (PIXELS.astype(np.int64), "features in floating point, found int64"),
        (PIXELS.astype(object), "not an array file"),
    ],
    ids=["dimensions", "empty", "channels", "dtype", "objects"],
)
@pytest.mark.parametrize("ending", [".npy", ".npy.xz"])
def test_arrays_that_are_none(tmp_path: Path, array: Any, message: str, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    if ending == ".npy":
        np.save(path, array)
    else:
        packed(path, array)
    with pytest.raises(InputError, match=message):
        open_pictures(path)


class Evil:
    """What must never be unpickled."""

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
def test_damaged_files(tmp_path: Path, name: str, blob: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(blob)
    with pytest.raises(InputError, match=message):
        open_pictures(tmp_path / name)


def test_a_cut_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", PIXELS)
    blob = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(blob[:-7])
    (tmp_path / "b.npy.xz").write_bytes(lzma.compress(blob[:-7]))
    for name in ("a.npy", "b.npy.xz"):
        with pytest.raises(InputError, match="not an array file"):
            open_pictures(tmp_path / name)


@pytest.mark.parametrize("name", ["a.npy", "a.npy.xz", "a.tar", "a"])
def test_missing_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"can't be read: No such file|no such file or folder"):
        open_pictures(tmp_path / name)


def forged(shape: object, descr: str = "|u1", header: str | None = None, length: int | None = None) -> bytes:
    """A file in NumPy's format that says this of itself, and a hundred bytes."""
    text = (header or f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}").encode()
    size = len(text) if length is None else length
    return b"\x93NUMPY\x02\0" + size.to_bytes(4, "little") + text + bytes(100)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (forged((1, 4, 4, 3), length=(1 << 32) - 1), "its header is too long"),
        (forged((10**6, 100, 100, 100)), "hold no array|can't be"),
        (forged((-1, 4, 4, 3)), r"expected an array \[images"),
        (forged((1 << 63, 4, 4, 3)), "hold no array"),
        (forged((10**40, 4, 4, 3)), "hold no array"),
        (forged((1, 5, 7, 3)), "hold no array|ends before"),
        (forged((1, 4, 4, 3), "|S1000000000"), "hold no array"),
        (forged((1, 4, 4, 3), "|O"), "objects"),
        (forged(0, header="(" * 5000), "not an array file"),
        (forged(0, header="{'a': " + "[" * 200), "not an array file"),
        (forged(0, header="{" * 9000), "not an array file"),
        (forged("(1, 4, 4, 3.5)"), "not an array file"),
        (b"\x93NUMPY\x09\0" + bytes(200), "not an array file"),
        (b"\x93NUMPY\x01\0\xff", "not an array file"),
    ],
    ids=range(14),
)
@pytest.mark.parametrize("ending", [".npy", ".npy.xz"])
def test_forged_arrays(tmp_path: Path, blob: bytes, message: str, ending: str) -> None:
    """Nothing that a header says is allocated before it is known to be there."""
    path = tmp_path / f"a{ending}"
    path.write_bytes(lzma.compress(blob) if ending == ".npy.xz" else blob)
    tracemalloc.start()
    with pytest.raises(InputError, match=message):
        open_pictures(path)
    assert tracemalloc.get_traced_memory()[1] < 60 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("ending", [".npy", ".npy.xz"])
def test_arrays_of_both_orders(tmp_path: Path, order: Any, ending: str) -> None:
    array = np.random.default_rng(0).random((3, 4, 5, 2)).astype(np.float32, order=order)
    path = tmp_path / f"a{ending}"
    np.save(tmp_path / "a.npy", array)
    if ending == ".npy.xz":
        path.write_bytes(lzma.compress((tmp_path / "a.npy").read_bytes()))
    assert np.array_equal(open_pictures(path).batch(["0", "1", "2"]).numpy(), array)


def test_a_long_name_of_an_image_is_not_repeated(tmp_path: Path) -> None:
    for name in ("x" * 10**6, "9" * 10**6):
        with pytest.raises(InputError, match="in:1: there is no image") as caught:
            parse_questions([f"{name}\tis it red?\tno"], "in", ArrayPictures(PIXELS))
        assert len(str(caught.value)) < 200


def test_sizes_that_no_photograph_has() -> None:
    with pytest.raises(InputError, match="at most 67108864 pixels, found"):
        open_pictures("a.tar", (100_000, 100_000))


def test_sizes() -> None:
    with pytest.raises(InputError, match="images of 4 x 5 stay so, 8 x 8 was asked for"):
        ArrayPictures(PIXELS, size=(8, 8))
    with pytest.raises(ValueError, match=r"at least 1, got \(0, 3\)"):
        open_pictures("a.npy", (0, 3))


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


def test_photographs_in_a_folder_or_an_archive(tmp_path: Path) -> None:
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
        found = pictures.batch(["sub/b", "a.png", "grey", "clear", "a"])
        assert found.shape == (5, 4, 6, 3) and found.dtype == torch.uint8
        expected = torch.tensor([[200, 100, 0], [10, 20, 30], [77, 77, 77], [1, 2, 3], [10, 20, 30]])
        assert (found.long() - expected[:, None, None]).abs().max() <= 2
        with pytest.raises(InputError, match=r"there is no image '../f.tar'"):
            pictures.batch(["../f.tar"])


def test_photographs_of_several_sizes_need_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a.png": photo(4, 6, (1, 2, 3)), "b.png": photo(5, 6, (1, 2, 3))})
    pictures = open_pictures(folder)
    assert pictures.shape == (4, 6, 3) and len(pictures.batch(["a"])) == 1
    with pytest.raises(InputError, match=r"b.png has 5 x 6 pixels and not 4 x 6 as the first one; give a size"):
        pictures.batch(["a", "b"])


def test_a_photograph_that_says_it_lies_on_its_side(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    turned = image.Exif()
    turned[0x0112] = 6
    folder_of(tmp_path, {"a.jpg": photo(4, 6, (1, 2, 3), "JPEG", exif=turned)})
    assert open_pictures(tmp_path).shape == (6, 4, 3)


def test_photographs_that_are_none(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    good = photo(4, 6, (1, 2, 3))
    with pytest.raises(InputError, match=r"no images in it, expected .jpg, .jpeg, .png"):
        open_pictures(folder_of(tmp_path / "none", {"a.txt": b"text"}))
    with pytest.raises(InputError, match=r"a.png can't be read as an image"):
        open_pictures(folder_of(tmp_path / "damaged", {"a.png": good[:40]}))
    with pytest.raises(InputError, match=r"a.png can't be read as an image"):
        open_pictures(folder_of(tmp_path / "other", {"a.png": photo(4, 6, (1, 2, 3), "GIF")}))
    both = open_pictures(folder_of(tmp_path / "both", {"a.png": good, "a.jpg": photo(4, 6, (1, 2, 3), "JPEG")}))
    assert both.batch(["a.png", "a.jpg"]).shape == (2, 4, 6, 3)
    with pytest.raises(InputError, match=r"image 'a' may be any of a.jpg, a.png"):
        both.batch(["a"])


def test_photographs_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(InputError, match=r"need Pillow: pip install 'tsallis\[vision\]'"):
        Photos({"a.png": lambda: b""}, "photos")


def test_easy_vqa(shared_data: Path) -> None:
    folder = shared_data / "easy_vqa"
    if not folder.is_dir():
        pytest.skip("needs data: easy-VQA")
    pictures = open_pictures(folder / "test_images.npy.xz")
    asked = read_questions(folder / "test_questions.tsv.xz", pictures)
    assert len(asked) == 9673 and pictures.shape == (64, 64, 3) and len(pictures) == 1000
    assert len(answer_names(asked)) == 13
    assert asked[-1].image in pictures and pictures.batch([asked[-1].image]).float().std() > 1


def test_daquar(shared_data: Path) -> None:
    pytest.importorskip("PIL")
    folder = shared_data / "daquar"
    if not folder.is_dir():
        pytest.skip("needs data: DAQUAR")
    pictures = open_pictures(folder / "images_240x180_q85.tar")
    asked = {name: read_questions(folder / f"{name}.tsv.xz", pictures) for name in ("train", "test")}
    assert [len(part) for part in asked.values()] == [6795, 5673] and pictures.shape == (180, 240, 3)
    known = set(answer_names(asked["train"]))
    assert round(100 * sum(q.answer not in known for q in asked["test"]) / 5673, 1) == 9.7
    assert pictures.batch([asked["test"][0].image]).shape == (1, 180, 240, 3)
