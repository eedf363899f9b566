from __future__ import annotations

import numpy as np
import pytest

from models.metrics import CDF_POINTS
from models.papers.experiment import AS_PUBLISHED, EXACT, HISTOGRAM, VARIANTS, Outcome, panels
from models.papers.zhang_2019 import EXPERIMENTS
from models.recommender import Recommender


def made_up(rmse: float) -> Outcome:
    return Outcome(rmse, 0.01, (0.7, 0.8, 0.9), tuple(np.linspace(0, 1, CDF_POINTS)))


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_every_point_of_a_paper_has_all_three_variants_at_one_specification(experiment) -> None:
    shown = panels({cell: made_up(1.0) for cell in experiment.cells})
    assert tuple(shown) == VARIANTS
    assert len({str({series: list(curve) for series, curve in panel.items()}) for panel in shown.values()}) == 1
    policies: dict = {}
    for cell in experiment.cells:
        declared = (cell.specification.policy, cell.specification.epsilon, cell.specification.fraction)
        assert policies.setdefault((cell.series, cell.x), declared) == declared


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_verdicts_are_those_that_the_page_tells(experiment) -> None:
    def verdicts(variant: str, sampled: bool) -> set[str]:
        cells = [
            cell for cell in experiment.cells if cell.variant == variant and cell.specification.personalised == sampled
        ]
        return {cell.recommender.promise(cell.specification).verdict for cell in cells}

    assert verdicts(AS_PUBLISHED, True) == {"broken"}
    assert verdicts(EXACT, True) == {"broken"} if experiment.name != "zhang-fig5" else {"broken", "conditional"}
    assert verdicts(HISTOGRAM, True) == {"proven"}
    if experiment.name != "zhang-fig5":
        assert verdicts(AS_PUBLISHED, False) == {"broken"}
        assert verdicts(EXACT, False) == {"conditional"}
        assert verdicts(HISTOGRAM, False) == {"proven"}


def parameters(name: str) -> set[tuple]:
    cells = [cell for cell in EXPERIMENTS[name].cells if cell.variant == AS_PUBLISHED and cell.specification.policy]
    return {
        (cell.series, cell.x, p.conservative, p.moderate, p.epsilon_moderate, threshold(cell.recommender))
        for cell in cells
        if (p := cell.specification.policy)
    }


def threshold(recommender: Recommender) -> object:
    return recommender.threshold  # type: ignore[attr-defined]


def test_tables_1_to_4_are_those_of_the_paper() -> None:
    assert parameters("zhang-fig2") == {("PDP-PMF", f, f, 0.37, 0.2, "mean") for f in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)}
    schemes = {"PDP-PMF1": 0.54, "PDP-PMF2": 0.37, "PDP-PMF3": 0.20}
    assert parameters("zhang-fig3") == {(name, None, f, 0.37, 0.2, "mean") for name, f in schemes.items()}
    assert parameters("zhang-fig4") == {
        (name, level / 10, f, 0.37, level / 10, "mean") for name, f in schemes.items() for level in range(2, 10)
    }
    assert parameters("zhang-fig5") == {("PDP-PMF", t / 10, 0.6, 0.35, 0.4, t / 10) for t in range(1, 11)}
    for experiment in EXPERIMENTS.values():
        for cell in experiment.cells:
            policy = cell.specification.policy
            if policy is None:
                assert cell.specification.epsilon == 0.1
            else:
                assert (policy.epsilon_conservative, policy.epsilon_liberal) == (0.1, 1.0)


def test_statements_are_measured_on_the_outcomes() -> None:
    def statements(name: str, outcome_of) -> list[str]:
        experiment = EXPERIMENTS[name]
        panel = panels({cell: outcome_of(cell) for cell in experiment.cells})[AS_PUBLISHED]
        return [statement.measure(panel) for statement in experiment.statements]

    around, growth, baseline = statements("zhang-fig2", lambda cell: made_up(1 + (cell.x if cell.x else 0.9)))
    assert around == "1.100 to 1.600"
    assert growth == "+0.500 over the range; correlation with a line 1.000"
    assert baseline == "1.900"

    within, gap, far = statements(
        "zhang-fig3",
        lambda cell: Outcome(1, 0, (0.6, 0.8, 0.9), (0.1,) * 100 + (0.35 if cell.series == "PDP-PMF2" else 0.3,)),
    )
    assert within == "60.0%, 60.0%, 60.0%"
    assert gap == "5.0 percentage points apart at most"
    assert far == "60.0% at most 1"

    tends, flat = statements("zhang-fig4", lambda cell: made_up(1.2 - (cell.x or 0) * int(cell.series[-1:] == "1")))
    assert tends == "at ε_m = .9: 0.300 to 1.200"
    assert flat == "PDP-PMF1 moves by 0.700; PDP-PMF2 moves by 0.000; PDP-PMF3 moves by 0.000"

    def peak(cell) -> Outcome:
        best = 1 - abs(cell.x - 0.7)
        return Outcome(1, 0, (best, best, best), made_up(1).cdf)

    best, loss, spread = statements("zhang-fig5", peak)
    assert best == "0.7, 0.7, 0.7"
    assert loss == "+30.0, +30.0, +30.0"
    assert spread == "30.0, 30.0, 30.0"
