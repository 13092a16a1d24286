"""Markdown of two reference pages: the commands from their `--help`, the settings from their schemas.

`conf.py` puts it in place of `<!-- commands -->` and `<!-- settings -->`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, get_args

CODE = re.compile(r"`[^`]*`")
COMMON = {
    "task": "The task",
    "architecture": "The model",
    "embedded": "Data that comes with the package, in place of files",
    "folder": "Folder of the data files",
    "train": "File of the training data",
    "dev": "File of the development data",
    "test": "File of the test data",
    "src": "Source language: the ending of its file",
    "tgt": "Target language: the ending of its file",
    "subwords": "How text is split into symbols",
    "tgt_model": "Existing sentencepiece model of the target; needs src_model",
    "columns": "Numbers of the columns of a line, from 1",
    "images": "Images of each split: an array file, a .tar file or a folder",
    "synthetic": "Generated data, in place of files",
    "source": "Column of the source",
    "target": "Column of the target",
    "features": "Column or columns of the features; auto: column 3 if the training data have it",
    "label": "Column of the label",
    "text": "Column of the text; -1: the last column",
    "name": "Name of the synthetic task",
    "test_lengths": "Numbers of tokens per test example",
    "texts": "What one text is: a line or a paragraph",
    "freeze": "Whether the vectors stay fixed during training",
    "seed": "Random seed",
    "tgt_symbols": "As src_symbols, for the target",
    "tgt_normalization": "As src_normalization, for the target",
    "feature_separator": "Separator of the features in their column",
}


def plain(text: str) -> str:
    """Return a help text as Markdown: options are code, brackets and tags outside of code are shown as they are."""
    joined = re.sub(r"\s*\n\s*", " ", text.replace(r"\[", "["))
    joined = re.sub(r"(?<![\w`-])--[a-z][\w-]*(?![\w`])", r"`\g<0>`", joined)
    parts = CODE.split(joined), [*CODE.findall(joined), ""]
    return "".join(re.sub(r"([<>\[\]*_|])", r"\\\1", words) + code for words, code in zip(*parts, strict=True))


def commands() -> str:
    """Return a section for each command: its usage, description, arguments and options in their groups."""
    import typer

    from tsallis.toolkit.cli import app

    def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        for key, part in getattr(command, "commands", {}).items():
            yield from leaves(part, f"{name} {key}")
        if not hasattr(command, "commands"):
            yield name, command

    lines: list[str] = []
    for path, command in leaves(typer.main.get_command(app), "tsallis"):
        names = {p: p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"}
        usage = " ".join([path, "[OPTIONS]", *names.values()])
        lines += [f"## {path}", "", "```text", usage, "```", ""]
        lines += [plain(paragraph) + "\n" for paragraph in inspect.cleandoc(command.help or "").split("\n\n")]
        groups: dict[str, list[Any]] = {}
        for parameter in [*names, *(p for p in command.params if p not in names)]:
            groups.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(parameter)
        for title, parameters in groups.items():
            lines += [f"**{title}**", ""] if title else []
            for parameter in parameters:
                shown = [names[parameter]] if parameter in names else parameter.opts
                lines += [", ".join(f"`{name}`" for name in shown), f": {plain(parameter.help or 'See above.')}", ""]
    return "\n".join(lines)


def settings() -> str:
    """Return a section for each task's data, each model, the training and the search."""
    from tsallis.models.classifier import BiLSTMClassifier
    from tsallis.models.registry import MODELS
    from tsallis.models.vqa import VisualAnswerer
    from tsallis.search.options import OPTIONS
    from tsallis.toolkit.config import Settings
    from tsallis.toolkit.tasks.registry import DEFAULT, TASKS, schema

    config = schema(TASKS[DEFAULT], next(iter(TASKS[DEFAULT].models)))
    search = config.model_fields["search"].annotation
    helps = {
        name: re.sub(r"the run's setting, or | \(default: the run's \w+\)", "", info.help)
        for name, info in OPTIONS.items()
    }
    for name, task in TASKS.items():
        for option, value in task.search_defaults.given.items():
            helps[option] = f"{helps[option].removesuffix('.')}. Default for `task: {name}`: `{value}`"
    lines = ["### training", "", *_fields(Settings, _described(Settings))]
    lines += ["### search", "", *_fields(search, helps)]
    for name, task in TASKS.items():
        lines += [f"### data: {name}", "", *_fields(task.Config, _described(task.Config))]
    models = {name: model for task in TASKS.values() for name, model in task.models.items()}
    classes = MODELS | {"classifier": BiLSTMClassifier, "answerer": VisualAnswerer}
    for name, model in models.items():
        lines += [f"### model: {name}", "", *_fields(model, _described(classes[name]) | _described(model))]
    return "\n".join(lines)


def _fields(section: Any, described: dict[str, str], prefix: str = "") -> list[str]:
    """Return a definition for each field of a section: its name and default, its meaning, its values."""
    lines: list[str] = []
    for name, field in section.model_fields.items():
        nested = [kind for kind in (field.annotation, *get_args(field.annotation)) if hasattr(kind, "model_fields")]
        default = "required" if field.is_required() else "" if nested else f"= {_value(field.default)}"
        meaning, values = described.get(name, COMMON.get(name, "")), _values(section, name)
        meaning = f"{meaning[:1].upper()}{meaning[1:].removesuffix('.')}." if meaning else ""
        parts = [
            plain(meaning),
            "" if all(value.strip("`") in meaning for value in values) else f"*{', '.join(values)}*",
        ]
        lines += [f"`{prefix}{name}` {default}", f": {' '.join(filter(None, parts)) or 'A text.'}", ""]
        for kind in nested:
            lines += _fields(kind, _described(kind), f"{prefix}{name}.")
    return lines


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{list(value) if isinstance(value, tuple) else value}"


def _values(section: Any, name: str) -> list[str]:
    """Return the values that a setting may have, in words; none for any text."""
    field = section.model_json_schema()["properties"][name]
    parts = [part for part in field.get("anyOf", [field]) if part.get("type") != "null"]
    words = [f"`{value}`" for part in parts for value in part.get("enum", [part["const"]] if "const" in part else [])]
    names = {"integer": "an integer", "number": "a number", "boolean": "true or false", "array": "a list"}
    return words + [names[part["type"]] for part in parts if part.get("type") in names]


def _described(section: Any) -> dict[str, str]:
    """Return what a class states about its fields: in comments before or behind fields, and under "Args"."""
    result: dict[str, str] = {}
    for kind in reversed(section.__mro__ if hasattr(section, "model_fields") else ()):
        if kind.__module__.startswith("tsallis."):
            source = textwrap.dedent(inspect.getsource(kind))
            for comment, name in re.findall(r"^((?:    # .*\n)+)    (\w+): ", source, re.M):
                result[name] = " ".join(comment.replace("    # ", "").split())
            result |= dict(re.findall(r"^    (\w+): .*?  # (?:type: ignore\S*  # )?(.*)$", source, re.M))
    text = inspect.cleandoc(section.__doc__ or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    for names, meaning in re.findall(r"^    (\w[\w, ]*): (.*(?:\n      .*)*)", text, re.M):
        result |= dict.fromkeys(names.split(", "), re.sub(r":\w+:`~?([^`]*)`", r"`\1`", meaning))
    return result
