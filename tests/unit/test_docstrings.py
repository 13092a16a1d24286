"""The docstring of every public name has all the parts that a user needs.

The first line is a whole sentence. `Args` describes every parameter, `Returns` the result, and `Raises` every error
that the body raises. An example runs (`test_doctests.py`). Maps, losses and densities cite a paper and an equation. The
fields of a record may have comments instead of `Args`. A protocol, or a record without methods, needs no example.
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

# "Peters et al. 2019", and "eq. 10" or the like
PAPER = re.compile(r"[A-Z][\w-]+(?: et al\.|(?:,? (?:and )?[A-Z][\w-]+)+)?,? \(?(?:19|20)\d\d\b")
LOCATION = re.compile(r"\b(eq|sec|prop|alg|def|fig|tab|app|thm|lemma)\. ?[\w(]")
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Examples")
CASES = [
    f"{module}.{name}"
    for module, names in PUBLIC_NAMES.items()
    for name in names
    if module != "tsallis.functional"  # the same names as in the package
    and f"{module}.{name}" not in PUBLIC_NAMES
    and name != "kl_divergence"  # defined by PyTorch
]


def parts_missing(thing: Any, from_paper: bool) -> Iterator[str]:
    """Yield the names of the parts that the docstring of a function or class needs but lacks."""
    text = docstring_of(thing)
    sections = sections_of(text)
    first, *others = text.split("\n")
    if not first.endswith((".", ":")) or (others and others[0]):
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
    """Return the docstring of a function or class, but not an inherited one."""
    return inspect.cleandoc((vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__) or "")


def undocumented(thing: Any, sections: dict[str, str]) -> set[str]:
    """Return parameters that `Args` does not describe, and entries of a function's `Args` that are not parameters."""
    names = names_in(sections.get("Args", "") + "\n" + sections.get("Attributes", ""))
    parameters = parameters_of(thing)
    if not inspect.isclass(thing):
        return names ^ parameters
    return parameters - names - (fields_with_comments(thing) if is_record(thing) else set())


def sections_of(text: str) -> dict[str, str]:
    """Return the sections of a docstring by their titles, with dedented lines."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):$", text, flags=re.M)
    return {
        title: textwrap.dedent(re.split(r"^(?=\S)", body.lstrip("\n"), maxsplit=1, flags=re.M)[0])
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def names_in(section: str) -> set[str]:
    """Return the names of a section's entries: `name: text`, or `one, other: text`."""
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
    """Return the fields of a record, including inherited ones, with a comment on or above their line."""
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
    """Return the names of the errors that a function, or the constructor of a class, raises itself."""
    own = vars(thing) if inspect.isclass(thing) else {"": inspect.unwrap(thing)}
    bodies = [own[name] for name in ("", "__init__", "__post_init__") if name in own]
    names = set()
    for body in bodies:
        # Skip generated methods of protocols and dataclasses.
        if not inspect.isfunction(body) or body.__code__.co_filename != inspect.getfile(thing):
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(body)))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                names.add(node.exc.func.id)
    return {name for name in names if name.endswith("Error")}


@pytest.mark.parametrize("case", CASES)
def test_docstrings_have_all_required_parts(case: str) -> None:
    module, name = case.rsplit(".", 1)
    if module not in ("tsallis", "tsallis.nn", "tsallis.continuous", "tsallis.distributions", "tsallis.compat"):
        pytest.importorskip("transformers" if "huggingface" in module else "numpy")
    thing = getattr(importlib.import_module(module), name)
    if not callable(thing):
        return
    missing = [*parts_missing(thing, is_from_paper(module, thing))]
    parameters = sorted(undocumented(thing, sections_of(docstring_of(thing))))
    assert not missing, f"without: {missing}; in no line of Args: {parameters}"


def is_from_paper(module: str, thing: Any) -> bool:
    """Return whether a docstring must cite its source: functions, their modules, `EntmaxCategorical`, densities."""
    if module == "tsallis":
        return inspect.isfunction(thing)
    if module == "tsallis.nn":
        return thing.__name__.lower() in {name.replace("_", "") for name in PUBLIC_NAMES["tsallis"]}
    if module == "tsallis.continuous" and inspect.isclass(thing):
        from tsallis.continuous import Density

        return issubclass(thing, Density)
    return module == "tsallis.distributions" and thing.__name__ == "EntmaxCategorical"
