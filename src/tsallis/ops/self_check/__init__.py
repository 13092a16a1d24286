"""The comparison of kernels with PyTorch's operations in float64, which `tsallis info --check` runs.

`rows`, `layer` and `attention` compare the families of kernels, `trial` holds what they share, `survey` runs them all.
"""
