"""Tasks: what the commands train, translate and evaluate, one file each.

`tsallis.toolkit.tasks.base` defines what a task is, and `tsallis.toolkit.tasks.registry` lists all tasks.
"""

from tsallis.toolkit.tasks.registry import load_config

__all__ = ["load_config"]
