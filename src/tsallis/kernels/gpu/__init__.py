"""Kernels for GPUs, written in Triton. Importing this folder imports Triton: only what has met a GPU does."""
