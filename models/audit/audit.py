"""Try to contradict a promise from outside: many runs, and a lower bound on the privacy loss that they show.

1. *Search*: pairs of neighbours, the recommender's own worst and small hostile ones, are tried with a few runs; the
   best are varied at random and tried again.
2. *Learn*: fresh runs of the worst pair; from half of them statistics that tell the two sides apart are learned, each
   with the event ("the score is at least c") that shows the most.
3. *Test*: on the other half each event is counted, and Clopper and Pearson's bounds, corrected for the number of
   events, give the loss that is shown with the given confidence, whatever the search and the learning did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import get_args

import numpy as np
from scipy.special import ndtr
from threadpoolctl import threadpool_limits

from models.audit.bounds import epsilon_bound, gaussian_bound, share_of_error
from models.audit.claim import MOST_RUNS, Claim, claim_of, runs_needed
from models.audit.neighbours import Neighbours, coarse, small_hostile, varied
from models.audit.runs import Count, Fit, Mechanism, Outputs
from models.audit.statistics import LEARNERS, QUICK, Learner
from models.errors import SpecError, quoted
from models.privacy.noise import ExactNoise, NoiseSource
from models.privacy.specification import PrivacySpecification, Relation
from models.ratings import Doubles, RatingScale
from models.recommender import Recommender

Bound = Callable[..., np.ndarray]

FIVE_STARS = RatingScale(low=1, high=5)

LEAST_RUNS = 1000
DEFAULT_RUNS = 40_000

TRY_WITH = (25, 100)
"""Runs of each side in the first round of a search: a share of the audit's own, within these."""
SEARCH_CONFIDENCE = 0.99
"""So that chance does not choose: where each rating has its own epsilon, a small one is easily exceeded by it."""
TRY_AGAIN, TRY_AT_LAST = 2, 8
"""Times as many in the second round, and in the third."""
GO_ON, N_AT_LAST = 4, 5
"""One pair in so many reaches the second round, or as many as the third has if that is more."""
N_VARIED = 8

N_THRESHOLDS = 400
TIE_BREAK = 1e-6
"""Among events that show alike, or nothing, the one that tells most apart is taken."""
LEARNED_FROM = 0.6
"""Share of the learning half that scores are learned from; the rest chooses their thresholds."""


@dataclass(frozen=True, eq=False)
class Shown:
    """What one pair of neighbours showed.

    Attributes:
      epsilon: at the claim's delta, whatever the mechanism is; 0 where nothing was shown.
      gaussian: mu, where Gaussian noise was charged.
      statistic: what showed the most, of `n_statistics`.
      false_alarms, misses: shape (k,), of the tests "the score is at least c" on the testing half.
    """

    epsilon: float
    gaussian: float | None
    statistic: str
    n_statistics: int
    false_alarms: Doubles
    misses: Doubles

    def share_of(self, claim: Claim) -> float:
        """What was shown over what is claimed."""
        shares = [self.epsilon / claim.epsilon]
        if claim.gaussian is not None and self.gaussian is not None:
            shares.append(self.gaussian / claim.gaussian)
        return max(shares)


@dataclass(frozen=True, eq=False)
class Audited:
    """What an audit came to.

    Attributes:
      neighbours: the worst pair that was found, of `n_searched`; or the one that was given.
      n_runs: fits of that pair; `n_search_runs` more were taken to find it.
    """

    claim: Claim
    relation: Relation
    neighbours: Neighbours
    shown: Shown
    confidence: float
    n_runs: int
    n_searched: int
    n_search_runs: int

    @property
    def share(self) -> float:
        """What was shown over what is claimed; a promise with more than 1 is contradicted."""
        return self.shown.share_of(self.claim)

    @property
    def exceeded(self) -> bool:
        return self.share > 1

    @property
    def of_the_worst(self) -> float:
        """What so many runs show, about, of a mechanism that hides exactly as much as is claimed.

        That is mu of Gaussian noise where that is charged; else epsilon of randomised response between the two sides.
        """
        n, claim = self.n_runs // 4, self.claim
        error = _error(claim, self.confidence, self.shown.n_statistics)
        if claim.gaussian is not None:
            hits, misses = (round(n * float(ndtr(side * claim.gaussian / 2))) for side in (1, -1))
            return float(gaussian_bound(hits, misses, n, error))
        misses = round(n / (1 + exp(claim.epsilon)))
        return float(epsilon_bound(n - misses, misses, n, error, claim.delta))


def audit(
    recommender: Recommender,
    specification: PrivacySpecification,
    *,
    relation: Relation | None = None,
    n_runs: int = DEFAULT_RUNS,
    confidence: float = 0.95,
    scale: RatingScale = FIVE_STARS,
    noise: NoiseSource | None = None,
    fit: Fit | None = None,
    pair: Neighbours | None = None,
    begin: Callable[[str, int], None] = lambda text, n_runs: None,
    count: Count = lambda n_runs: None,
) -> Audited:
    """Search, learn and test.

    Args:
      relation: which neighbours to try; the promise's own if left out.
      n_runs: fits of the worst pair, half of them of each side.
      scale: of the made-up ratings; of one with very many levels, a coarser one with the same ends.
      noise: ExactNoise if left out, as a release takes.
      fit: instead of the recommender's: a copy to be found out.
      pair: the neighbours to try, instead of a search.
      begin: told of the search, and of what follows it: in a few words, and how many runs it will be.
      count: told how many runs were done since it was told last.

    Raises:
      SpecError: nothing finite is promised, no such neighbours are known, or so few runs could show nothing.
    """
    relation, scale = relation or recommender.relation, coarse(scale)
    candidates = require_conclusive(
        recommender, specification, relation, scale, n_runs, confidence, [pair] if pair else None
    )
    mechanism = Mechanism(
        recommender,
        specification,
        scale,
        noise or ExactNoise(),
        fit or recommender.fit,
        count,
    )
    n_searched, n_search_runs = 0, 0
    if pair is None:
        few, n_search_runs = _search_of(len(candidates), n_runs)
        begin("Searching for the worst neighbours", n_search_runs)
        pair, n_searched = _worst(mechanism, relation, candidates, few)
    claim = claim_of(recommender, specification, relation, pair, scale)
    require_enough(claim, n_runs, confidence)
    begin("Telling them apart", n_runs)
    first, second = mechanism.outputs(pair, n_runs // 2)
    shown = shown_by(claim, first, second, LEARNERS, confidence)
    return Audited(claim, relation, pair, shown, confidence, 2 * (n_runs // 2), n_searched, n_search_runs)


def require_conclusive(
    recommender: Recommender,
    specification: PrivacySpecification,
    relation: Relation,
    scale: RatingScale,
    n_runs: int,
    confidence: float,
    given: list[Neighbours] | None = None,
) -> list[Neighbours]:
    """The pairs that an audit begins with, if it could conclude anything.

    Args:
      given: these pairs, instead of those to search among.
    Raises:
      SpecError: as `audit`.
    """
    _require_known(specification, relation, confidence)
    candidates = given or [
        *recommender.worst_neighbours(specification, relation, scale),
        *small_hostile(specification, relation, scale, batches=recommender.batches),
    ]
    claims = [claim_of(recommender, specification, relation, pair, scale) for pair in candidates]
    require_enough(max(claims, key=lambda claim: claim.epsilon), n_runs, confidence)
    return candidates


def _require_known(specification: PrivacySpecification, relation: Relation, confidence: float) -> None:
    if not 0.5 < confidence < 1:
        raise SpecError(f"confidence is between 0.5 and 1 (95% is 0.95); found {confidence:g}.")
    if relation not in get_args(Relation):
        raise SpecError(f"a relation is one of {', '.join(get_args(Relation))}; found {quoted(relation)}.")
    if relation == "local":
        raise SpecError(
            "an audit compares releases, and a local guarantee is about what each person sends. Choose add_or_remove "
            "or replace_value."
        )
    if specification.unit == "user" and relation != "add_or_remove":
        raise SpecError("a user is there or not: with unit user the relation of an audit is add_or_remove.")


def require_enough(claim: Claim, n_runs: int, confidence: float) -> None:
    """Raise SpecError where so many runs could not contradict the claim even of an open book."""
    needed = runs_needed(claim, _error(claim, confidence, len(LEARNERS)))
    if needed is None:
        raise SpecError(
            f"to contradict epsilon {claim.epsilon:g} with confidence {confidence:g} takes more than {MOST_RUNS:,} "
            "runs, however little a release hides: an audit of it could conclude nothing. Audit a smaller epsilon, or "
            "be content with less confidence."
        )
    needed = max(needed, LEAST_RUNS)
    if n_runs < needed:
        raise SpecError(
            f"{n_runs:,} runs are too few to conclude anything: to contradict epsilon {claim.epsilon:g} with "
            f"confidence {confidence:g} takes at least {needed:,}, even of a release that hides nothing. Raise --runs."
        )


def _worst(
    mechanism: Mechanism, relation: Relation, candidates: Sequence[Neighbours], few: int
) -> tuple[Neighbours, int]:
    """The pair that shows the most of what is claimed for it, first tried with `few` runs; how many were tried."""
    dealer = np.random.default_rng(0)  # of made-up ratings; no noise
    tried = _ranked(mechanism, relation, candidates, few)
    best = _of_every_kind(mechanism, relation, tried)[: _n_best(len(tried))]
    hostile = [varied(best[at % len(best)], mechanism.specification, mechanism.scale, dealer) for at in range(N_VARIED)]
    again = [*best, *_ranked(mechanism, relation, hostile, few)[: len(best)]]
    last = _of_every_kind(mechanism, relation, _ranked(mechanism, relation, again, TRY_AGAIN * few))[:N_AT_LAST]
    return _ranked(mechanism, relation, last, TRY_AT_LAST * few)[0], len(candidates) + N_VARIED


def _of_every_kind(mechanism: Mechanism, relation: Relation, ranked: Sequence[Neighbours]) -> list[Neighbours]:
    """The same pairs, the best of every kind before all others: few runs seldom show what more would.

    The kinds are histories, as two releases tell more than one, how many ratings a user has, and small claims, of which
    little is shown at first.
    """
    claims = [
        claim_of(mechanism.recommender, mechanism.specification, relation, pair, mechanism.scale).epsilon
        for pair in ranked
    ]
    is_small = np.array(claims) < max(claims) / 2
    kinds = [(pair.history, len(pair.target), small) for pair, small in zip(ranked, is_small, strict=True)]
    is_best = [kind not in kinds[:at] for at, kind in enumerate(kinds)]
    return [ranked[at] for at in np.argsort(np.logical_not(is_best), kind="stable")]


def _search_of(n_candidates: int, n_runs: int) -> tuple[int, int]:
    """With how many runs of each side a pair is tried first, and how many runs the whole search takes."""
    few = int(np.clip(n_runs // 200, *TRY_WITH))
    n_best = _n_best(n_candidates)
    n_again = n_best + min(n_best, N_VARIED)
    n_last = min(n_again, N_AT_LAST)
    return few, 2 * few * (n_candidates + N_VARIED + TRY_AGAIN * n_again + TRY_AT_LAST * n_last)


def _n_best(n_candidates: int) -> int:
    """How many reach the second round."""
    return min(n_candidates, max(n_candidates // GO_ON, N_AT_LAST))


def _ranked(
    mechanism: Mechanism, relation: Relation, candidates: Sequence[Neighbours], n_runs: int
) -> list[Neighbours]:
    """By what each shows of what is claimed for it, the most first."""
    learners = {name: LEARNERS[name] for name in QUICK}

    def share(pair: Neighbours) -> float:
        claim = claim_of(mechanism.recommender, mechanism.specification, relation, pair, mechanism.scale)
        shown = shown_by(claim, *mechanism.outputs(pair, n_runs), learners, SEARCH_CONFIDENCE)
        return shown.share_of(claim) + TIE_BREAK * claim.epsilon  # of a small claim little is shown with few runs

    shares = [share(pair) for pair in candidates]
    return [candidates[at] for at in np.argsort(-np.array(shares), kind="stable")]


def shown_by(
    claim: Claim, first: Outputs, second: Outputs, learners: Mapping[str, Learner], confidence: float
) -> Shown:
    """Learn events from half of the runs, and count them in the other half."""
    bounds = _bounds(claim)
    error = _error(claim, confidence, len(learners))
    learning, testing = ([side.part(*half) for side in (first, second)] for half in ((0, 0.5), (0.5, 1)))
    varies = np.any([side.numbers != learning[0].numbers[0] for side in learning], axis=(0, 1))
    if not varies.any():
        varies[0] = True  # a release that is the same for both shows nothing, which takes a number to see
    learning, testing = ([side.columns(varies) for side in sides] for sides in (learning, testing))
    found = dict.fromkeys(bounds, 0.0)
    best = (-1.0, "", Event(1, 0.0, True), (np.zeros(0), np.zeros(0)))
    for statistic, learner in learners.items():
        with threadpool_limits(1):  # threads that wait for each other are slower than one wherever others work as well
            score = learner(*(side.part(0, LEARNED_FROM) for side in learning))
            choosing = [score(side.part(LEARNED_FROM, 1)) for side in learning]
            scores = (score(testing[0]), score(testing[1]))
        for name, bound in bounds.items():
            event = _best_event(choosing[0], choosing[1], bound, error)
            shown = float(bound(*event.counts(*scores), len(scores[0]), error))
            found[name] = max(found[name], shown)
            if name == list(bounds)[-1] and shown > best[0]:
                best = (shown, statistic, event, scores)
    _, statistic, event, scores = best
    return Shown(found["epsilon"], found.get("gaussian"), statistic, len(learners), *event.rates_around(*scores))


@dataclass(frozen=True)
class Event:
    """`sign * score >= threshold`, which one of the sides makes likelier."""

    sign: int
    threshold: float
    favours_first: bool

    def counts(self, first: Doubles, second: Doubles) -> tuple[int, int]:
        """How often it happens under the side it favours, and under the other; scores of either, any shapes."""
        happens = [int((self.sign * side >= self.threshold).sum()) for side in (first, second)]
        return (happens[0], happens[1]) if self.favours_first else (happens[1], happens[0])

    def rates_around(self, first: Doubles, second: Doubles) -> tuple[Doubles, Doubles]:
        """False alarms and misses of the same test with every other threshold; shape (k,) each."""
        favoured, other = (first, second) if self.favours_first else (second, first)
        thresholds = _thresholds(self.sign * favoured, self.sign * other)
        return _rate_from(self.sign * other, thresholds), 1 - _rate_from(self.sign * favoured, thresholds)


def _error(claim: Claim, confidence: float, n_statistics: int) -> float:
    """What each rate of each event may err with: every statistic has an event for all that can be contradicted."""
    return share_of_error(confidence, n_statistics * len(_bounds(claim)))


def _bounds(claim: Claim) -> dict[str, Bound]:
    """What a count can contradict; the last is what the claim says most about."""
    bounds: dict[str, Bound] = {
        "epsilon": lambda hits, misses, n, error: epsilon_bound(hits, misses, n, error, claim.delta)
    }
    if claim.gaussian is not None:
        bounds["gaussian"] = gaussian_bound
    return bounds


def _best_event(first: Doubles, second: Doubles, bound: Bound, error: float) -> Event:
    """The event that shows the most; scores of either side, shape (n,)."""
    best, shown = Event(1, 0.0, True), -1.0
    for sign in (1, -1):
        thresholds = _thresholds(sign * first, sign * second)
        counts = [np.rint(_rate_from(sign * side, thresholds) * len(side)).astype(np.int64) for side in (first, second)]
        for favours_first in (True, False):
            hits, misses = counts if favours_first else counts[::-1]
            values = bound(hits, misses, len(first), error)
            values = values + TIE_BREAK * (hits - misses) / len(first)
            at = int(np.argmax(values))
            if values[at] > shown:
                best, shown = Event(sign, float(thresholds[at]), favours_first), float(values[at])
    return best


def _thresholds(first: Doubles, second: Doubles) -> Doubles:
    return np.unique(np.quantile(np.concatenate([first, second]), np.linspace(0, 1, N_THRESHOLDS), method="nearest"))


def _rate_from(scores: Doubles, thresholds: Doubles) -> Doubles:
    """How many of `scores` are at least each threshold; shape as `thresholds`."""
    below = np.searchsorted(np.sort(scores), thresholds, side="left")
    result: Doubles = 1 - below / len(scores)
    return result
