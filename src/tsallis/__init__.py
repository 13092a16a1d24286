"""Sparse probability in PyTorch."""
