"""Training: the loop, schedules, checkpoints, the log and the run folder."""

from tsallis.config import Settings
from tsallis.training.allocator import reuse_memory
from tsallis.training.checkpoint import Checkpoints
from tsallis.training.log import Log
from tsallis.training.run_folder import Run, load_run
from tsallis.training.trainer import Progress, Trainer

__all__ = ["Checkpoints", "Log", "Progress", "Run", "Settings", "Trainer", "load_run", "reuse_memory"]
