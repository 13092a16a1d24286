"""The seed of the tiny runs that tests train.

`TSALLIS_TEST_SEED` is added to it, to check that the tests do not depend on what such a run has learned.
"""

from __future__ import annotations

import os

SEED = 1 + int(os.environ.get("TSALLIS_TEST_SEED", "0"))
