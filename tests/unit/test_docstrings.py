"""The docstring of a public name says all that a user asks: each part that it needs is there.

A function's first line opens with a verb, a class's with a noun. `Args` describes every parameter, `Returns` what
comes back, `Raises` every error that the body raises; an example runs (`test_doctests.py`), and maps, losses and
densities name the paper and the equation that they come from. The fields of a record may have comments instead of
`Args`; one without methods of its own, or a protocol, needs no example.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from public_names import PUBLIC_NAMES

# The verbs that open a function's first line: a new one is added here once it is known to be one.
VERBS = """
    Apply Attend Build Change Choose Compute Count Describe Draw Fetch Find Give Hand Load Make Mark Match Open Place
    Put Read Return Save Show Split Tell Train Write Yield
"""
# No nouns that a class's first line could open with.
NO_NOUNS = {*VERBS.split(), "What", "Of", "How", "Where", "Which", "Whose", "Accumulates", "Appends", "Holds", "Trains"}
# "Peters et al. 2019", and "eq. 10" or the like
PAPER = re.compile(r"[A-Z][\w-]+(?: et al\.|(?:,? (?:and )?[A-Z][\w-]+)+)?,? \(?(?:19|20)\d\d\b")
LOCATION = re.compile(r"\b(eq|sec|prop|alg|def|fig|tab|app|thm|lemma)\. ?[\w(]")
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Examples")
# Maps, losses and the entropies that they are made of: they name their source, as do all densities.
FROM_PAPERS = {
    "tsallis": "entmax sparsemax entmax15 normmax budgeted_entmax tsallis_entropy escort entmax_loss alpha_relu "
    "alpha_relu_loss linear_entmax_loss linear_alpha_relu_loss entmax_attention estimate_tau estimate_tau_from_scores",
    "tsallis.nn": "Entmax EntmaxLoss AlphaReLULoss Sparsemax",
    "tsallis.distributions": "EntmaxCategorical",
}
# What is not there yet, a line a name: a line goes when its parts are written, and none is added.
MISSING: dict[str, str] = {}

CASES = [
    f"{module}.{name}"
    for module, names in PUBLIC_NAMES.items()
    for name in names
    if module != "tsallis.functional"  # the same as the package's
    and f"{module}.{name}" not in PUBLIC_NAMES
    and name != "kl_divergence"  # PyTorch's own
]


def parts_missing(thing: Any, from_paper: bool) -> Iterator[str]:
    """Yield the names of the parts that the docstring of a function or class needs and does not have."""
    text = docstring_of(thing)
    sections = sections_of(text)
    if not summary_is_right(thing, text):
        yield "summary"
    if undocumented(thing, sections):
        yield "Args"
    if not inspect.isclass(thing) and not {"Returns", "Yields"} & set(sections) and returns_something(thing):
        yield "Returns"
    if errors_of(thing) - set(re.findall(r"^(\w+):", sections.get("Raises", ""), re.M)):
        yield "Raises"
    needs_example = not getattr(thing, "_is_protocol", False) and not (is_record(thing) and not methods_of(thing))
    if needs_example and ">>>" not in text:
        yield "Example"
    if from_paper and not (PAPER.search(text) and LOCATION.search(text)):
        yield "source"


def docstring_of(thing: Any) -> str:
    """Return the docstring of a function, or of a class itself: what it inherits does not count."""
    return inspect.cleandoc((vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__) or "")


def undocumented(thing: Any, sections: dict[str, str]) -> set[str]:
    """Return the parameters that no line of `Args` describes, and a function's lines that describe no parameter."""
    names = names_in(sections.get("Args", "") + "\n" + sections.get("Attributes", ""))
    parameters = parameters_of(thing)
    if not inspect.isclass(thing):
        return names ^ parameters
    return parameters - names - (fields_with_comments(thing) if is_record(thing) else set())


def summary_is_right(thing: Any, text: str) -> bool:
    """Tell whether the first line is one sentence that opens with a verb for a function, without one for a class."""
    first, *rest = text.split("\n")
    if not first.endswith((".", ":")) or (rest and rest[0]):
        return False
    word = re.match(r"\w*", first)[0]  # type: ignore[index]
    return word not in NO_NOUNS if inspect.isclass(thing) else word in VERBS.split()


def sections_of(text: str) -> dict[str, str]:
    """Return the sections of a docstring by their titles, their lines moved to the margin."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):$", text, flags=re.M)
    return {
        title: textwrap.dedent(re.split(r"^(?=\S)", body.lstrip("\n"), maxsplit=1, flags=re.M)[0])
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def names_in(section: str) -> set[str]:
    """Return the names at the margin of a section: `name: text`, or `one, other: text`."""
    heads = re.findall(r"^((?:\*{0,2}\w+(?:, )?)+)(?: \([^)]*\))?:(?: |$)", section, re.M)
    return {name.strip("* ") for head in heads for name in head.split(",")}


def parameters_of(thing: Any) -> set[str]:
    if getattr(thing, "_is_protocol", False):
        return set()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD) if inspect.isclass(thing) else ()
    parameters = inspect.signature(thing).parameters.values()
    return {x.name for x in parameters if not x.name.startswith("_") and x.kind not in variadic}


def is_record(thing: Any) -> bool:
    return inspect.isclass(thing) and (dataclasses.is_dataclass(thing) or hasattr(thing, "_fields"))


def methods_of(record: Any) -> list[str]:
    kinds = (property, classmethod, staticmethod)
    return [
        name
        for name, value in vars(record).items()
        if not name.startswith("_") and (isinstance(value, kinds) or inspect.isfunction(value))
    ]


def fields_with_comments(record: Any) -> set[str]:
    """Return the fields of a record, inherited ones too, that have a comment beside or above them."""
    fields = set()
    for base in inspect.getmro(record):
        if not base.__module__.startswith("tsallis"):
            continue
        above = ""
        for line in inspect.getsource(base).splitlines():
            match = re.match(r" {4}(\w+): ", line)
            if match and ("  # " in line or above.startswith("#")):
                fields.add(match[1])
            above = line.strip()
    return fields


def returns_something(function: Callable[..., Any]) -> bool:
    return inspect.signature(function).return_annotation not in (None, "None", "NoReturn")


def errors_of(thing: Any) -> set[str]:
    """Return the names of the errors that a function, or the making of a class's object, raises itself."""
    own = vars(thing) if inspect.isclass(thing) else {"": inspect.unwrap(thing)}
    bodies = [own[name] for name in ("", "__init__", "__post_init__") if name in own]
    names = set()
    for body in bodies:
        # Not those that protocols and dataclasses are given.
        if not inspect.isfunction(body) or body.__code__.co_filename != inspect.getfile(thing):
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(body)))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                names.add(node.exc.func.id)
    return {name for name in names if name.endswith("Error")}


@pytest.mark.parametrize("case", CASES)
def test_docstring(case: str) -> None:
    module, name = case.rsplit(".", 1)
    if module not in ("tsallis", "tsallis.nn", "tsallis.continuous", "tsallis.distributions", "tsallis.compat"):
        pytest.importorskip("transformers" if "huggingface" in module else "numpy")
    thing = getattr(importlib.import_module(module), name)
    if not callable(thing):
        assert case not in MISSING
        return
    density = module == "tsallis.continuous" and inspect.isclass(thing) and issubclass(thing, _density())
    missing = " ".join(parts_missing(thing, density or name in FROM_PAPERS.get(module, "").split()))
    parameters = sorted(undocumented(thing, sections_of(docstring_of(thing))))
    assert missing == MISSING.get(case, ""), f"without: {missing or 'nothing'}; in no line of Args: {parameters}"


def _density() -> type:
    from tsallis.continuous import Density

    return Density


def test_the_list_of_what_is_missing_names_public_names() -> None:
    assert set(MISSING) <= set(CASES)


def complete(scores: list[float], alpha: float = 2.0, *, mask: list[bool] | None = None) -> float:
    """Return a number.

    (Peters et al. 2019, eq. 10).

    Args:
        scores, alpha: two of them.
        mask: another,
            on two lines.

    Returns:
        A number.

    Raises:
        ValueError: an alpha below 1.

    Example:
        >>> complete([1.0])
        1.0
    """
    if alpha < 1:
        raise ValueError(alpha)
    return scores[0]


def changed(text: str) -> Callable[..., Any]:
    """Return :func:`complete` with another docstring."""
    namespace: dict[str, Any] = {}

    def other(scores: list[float], alpha: float = 2.0, *, mask: list[bool] | None = None) -> float:
        if alpha < 1:
            raise ValueError(alpha)
        return scores[0]

    other.__doc__, other.__module__ = text, "tsallis"
    namespace["other"] = other
    return namespace["other"]


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("Return a number.", "Return a number.", ""),
        ("Return a number.", "A number.", "summary"),
        ("Return a number.", "Return a number", "summary"),
        ("Return a number.\n", "Return a number\n    of two lines.\n", "summary"),
        ("scores, alpha:", "scores:", "Args"),
        ("mask: another,", "masks: another,", "Args"),
        ("Returns:", "Gives:", "Returns"),
        ("ValueError:", "TypeError:", "Raises"),
        (">>>", "...", "Example"),
        ("2019", "", "source"),
        ("eq. 10", "and others", "source"),
    ],
)
def test_a_part_that_is_not_there_is_told(old: str, new: str, missing: str) -> None:
    text = complete.__doc__ or ""
    assert old in text
    assert list(parts_missing(changed(text.replace(old, new)), True)) == ([missing] if missing else [])
