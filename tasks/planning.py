"""From public things to a plan: the histogram in the newest release, or the sample's.

No ratings but the sample's are read here, and nothing is recorded anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.errors import Refused, SpecError
from models.histogram.pdp_histogram import N_OWN_COLUMNS, RATING_STEPS, PDPHistogram
from models.index import make_recommender
from models.planning import USER_SHARE, Histogram, Plan, foretell
from models.privacy.specification import PrivacySpecification
from models.ratings import RatingScale
from models.release import Release
from tasks.guard import guarded
from tasks.ledger import Ledger
from tasks.ledger_entries import COUNTED, Charge
from tasks.released import newest_release
from tasks.sample import read_sample
from tasks.state import current_state

MOSTLY_NOISE = (
    "Most of that release is noise itself: what noise costs may be foretold twice too high. Compare with a plan from "
    "the sample (--users N --items M)."
)

RATINGS_PER_USER = 100
"""What is assumed of a release's users where nobody says how many they are."""


LEAST_ABOVE_NOISE = 1 / 3
"""With less of its ratings above its own noise a release says too little of items to plan from."""


@dataclass(frozen=True)
class Planned:
    """A plan, in a few words what it was made from, and in a sentence why not to trust it, if so."""

    plan: Plan
    basis: str
    warning: str = ""


@guarded("Planning")
def plan_from_release(source: str, epsilons: Sequence[float], n_users: int | None) -> Planned:
    """Foretell releases of `source` from the noisy histogram in the newest one.

    Raises:
      SpecError: there is no release, or it does not count as many ratings as there are said to be users.
      Refused: the newest release holds no histogram of ratings.
    """
    found = newest_release(source, PDPHistogram.name)
    if found is None:
        raise SpecError(
            f"{source} has no release to plan from; declare how many users and items there are (--users N --items M, "
            "and --scale if it is not 0.5:5:0.5), and the plan is made from the sample."
        )
    number, release = found
    recommender = _recommender(release)
    histogram = _histogram(f"version {number} of {source}.{PDPHistogram.name}", release, recommender)
    n_users = n_users or max(histogram.n_ratings // RATINGS_PER_USER, 1)
    if n_users > histogram.n_ratings:
        raise SpecError(
            f"--users {n_users:,} is more than there are ratings: the release counts about {histogram.n_ratings:,}. "
            "Declare those who rated something."
        )
    has_features = bool(release.about["settings"]["item_features"]) and release.factors.V.shape[1] > N_OWN_COLUMNS
    plan = foretell(
        histogram,
        epsilons,
        n_ratings=histogram.n_ratings,
        n_users=n_users,
        user_share=USER_SHARE[has_features],
        recommender=recommender,
    )
    warning = "" if histogram.above_noise >= LEAST_ABOVE_NOISE else MOSTLY_NOISE
    return Planned(plan, f"the noisy histogram of version {number}, which was paid for", warning)


@guarded("Planning")
def plan_from_sample(epsilons: Sequence[float], n_users: int, n_items: int, scale: RatingScale | None) -> Planned:
    """Foretell a release of ratings like the sample's, by so many users of so many items.

    Raises:
      SpecError: that many items and levels are more than a plan makes up.
      EnvironmentFault: the sample is not installed.
    """
    sampled, users_sampled = sample_histogram()
    histogram = sampled.on(scale or sampled.scale).spread_over(n_items)
    plan = foretell(
        histogram,
        epsilons,
        n_ratings=max(round(histogram.n_ratings * n_users / users_sampled), n_users),
        n_users=n_users,
        user_share=USER_SHARE[False],
        recommender=PDPHistogram(item_features=False),
    )
    return Planned(plan, "the sample (MovieLens latest-small), scaled to what was declared")


@guarded("Reading the ledger")
def left_of_budget(source: str, epsilons: Sequence[float]) -> list[float | None] | None:
    """What each epsilon would leave of the source's budget, None where there is no room for it; None without a budget.

    Only of a budget in epsilon for each rating: of others this says nothing.
    """
    state = current_state()
    if not (state.ledger_key_file.exists() or os.environ.get("JALI_LEDGER_KEY")):
        return None  # no key, no ledger yet; and none is made by looking
    ledger = Ledger(state)
    budget = ledger.budget(source)
    if budget is None or budget.epsilon is None or budget.unit != "rating":
        return None
    paid = [entry.amount for entry in ledger.entries(source) if entry.state in COUNTED]
    amounts = [[*paid, charge_of(source, epsilon).amount] for epsilon in epsilons]
    return [budget.left(after) if budget.spent(after) <= budget.most else None for after in amounts]


def charge_of(source: str, epsilon: float) -> Charge:
    recommender, specification = PDPHistogram(), PrivacySpecification(epsilon=epsilon)
    return Charge(source, recommender.name, recommender.promise(specification), recommender.cost(specification))


def sample_histogram() -> tuple[Histogram, int]:
    """The sample's ratings, counted without noise, for they are published; and how many users it has."""
    scale, table, catalogue = read_sample()
    n_levels = len(scale.levels)
    row = np.array([catalogue.row_of[label] for label in table.item_labels])
    cell = row[table.items] * n_levels + scale.level_of(table.ratings)
    cells = np.bincount(cell, minlength=len(catalogue) * n_levels).reshape(-1, n_levels).astype(np.float64)
    return Histogram(cells, np.zeros(len(cells)), scale), len(table.user_labels)


def _recommender(release: Release) -> PDPHistogram:
    """As it was released, but for features, which nobody can make up, and the threshold: all ratings pay alike."""
    settings = {**release.about["settings"], "item_features": False, "threshold": "max"}
    recommender = make_recommender(PDPHistogram.name, settings)
    assert isinstance(recommender, PDPHistogram)
    return recommender


def _histogram(which: str, release: Release, recommender: PDPHistogram) -> Histogram:
    """The noisy counts of a release; a rating of weight w counts as w over the mean weight."""
    instead = "Declare --users N --items M instead, and the plan is made from the sample."
    specification = PrivacySpecification.model_validate(release.about["privacy"])
    if specification.unit == "user":
        raise Refused(
            f"{which} protects users: its histogram weighs a rating by how many its user gave, and does not count. "
            f"{instead}"
        )
    if "histogram" not in release.statistics:
        raise Refused(f"{which} comes from an older Jali and holds no histogram. {instead}")
    declared = make_recommender(PDPHistogram.name, release.about["settings"])
    assert isinstance(declared, PDPHistogram)
    weight, _ = specification.weight_moments(specification.threshold(declared.threshold))
    return Histogram(
        release.statistics["histogram"] / RATING_STEPS / weight,
        release.statistics["cell_variance"] / weight**2,
        RatingScale(low=release.low, high=release.high, step=release.step),
    )
