"""Tasks: what commands train, translate, evaluate and draw, a file each.

`tsallis.tasks.base` says what a task is, and `tsallis.tasks.registry` which ones there are.
"""

from tsallis.tasks.inflection import InflectionExample, english_verbs, read_inflection, read_languages
from tsallis.tasks.registry import load_config

__all__ = ["InflectionExample", "english_verbs", "load_config", "read_inflection", "read_languages"]
