"""Sparse distributions."""
