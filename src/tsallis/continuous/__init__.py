"""Densities, basis functions and value functions: attention to regions of a continuous line or plane."""

from tsallis.continuous.bases import (
    Basis,
    GaussianBasis,
    ProductBasis,
    gaussian_grid,
    image_basis,
    paper_image_basis,
    text_basis,
    translation_basis,
)
from tsallis.continuous.densities.elliptical import Density, Elliptical
from tsallis.continuous.densities.mixture import Mixture
from tsallis.continuous.densities.named import (
    BetaGaussian,
    Gaussian,
    Laplace,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)
from tsallis.continuous.grid_masses import grid_masses
from tsallis.continuous.interval_masses import cell_masses
from tsallis.continuous.moments import match_moments, moments
from tsallis.continuous.supports import Ellipse, Interval, Union, WholeSpace
from tsallis.continuous.value_function import Signal, ValueFunction, box_centres, cell_centres, grid_centres

__all__ = [
    "Basis",
    "BetaGaussian",
    "Density",
    "Ellipse",
    "Elliptical",
    "Gaussian",
    "GaussianBasis",
    "Interval",
    "Laplace",
    "Mixture",
    "ProductBasis",
    "Signal",
    "Triangular",
    "TruncatedParabola",
    "TruncatedParaboloid",
    "Union",
    "ValueFunction",
    "WholeSpace",
    "box_centres",
    "cell_centres",
    "cell_masses",
    "gaussian_grid",
    "grid_centres",
    "grid_masses",
    "image_basis",
    "match_moments",
    "moments",
    "paper_image_basis",
    "text_basis",
    "translation_basis",
]
