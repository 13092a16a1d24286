"""How far a search without a beam goes, for the search and for commands that say so before they load it."""

from __future__ import annotations

EXPANSIONS = 10_000  # prefixes that are expanded for a source, unless another number is given
