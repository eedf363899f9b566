from __future__ import annotations

import math

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from models.privacy.accounting import Amount, as_written, fractions_spent, spending, zcdp_of
from models.privacy.gaussian import discrete_gaussian_delta
from models.privacy.guarantee import Guarantee, Verdict
from models.privacy.specification import Relation


def amount(
    epsilon: float = 0.5,
    delta: float = 0.0,
    relation: Relation = "add_or_remove",
    verdict: Verdict = "proven",
    event: DpEvent | None = None,
    **more: object,
) -> Amount:
    promise = Guarantee(
        unit="rating",
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        verdict=verdict,
        sentence="",
        reference="",
    )
    event = event or (GaussianDpEvent(4.22) if delta else DiscreteLaplaceDpEvent(epsilon, 1))
    return Amount("a", promise, zcdp_of(event), **more)  # type: ignore[arg-type]


def test_pure_amounts_add_up_as_they_are_written() -> None:
    assert spending([amount(0.1)] * 10, "add_or_remove") == (1.0, 0.0, True, (), "addition")
    assert sum([0.1] * 3) != 0.3
    assert spending([amount(0.1)] * 3, "add_or_remove").epsilon == 0.3


def test_nothing_costs_nothing() -> None:
    assert spending([], "add_or_remove") == (0.0, 0.0, True, (), "addition")
    assert spending([], "add_or_remove", 1e-6) == (0.0, 0.0, True, (), "addition")
    assert fractions_spent([]) == 0


def test_a_changed_rating_pays_add_or_remove_twice() -> None:
    spent = spending([amount(1.0), amount(3.0, relation="replace_value")], "replace_value")
    assert spent[:2] == (5.0, 0.0)
    assert spending([amount(1.0, 1e-6)], "replace_value").delta == pytest.approx(1e-6 * (1 + math.e))


def test_twice_the_distance_is_four_times_rho() -> None:
    """Against the accountant on the noise that a changed rating sees: half as large, measured in its move."""
    gaussian = [amount(1.0, 1e-6, event=GaussianDpEvent(8.0))] * 5
    direct = RdpAccountant()
    direct.compose(GaussianDpEvent(4.0), 5)
    assert spending(gaussian, "replace_value", 1e-5).epsilon == pytest.approx(direct.get_epsilon(1e-5))


def test_replace_value_promises_nothing_to_a_rating_that_comes_or_goes() -> None:
    spent = spending([amount(1.0), amount(3.0, relation="replace_value")], "add_or_remove")
    assert spent == (1.0, 0.0, False, ("a",), "addition")


def test_of_a_series_a_rating_pays_the_dearest_alone() -> None:
    batches = [amount(e, series="batches") for e in (0.5, 0.7, 0.5)]
    assert spending(batches, "add_or_remove").epsilon == 0.7
    assert spending([*batches, amount(0.2), amount(0.3, series="others")], "add_or_remove").epsilon == 1.2


def test_many_small_amounts_cost_less_than_their_sum() -> None:
    """100 times 0.1 at delta 1e-6: 10 by addition, 5.2215 by zCDP (dp-accounting 0.6.0), and 4.77 by PLD at best."""
    spent = spending([amount(0.1)] * 100, "add_or_remove", 1e-6)
    assert (spent.by, spent.delta) == ("zCDP", 1e-6)
    assert spent.epsilon == pytest.approx(5.2215, abs=1e-3)
    exact = PLDAccountant()
    exact.compose(DiscreteLaplaceDpEvent(0.1, 1), 100)
    assert exact.get_epsilon(1e-6) < spent.epsilon < 10


def test_without_a_delta_pure_amounts_are_added() -> None:
    assert spending([amount(0.1)] * 100, "add_or_remove", 0.0).epsilon == 10


def test_deltas_beyond_what_is_allowed_are_left_to_the_accountant() -> None:
    two = [amount(1.0, 1e-6)] * 2
    spent = spending(two, "add_or_remove", 1e-6)
    assert (spent.by, spent.delta) == ("zCDP", 1e-6)
    assert 1 < spent.epsilon < 2
    unproven = [amount(1.0, 1e-6, event=NonPrivateDpEvent(), verdict="conditional")] * 2
    assert spending(unproven, "add_or_remove", 1e-6).epsilon == math.inf
    assert spending(unproven, "add_or_remove") == (2.0, 2e-6, False, (), "addition")


def test_one_release_costs_what_it_says_even_where_the_accountant_is_looser() -> None:
    assert spending([amount(1.0, 1e-6)], "add_or_remove", 1e-6) == (1.0, 1e-6, True, (), "addition")


def test_an_amount_without_an_honest_event_spoils_the_accountant_and_not_the_sum() -> None:
    unknown = amount(0.1, event=NonPrivateDpEvent(), verdict="broken")
    assert spending([amount(0.1)] * 99 + [unknown], "add_or_remove", 1e-6).epsilon == 10


EVENTS: list[tuple[DpEvent, float]] = [
    (DiscreteLaplaceDpEvent(0.4, 1), 0.08),
    (GaussianDpEvent(2.0), 0.125),
]


@pytest.mark.parametrize(("event", "rho"), EVENTS)
def test_rho_of_an_event_and_that_five_cost_five_times_as_much(event: DpEvent, rho: float) -> None:
    assert zcdp_of(event) == pytest.approx(rho)
    five = RdpAccountant()
    for _ in range(5):
        five.compose(GaussianDpEvent(1 / math.sqrt(2 * rho)))
    kind = amount(1.0, 0.0, event=event)
    by_us = spending([kind] * 500, "add_or_remove", 1e-6)
    many = RdpAccountant()
    many.compose(GaussianDpEvent(1 / math.sqrt(2 * rho)), 500)
    assert by_us.epsilon == pytest.approx(many.get_epsilon(1e-6))
    assert zcdp_of(NonPrivateDpEvent()) is None


def test_golden_one_gaussian_of_multiplier_one() -> None:
    """STACK.md: 4.7285 by RDP and 4.3772 by PLD at delta 1e-5."""
    one = amount(9.0, 1e-5, event=GaussianDpEvent(1.0))
    assert spending([one], "add_or_remove", 1e-5).epsilon == pytest.approx(4.7285, abs=1e-4)
    exact = PLDAccountant()
    exact.compose(GaussianDpEvent(1.0))
    assert exact.get_epsilon(1e-5) == pytest.approx(4.3772, abs=1e-3)


def test_the_library_counts_five_of_each_event_as_five() -> None:
    pure, gaussian, together = PLDAccountant(), PLDAccountant(), PLDAccountant()
    pure.compose(DiscreteLaplaceDpEvent(0.4, 1), 5)
    assert pure.get_epsilon(0.0) == pytest.approx(2.0)
    gaussian.compose(GaussianDpEvent(5.0), 5)
    together.compose(GaussianDpEvent(5.0 / math.sqrt(5)))
    assert gaussian.get_epsilon(1e-5) == pytest.approx(together.get_epsilon(1e-5), abs=1e-3)


def test_rho_of_the_discrete_gaussian_is_no_smaller_than_brute_force_says() -> None:
    """Renyi divergence of every order between the discrete Gaussian and itself moved by whole steps."""
    for stddev, move in ((1.5, 1), (3.0, 2), (0.7, 1)):
        x = range(-200, 200)
        log_weights = [-(n**2) / (2 * stddev**2) for n in x]
        moved = [-((n - move) ** 2) / (2 * stddev**2) for n in x]
        total = math.log(math.fsum(math.exp(w) for w in log_weights))
        rho = zcdp_of(GaussianDpEvent(stddev / move))
        assert rho is not None
        for order in (1.5, 2, 8, 20):
            terms = [order * p - (order - 1) * q - total for p, q in zip(log_weights, moved, strict=True)]
            divergence = math.log(math.fsum(math.exp(term) for term in terms)) / (order - 1)
            assert divergence <= order * rho + 1e-9
            if float(order).is_integer():
                assert divergence == pytest.approx(order * rho, rel=1e-6), "and it is reached"


def test_the_lemma_of_one_release_and_the_accountant_of_many_agree_on_the_noise() -> None:
    """At the multiplier that the lemma finds for (1, 1e-6) zCDP alone is looser, and within a third."""
    assert discrete_gaussian_delta(1.0, 4.22, steps=2**20, cells=2**20) == pytest.approx(1e-6, rel=0.05)
    rho = zcdp_of(GaussianDpEvent(4.22))
    assert rho is not None
    one = RdpAccountant()
    one.compose(GaussianDpEvent(4.22))
    assert 1.0 < one.get_epsilon(1e-6) < 1.33


def test_a_delta_that_grows_beyond_every_float_is_one() -> None:
    dear = amount(800.0, 1e-6, event=NonPrivateDpEvent(), verdict="conditional")
    assert spending([dear], "replace_value")[:2] == (1600, 1)
    assert spending([dear], "replace_value", 1e-6).epsilon == math.inf


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 7.3])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_at_the_sum_of_its_deltas_what_was_added_up_is_never_infinite(epsilon: float, n: int) -> None:
    """A changed rating's delta is no short decimal: the sum, rounded, may be less than what was added."""
    spent = spending([amount(epsilon, 1e-6, event=NonPrivateDpEvent())] * n, "replace_value")
    assert spent.epsilon == pytest.approx(2 * n * epsilon)
    assert spent.delta == pytest.approx(n * 1e-6 * (1 + math.exp(epsilon)))


def test_fractions_add_up_and_batches_take_theirs_once() -> None:
    thirds = [amount(1.0, fraction=1 / 3)] * 3
    assert fractions_spent(thirds) <= 1
    assert fractions_spent([amount(fraction=0.1)] * 10) == 1
    batches = [amount(fraction=f, series="batches") for f in (0.2, 0.5, 0.3)]
    assert fractions_spent([*batches, amount(fraction=0.5)]) == 1
    assert fractions_spent([amount()]) == math.inf


def test_numbers_are_read_as_they_are_written() -> None:
    assert as_written(0.1) * 10 == 1
    assert as_written(1e-30) > 0
