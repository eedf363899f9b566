"""What releases cost together: by addition, or by dp-accounting's zero-concentrated DP where that is tighter.

Both bounds hold when the amounts of later releases are chosen after looking at earlier ones, as people do
(docs/guarantees.md, "Sums"). The tighter privacy loss distributions do not, so they are not used here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import exp, inf
from typing import Literal, NamedTuple

from dp_accounting import DpEvent, GaussianDpEvent
from dp_accounting.dp_event import DiscreteLaplaceDpEvent, ZCDpEvent

from models.privacy.guarantee import Guarantee
from models.privacy.specification import Relation


@dataclass(frozen=True)
class Amount:
    """What one release promises, and so costs.

    Attributes:
      name: of the recommender.
      rho: of zero-concentrated DP, in the guarantee's own relation; None where there is no honest event.
      fraction: the share of everybody's own epsilon, where each has one.
      series: releases of one series are made of different ratings each, so that a rating pays the dearest of them
        alone (parallel composition); "" where the release is in no series.
    """

    name: str
    guarantee: Guarantee
    rho: float | None = None
    fraction: float | None = None
    series: str = ""


class Spent(NamedTuple):
    """What releases cost together in one relation, and whether that is all there is to say."""

    epsilon: float
    delta: float
    is_proven: bool
    """Whether it is, for every release; never where one promises nothing in this relation."""
    without_promise: tuple[str, ...] = ()
    """Recommenders released besides that promise nothing in this relation, so that nothing bounds the whole."""
    by: Literal["addition", "zCDP"] = "addition"


class _Cost(NamedTuple):
    epsilon: Fraction
    delta: Fraction
    rho: float | None


def zcdp_of(event: DpEvent) -> float | None:
    """The rho of zero-concentrated DP of one release; None where the event says nothing of the kind.

    Pure epsilon gives epsilon^2 / 2 (Bun and Steinke, TCC 2016, Proposition 1.4); the Gaussian, and the discrete
    Gaussian added to integers, 1 / (2 multiplier^2) (Canonne, Kamath and Steinke, NeurIPS 2020).
    """
    if isinstance(event, DiscreteLaplaceDpEvent):
        return float(event.noise_parameter * event.sensitivity) ** 2 / 2
    if isinstance(event, GaussianDpEvent):
        return float(1 / (2 * event.noise_multiplier**2))
    return None


def spending(amounts: Iterable[Amount], relation: Relation, delta: float | None = None) -> Spent:
    """What all of it costs whoever it protects, under one relation.

    A changed rating is one removed and one added: what is private under add_or_remove costs it twice (group privacy).
    What is private under replace_value alone promises nothing to a rating that is added or removed.

    Args:
      delta: at which epsilon is wanted; None: the sum of the deltas. Epsilon is infinite where nothing bounds it there.
    """
    costs, without, is_proven = [], [], True
    for amount in amounts:
        cost = _in_relation(amount, relation)
        is_proven &= amount.guarantee.verdict == "proven"
        if cost is None:
            without.append(amount.name)
        else:
            costs.append((amount.series, cost))
    once = _dearest_of_each_series(costs)
    total = sum((cost.delta for cost in once), Fraction())
    target = float(total) if delta is None else delta
    is_allowed = delta is None or total <= as_written(target)  # of their sum, rounding makes no less
    epsilon = float(sum((cost.epsilon for cost in once), Fraction())) if is_allowed else inf
    tighter = _by_zcdp(once, target)
    proven = is_proven and not without
    unbounded = tuple(dict.fromkeys(without))
    if tighter < epsilon:
        return Spent(tighter, target, proven, unbounded, "zCDP")
    return Spent(epsilon, min(float(total), target), proven, unbounded)


def fractions_spent(amounts: Iterable[Amount]) -> float:
    """The share of everybody's own epsilon that all of it takes; infinite where an amount is no such share."""
    largest: dict[str, Fraction] = {}
    total = Fraction()
    for amount in amounts:
        if amount.fraction is None:
            return inf
        share = as_written(amount.fraction)
        if amount.series:
            largest[amount.series] = max(share, largest.get(amount.series, share))
        else:
            total += share
    return float(total + sum(largest.values()))


def as_written(number: float) -> Fraction:
    """The decimal number that a person wrote: ten times 0.1 is one."""
    return Fraction(repr(float(number)))


def _in_relation(amount: Amount, relation: Relation) -> _Cost | None:
    promise = amount.guarantee
    assert promise.epsilon is not None
    epsilon, delta = as_written(promise.epsilon), as_written(promise.delta)
    if promise.relation == relation:
        return _Cost(epsilon, delta, amount.rho)
    if (promise.relation, relation) != ("add_or_remove", "replace_value"):
        return None
    grown = promise.delta * (1 + exp(min(promise.epsilon, 700.0)))  # beyond that no delta is left below 1
    return _Cost(2 * epsilon, Fraction(min(grown, 1.0)), None if amount.rho is None else 4 * amount.rho)


def _dearest_of_each_series(costs: Sequence[tuple[str, _Cost]]) -> list[_Cost]:
    alone = [cost for series, cost in costs if not series]
    for name in dict.fromkeys(series for series, _ in costs if series):
        members = [cost for series, cost in costs if series == name]
        rhos = [cost.rho for cost in members if cost.rho is not None]
        dearest = max(cost.epsilon for cost in members), max(cost.delta for cost in members)
        alone.append(_Cost(*dearest, max(rhos) if len(rhos) == len(members) else None))
    return alone


def _by_zcdp(costs: Sequence[_Cost], delta: float) -> float:
    """Epsilon at `delta` of all together; infinite where one of them has no rho."""
    from dp_accounting.rdp import RdpAccountant

    rhos = [cost.rho for cost in costs if cost.rho is not None]
    if delta <= 0 or len(rhos) < len(costs) or not rhos:
        return inf
    accountant = RdpAccountant()
    for rho in rhos:
        accountant.compose(ZCDpEvent(rho))
    return float(accountant.get_epsilon(delta))
