"""File names in a run folder; `run_folder.py` and `checkpoint.py` describe the contents."""

from __future__ import annotations

CONFIG, MODEL, TASK = "config.yaml", "model.json", "task.json"
START = "start.safetensors"  # initial parameters; the file is missing if they are random
LOG, TIMING = "log.jsonl", "timing.jsonl"
BOARD = "tensorboard"  # folder for TensorBoard files
LOCK = ".lock"

CHECKPOINTS = "checkpoints"  # a folder with an index, and a folder for each checkpoint
INDEX = "index.json"
PARAMETERS, TRAINING, MANIFEST = "model.safetensors", "training.pt", "manifest.json"  # files of one checkpoint
