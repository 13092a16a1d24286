"""Parser for YAML configurations. It limits the number of aliases and rejects duplicate keys."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tsallis.errors import InputError, truncate

LARGEST_FILE = 1 << 18  # maximum file size in bytes
MAX_ALIASES = 20  # maximum number of aliases per file; nested aliases could otherwise fill the memory
LONGEST_KEY = 60  # maximum number of characters of a key in a message
# YAML 1.1 reads these texts as truth values, octal or sexagesimal numbers, dates, or a default value. As in YAML 1.2,
# they stay texts: `no` can be a language. The schemas still read yes and no as truth values, and 010 as the number 10.
TEXTS = re.compile(r"(?i:yes|no|on|off)|[-+]?0[0-9_]+|[^:]+:.*|[0-9]+-[0-9]+-.*|=")
STRING, FLOAT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:float"
POWER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")  # a number such as 1e-3, which YAML 1.1 reads as a text
# PyYAML raises YAMLError, but also other errors: for impossible dates, invalid numbers and excessive nesting.
NOT_YAML = (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError)


class _Loader(yaml.SafeLoader):
    """Loader that rejects duplicate keys. PyYAML itself would silently use the last value of such a key."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag: str = super().resolve(kind, value, implicit)
        if kind is yaml.ScalarNode and implicit[0]:
            return STRING if TEXTS.fullmatch(value) else FLOAT if POWER.fullmatch(value) else tag
        return tag

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"duplicate key {truncate(key.value, LONGEST_KEY)}; keep one of them"
                    raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return node


class _Dumper(yaml.SafeDumper):
    """Dumper that puts texts such as 1e-3 in quotes, because the loader reads them as numbers."""


_Dumper.add_implicit_resolver(FLOAT, POWER, [*"+-0123456789"])


def dump_yaml(content: Any) -> str:
    """Return content as YAML, with keys in their order.

    >>> dump_yaml({"data": {"train": "1e-3"}, "seed": 1})
    "data:\\n  train: '1e-3'\\nseed: 1\\n"
    """
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def parse_yaml(text: str, name: str) -> Any:
    """Parse a YAML text.

    Raises:
        InputError: If the text is not YAML, or has too many aliases or a duplicate key. The message begins with `name`.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)) > MAX_ALIASES:
            raise InputError(f"{name}: a configuration may use at most {MAX_ALIASES} YAML aliases (*name)")
        return loader.construct_document(node)
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"{name}: not a configuration: nested too deeply") from error
    except NOT_YAML as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            detail = f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', None)}"
            if getattr(error, "context", None) == "while scanning a double-quoted scalar":
                detail += "; write \\\\ for a backslash, or use single quotes"
        raise InputError(f"{name}: not YAML: {detail}") from error
