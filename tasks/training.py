"""Fitting, with a clock beside it: one fold of a cross-validation, or the one fit that is released."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import numpy as np

from models.evaluation import (
    Folds,
    client_scores,
    deal_ratings,
    deal_users,
    paper_scores,
    summarise,
    visitor_scores,
)
from models.metrics import Scores
from models.privacy.noise import ExactNoise, SeededNoise
from models.privacy.specification import PrivacySpecification
from models.private_metrics import PrivateMetrics, divided
from models.ratings import Private, Ratings
from models.recommender import Recommender
from models.release import Release
from tasks.batch_list import keep_moves, require_whole
from tasks.guard import guarded
from tasks.ledger import Reservation
from tasks.runs import Pending, RunFolder
from tasks.unstored import unstored_task


@dataclass(frozen=True, repr=False)
class Deal(Private):
    """Which fold every rating and every user belongs to; private, like who rated what."""

    ratings: Folds
    users: Folds
    n_folds: int

    def __repr__(self) -> str:
        return f"<deal into {self.n_folds} folds>"


@dataclass(frozen=True)
class FoldScores:
    """One fold of one recommender, and how long the fit and the whole fold took."""

    fold: int
    client: Scores | None
    visitor: Scores | None
    paper: Scores | None
    fit_seconds: float
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """All folds of one recommender. Its figures are unpaid: they stay inside."""

    folds: tuple[FoldScores, ...]

    @cached_property
    def summaries(self) -> dict[str, dict[str, float] | None]:
        return {
            kind: summarise([getattr(fold, kind) for fold in self.folds]) for kind in ("client", "visitor", "paper")
        }

    @property
    def fit_seconds(self) -> float:
        return float(np.median([fold.fit_seconds for fold in self.folds]))

    @property
    def seconds(self) -> float:
        return sum(fold.seconds for fold in self.folds)


@guarded("Dealing the ratings into folds")
def deal(ratings: Ratings, n_folds: int) -> Deal:
    return Deal(deal_ratings(ratings, n_folds), deal_users(ratings, n_folds), n_folds)


@guarded("Cross-validation")
def evaluate_fold(
    recommender: Recommender, ratings: Ratings, specification: PrivacySpecification, dealt: Deal, fold: int
) -> FoldScores:
    """Train without the fold's ratings, then without the fold's users, and judge both."""
    began = perf_counter()
    is_test = dealt.ratings == fold
    train, test = ratings.where(~is_test), ratings.where(is_test)
    fit_began = perf_counter()
    fitted = recommender.fit(train, specification, SeededNoise())
    fit_seconds = perf_counter() - fit_began

    visitor = None
    if ratings.batch is None:  # the releases before a batch know its visitors
        is_visitor = dealt.users[ratings.users] == fold
        without_visitors = recommender.fit(ratings.where(~is_visitor), specification, SeededNoise())
        visitor = visitor_scores(without_visitors, ratings.where(is_visitor), is_test[is_visitor])
    return FoldScores(
        fold,
        client=client_scores(fitted, train, test),
        visitor=visitor,
        paper=paper_scores(fitted, test),
        fit_seconds=fit_seconds,
        seconds=perf_counter() - began,
    )


@guarded("The fit for release")
def fit_private(
    recommender: Recommender,
    ratings: Ratings,
    specification: PrivacySpecification,
    reservation: Reservation,
    metrics: PrivateMetrics | None = None,
) -> Release:
    """Turn a reservation into a charge, then fit with exact noise. What was not reserved cannot be fitted.

    What a batch releases is on the private list before it is paid for. The release holds the metrics, if any are paid
    for.
    """
    n_threads = os.cpu_count() or 1
    if ratings.batch is not None:
        keep_moves(reservation, ratings, recommender.moves(ratings, specification))
    reservation.commit(recommender.name, recommender.cost(specification), metrics.cost() if metrics else None)
    if ratings.batch is not None:
        require_whole(reservation.source, recommender.name)
    if metrics is None:
        return recommender.fit(ratings, specification, ExactNoise(), n_threads=n_threads).release
    own, left_out = divided(ratings, specification, metrics.ratings_per_user)
    release = recommender.fit(own, specification, ExactNoise(), n_threads=n_threads).release
    return metrics.measure(release.factors, own, left_out, specification.unit, ExactNoise()).added_to(release)


@guarded("The fit for release")
def fit_and_keep(
    recommender: Recommender,
    ratings: Ratings,
    specification: PrivacySpecification,
    reservation: Reservation,
    metrics: PrivateMetrics | None,
    own: RunFolder,
) -> Release:
    """Fit for release, and put the release on the disk before anything can lose what was paid for."""
    release = fit_private(recommender, ratings, specification, reservation, metrics)
    own.keep(reservation.id, Pending(reservation.source, release))
    return release


deal_task = unstored_task(deal, "deal")
fit_and_keep_task = unstored_task(fit_and_keep, "fit for release", run_name="fit {recommender.name} for release")
