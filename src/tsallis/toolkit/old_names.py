"""Old names in the files of a run, and the names that replaced them in later versions."""

from __future__ import annotations

from typing import Any

# Keys in any section of config.yaml, and argument names in model.json.
KEYS = {
    "alpha_rate": "alpha_lr_scale",
    "context_attention": "cross_attention",
    "functions": "num_basis",
    "penalty": "ridge",
    "competing_ends": "end_rule",
    "validation_competing_ends": "validation_end_rule",
    "tags": "columns",
    "least": "min_length",
    "most": "max_length",
}
# For keys whose values changed along with the name: the new value of each old value.
VALUES: dict[str, dict[bool, Any]] = {
    **{key: {True: "competing", False: "every"} for key in ("competing_ends", "validation_competing_ends")},
    "tags": {True: {"source": 1, "target": 2, "features": [3]}, False: {"source": 1, "target": 2, "features": []}},
}
REMOVED = {"attended"}  # settings that no longer exist; the configuration of a run that did not use them has null
# Values of the key `task` in config.yaml and task.json.
TASKS = {"inflection": "strings"}


def with_new_names(content: Any) -> Any:
    """Return the content of a file with all old names replaced and removed settings left out, also in nested sections.

    If the new name is also present, the old name is kept, so that the schema of the file rejects the old name.

    >>> with_new_names({"data": {"task": "inflection"}, "training": {"alpha_rate": 5.0}})
    {'data': {'task': 'strings'}, 'training': {'alpha_lr_scale': 5.0}}
    >>> with_new_names({"search": {"competing_ends": True}})
    {'search': {'end_rule': 'competing'}}
    """
    if not isinstance(content, dict):
        return content
    names = {key: KEYS.get(key, key) for key in content}
    renamed: dict[Any, Any] = {}
    for key, value in content.items():
        if key in REMOVED and value is None:
            continue
        name = key if names[key] in content else names[key]
        changed = name != key and isinstance(value, bool)
        renamed[name] = VALUES.get(key, {}).get(value, value) if changed else with_new_names(value)
    if isinstance(task := renamed.get("task"), str):
        renamed["task"] = TASKS.get(task, task)
    return renamed
