"""The names of the files of a run folder; `run_folder.py` and `checkpoint.py` say what they hold."""

from __future__ import annotations

CONFIG, MODEL, TASK = "config.yaml", "model.json", "task.json"
START = "start.safetensors"  # the parameters that a run began with, if they were not drawn at random
LOG, TIMING = "log.jsonl", "timing.jsonl"
BOARD = "tensorboard"  # a folder
LOCK = ".lock"

CHECKPOINTS = "checkpoints"  # a folder with an index, and a folder for each checkpoint
INDEX = "index.json"
PARAMETERS, TRAINING, MANIFEST = "model.safetensors", "training.pt", "manifest.json"  # of one checkpoint
