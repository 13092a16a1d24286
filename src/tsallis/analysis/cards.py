"""Create cards of heads: one line about the role of a head, and the sentences that show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tsallis.analysis.density import Density, HeadDensity
from tsallis.analysis.head_roles import ROLES, Example, HeadRole, Roles
from tsallis.analysis.record import Recording
from tsallis.analysis.statistics import collect
from tsallis.analysis.tables import Record

SPARSE, DENSE = 0.25, 0.95  # density thresholds for heads without a role


@dataclass(frozen=True)
class HeadCard(Record):
    """Role, density and examples of one head; layers and heads count from 0, but from 1 in the title.

    Args:
        title: Summary in one line.
        kind: Kind of attention: "encoder", "decoder" or "cross".
        layer: Number of the layer.
        head: Number of the head.
        alpha: Alpha of the head; NaN if it is unknown.
        density: Share of visible keys with a weight above zero, mean over the sentences.
        role: Name of the role in :data:`ROLES`; None without a role.
        tendency: Closest role of a head that has no role; None if no role is close.
        confidence: Score of the role; None without a role.
        examples: Sentences that show the role or the tendency, best first.
    """

    title: str
    kind: str
    layer: int
    head: int
    alpha: float
    density: float
    role: str | None
    tendency: str | None
    confidence: float | None
    examples: tuple[Example, ...]


def head_cards(recording: Recording) -> tuple[HeadCard, ...]:
    """Describe every head by its role, alpha and density, with example sentences.

    Heads with a role come first, sorted by confidence. Heads with a tendency follow, the closest to a role first. The
    other heads come last, the sparsest first. :data:`ROLES` defines the roles and their thresholds.

    Args:
        recording: Recording of a model.

    Returns:
        One card per head.

    Raises:
        InputError: The recording has no sentences.

    Example:
        >>> from tsallis.analysis.weights import AttentionLayer, Sentence
        >>> sentence = Sentence.of([[[1, 0, 0], [1, 0, 0], [0, 1, 0]]])
        >>> (card,) = head_cards(Recording([AttentionLayer("encoder", 2, (1.71,))], [sentence]))
        >>> card.title
        'encoder layer 3 head 1 attends to the previous token with confidence 1.00, alpha 1.71, density 33 %'
    """
    roles, densities = collect(recording, Roles(recording.layers), Density(recording.layers))
    cards = zip(describe_heads(roles.heads, densities.heads), roles.heads, strict=True)
    return tuple(card for card, _ in sorted(cards, key=lambda pair: _rank(*pair)))


def _rank(card: HeadCard, role: HeadRole) -> tuple[bool, float, float, float]:
    score = role.scores[card.tendency] or 0.0 if card.tendency else 0.0
    nearness = score / ROLES[card.tendency].threshold if card.tendency else 0.0
    return card.role is None, -(card.confidence or 0.0), -nearness, card.density


def describe_heads(roles: Sequence[HeadRole], densities: Sequence[HeadDensity]) -> list[HeadCard]:
    """Return the card of each head; both arguments list the heads in the same order."""
    return [_card(role, density) for role, density in zip(roles, densities, strict=True)]


def _card(role: HeadRole, density: HeadDensity) -> HeadCard:
    confidence = role.scores[role.role] if role.role else None
    alpha = "" if math.isnan(role.alpha) else f"alpha {role.alpha:.2f}, "
    title = (
        f"{role.kind} layer {role.layer + 1} head {role.head + 1} {_describe_role(role, density.density)}, "
        f"{alpha}density {100 * density.density:.0f} %"
    )
    key = (role.kind, role.layer, role.head, role.alpha)
    return HeadCard(title, *key, density.density, role.role, role.tendency, confidence, role.examples)


def _describe_role(role: HeadRole, density: float) -> str:
    if role.role:
        return f"{ROLES[role.role].phrase} with confidence {role.scores[role.role]:.2f}"
    if role.tendency:
        phrase, threshold = ROLES[role.tendency].phrase, ROLES[role.tendency].threshold
        return f"has no role; the closest is a head that {phrase} ({role.scores[role.tendency]:.2f} of {threshold:.2f})"
    manner = "sparsely" if density <= SPARSE else "to nearly everything" if density >= DENSE else "to some tokens"
    return f"attends {manner}, without a role"
