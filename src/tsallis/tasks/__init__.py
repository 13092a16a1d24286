"""Tasks: what the commands train, translate and evaluate, one file each.

`tsallis.tasks.base` defines what a task is, and `tsallis.tasks.registry` lists all tasks.
"""

from tsallis.tasks.registry import load_config

__all__ = ["load_config"]
