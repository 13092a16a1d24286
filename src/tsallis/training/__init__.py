"""Training: the loop, schedules, checkpoints, the log and the run folder."""

from tsallis.training.checkpoint import Checkpoints
from tsallis.training.log import Log
from tsallis.training.loop import Progress, Settings, Trainer
from tsallis.training.run import Run, load_run

__all__ = ["Checkpoints", "Log", "Progress", "Run", "Settings", "Trainer", "load_run"]
