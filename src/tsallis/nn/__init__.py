"""Modules: maps, losses, attention and output layers of sparse probability."""
