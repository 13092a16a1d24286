"""Names, arguments and defaults of the PyPI package `entmax` 1.3, so that existing code changes only its imports::

    import tsallis.compat as entmax                          # was: import entmax
    from tsallis.compat import entmax15, EntmaxBisectLoss    # was: from entmax import ...
    from tsallis.compat.losses import SparsemaxLoss          # was: from entmax.losses import SparsemaxLoss

`activations`, `losses` and `root_finding` are the package's modules. The page :doc:`/compat` lists ignored arguments,
deliberate differences in results, and missing names.
"""

from tsallis.compat import activations as activations
from tsallis.compat import losses as losses
from tsallis.compat import root_finding as root_finding
from tsallis.compat.activations import Entmax15, Sparsemax, entmax15, sparsemax
from tsallis.compat.losses import (
    Entmax15Loss,
    EntmaxBisectLoss,
    NormmaxBisectLoss,
    SparsemaxBisectLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_bisect_loss,
    normmax_bisect_loss,
    sparsemax_bisect_loss,
    sparsemax_loss,
)
from tsallis.compat.root_finding import (
    BudgetBisect,
    EntmaxBisect,
    NormmaxBisect,
    SparsemaxBisect,
    budget_bisect,
    entmax_bisect,
    normmax_bisect,
    sparsemax_bisect,
)

__all__ = [
    "BudgetBisect",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "NormmaxBisect",
    "NormmaxBisectLoss",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "budget_bisect",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "normmax_bisect",
    "normmax_bisect_loss",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]
