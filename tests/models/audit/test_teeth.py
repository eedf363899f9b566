"""Every copy of pdp-histogram that is wrong is found out, and the right one never is."""

from __future__ import annotations

import pytest

from models.audit.audit import Audited, audit
from models.audit.neighbours import Neighbours
from models.privacy.noise import SeededNoise
from models.privacy.specification import PrivacySpecification
from tests.models.audit.broken import A_RATING, A_USER, COPIES, HONEST, LIBERAL, POLICY, RATING, STAYS, USER, Copy

SURE = 0.9999


def audited(copy: Copy) -> Audited:
    return audit(
        copy.recommender,
        copy.specification,
        n_runs=copy.n_runs,
        noise=copy.source(SeededNoise(1)),
        pair=copy.pair,
    )


@pytest.mark.parametrize("copy", COPIES, ids=lambda copy: copy.what)
def test_what_is_wrong_is_found_out(copy: Copy) -> None:
    assert audited(copy).exceeded


@pytest.mark.parametrize(
    ("specification", "pair", "least"),
    [(RATING, A_RATING, 0.5), (RATING, STAYS, 0.4), (POLICY, LIBERAL, 0.5), (USER, A_USER, 0.6)],
    ids=["rating", "batches", "policy", "user"],
)
def test_what_is_right_is_not_though_the_same_neighbours_show_much_of_what_it_claims(
    specification: PrivacySpecification, pair: Neighbours, least: float
) -> None:
    found = audit(HONEST, specification, n_runs=4000, noise=SeededNoise(2), pair=pair, confidence=SURE)
    assert least <= found.share <= 1
