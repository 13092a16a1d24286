"""Tasks: what commands train, translate, evaluate and draw, a file each.

`tsallis.tasks.base` says what a task is, and `tsallis.tasks.registry` which ones there are.
"""

from tsallis.tasks.registry import load_config
from tsallis.tasks.strings import StringsExample, english_verbs, read_languages, read_strings

__all__ = ["StringsExample", "english_verbs", "load_config", "read_languages", "read_strings"]
