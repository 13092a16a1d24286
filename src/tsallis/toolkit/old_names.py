"""Old names in the files of a run, and the names that replaced them in later versions."""

from __future__ import annotations

from typing import Any

# Keys in any section of config.yaml.
KEYS = {"competing_ends": "end_rule", "validation_competing_ends": "validation_end_rule"}
VALUES = {True: "competing", False: "every"}  # the new value of each old value
# Values of the key `task` in config.yaml and task.json.
TASKS = {"inflection": "strings"}


def with_new_names(content: Any) -> Any:
    """Return the content of a file with all old names replaced, also in nested sections.

    If the new name is also present, the old name is kept, so that the schema of the file rejects the old name.

    >>> with_new_names({"data": {"task": "inflection"}, "search": {"competing_ends": True}})
    {'data': {'task': 'strings'}, 'search': {'end_rule': 'competing'}}
    """
    if not isinstance(content, dict):
        return content
    names = {key: KEYS.get(key, key) for key in content}
    renamed: dict[Any, Any] = {}
    for key, value in content.items():
        name = key if names[key] in content else names[key]
        renamed[name] = VALUES[value] if name != key and isinstance(value, bool) else with_new_names(value)
    if isinstance(task := renamed.get("task"), str):
        renamed["task"] = TASKS.get(task, task)
    return renamed
