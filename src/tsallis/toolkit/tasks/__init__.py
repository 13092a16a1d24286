"""Tasks that the commands can train, run and evaluate, one module per task.

`tsallis.toolkit.tasks.base` defines the interface of a task, and `tsallis.toolkit.tasks.registry` lists all tasks.
"""

from tsallis.toolkit.tasks.registry import load_config

__all__ = ["load_config"]
