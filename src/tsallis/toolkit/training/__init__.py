"""Training: the loop, schedules, checkpoints, the log and the run folder."""

from tsallis.toolkit.config import Settings
from tsallis.toolkit.training.allocator import reuse_memory
from tsallis.toolkit.training.checkpoint import Checkpoints
from tsallis.toolkit.training.log import Log
from tsallis.toolkit.training.run_folder import Run, load_run
from tsallis.toolkit.training.trainer import Progress, Trainer

__all__ = ["Checkpoints", "Log", "Progress", "Run", "Settings", "Trainer", "load_run", "reuse_memory"]
