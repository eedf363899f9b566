"""Data sets between which dp-pmf and pdp-pmf cannot hide the difference of one rating.

What their proof holds constant moves: a high rating turns its user's fitted u towards the item's v, a low one turns it
away, and without a rating u stays near its start. Of an item that this user alone rated, A_j = u u', so that the
released (A_j + precision I)^-1 (b_j - eta_j) is a hundred times shorter along u than across it (with the default
precision), whatever epsilon is; and alg2's many steps pull v back along u alone. So the noise shows u: it is the one
direction along which all items of its user are still. Ratings in the middle of the scale add items and pull u nowhere.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from models.audit.neighbours import Neighbours, made_up
from models.privacy.specification import PrivacySpecification, Relation
from models.ratings import RatingScale

N_LABELS = 1000
"""Where a policy deals epsilons by item, so many items have as good as every epsilon among them."""

N_BESIDE = {"exact": 10, "alg2": 40}
"""Other items of the same user, so many that a few hundred runs tell along which direction they are still."""


def ratings_of_a_lone_user(
    specification: PrivacySpecification,
    relation: Relation,
    scale: RatingScale,
    *,
    solver: Literal["exact", "alg2"],
    threshold: float,
) -> Neighbours:
    """All ratings are one user's, and one of them differs: from the top of the scale to its bottom, or to nothing.

    Args:
      threshold: a rating of less epsilon may be sampled out. The one that differs has about half of it, the others
        have as much as any.
    """
    n_beside, middle = N_BESIDE[solver], int(scale.level_of(np.array(scale.midpoint)))
    return Neighbours(
        f"one of {n_beside + 1} ratings, all by the same user",
        tuple((0, item, middle) for item in range(1, n_beside + 1)),
        ((0, 0, len(scale.levels) - 1),),
        0 if relation == "replace_value" else None,
        n_items=n_beside + 1,
        labels=_labels(n_beside, specification, scale, threshold),
    )


def _labels(
    n_beside: int, specification: PrivacySpecification, scale: RatingScale, threshold: float
) -> tuple[int, ...]:
    """Numbers of the items' labels, that of the item whose rating differs first."""
    of_all = made_up([(0, item, 0) for item in range(N_LABELS)], range(N_LABELS), specification, scale)
    epsilon = specification.epsilon_of(of_all)
    differs = int(np.argmin(np.abs(epsilon - threshold / 2)))
    others = [item for item in np.argsort(-epsilon, kind="stable") if item != differs]
    return (differs, *map(int, others[:n_beside]))
