from __future__ import annotations

import json
from hashlib import sha256

import numpy as np
import pytest

from models.errors import EnvironmentFault
from models.papers.experiment import HISTOGRAM, Cell
from models.papers.zhang_2019 import EXPERIMENTS
from models.ratings import Ratings
from tasks.reproduction import cell_keys, evaluate_cell, outcome_of
from tasks.state import State
from tasks.training import deal

CELLS = EXPERIMENTS["zhang-fig2"].cells


def with_value(ratings: Ratings, at: int, value: float) -> Ratings:
    values = ratings.values.copy()
    values[at] = value
    return Ratings(ratings.users, ratings.items, values, ratings.user_labels, ratings.catalogue, ratings.scale)


def test_the_same_work_has_the_same_name_and_any_other_another(state: State, ratings: Ratings) -> None:
    names = cell_keys(state, ratings, CELLS, 3)
    assert names == cell_keys(state, ratings, CELLS, 3)
    assert len({name for folds in names for name in folds}) == 3 * len(CELLS)
    others = (
        cell_keys(state, with_value(ratings, 7, 1.0 if ratings.values[7] > 1 else 5.0), CELLS, 3),
        cell_keys(state, ratings.where(np.arange(len(ratings)) > 0), CELLS, 3),
        cell_keys(state, ratings, CELLS, 4),
    )
    for other in others:
        assert {name for folds in other for name in folds}.isdisjoint(name for folds in names for name in folds)


def test_another_version_of_the_code_computes_anew(
    state: State, ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cell_keys(state, ratings, CELLS, 2)
    monkeypatch.setattr("tasks.fold_keys._code_digest", lambda: b"another")
    assert cell_keys(state, ratings, CELLS, 2) != before


def test_without_the_key_a_name_says_nothing_of_the_ratings(state: State, ratings: Ratings) -> None:
    here = cell_keys(state, ratings, CELLS[:1], 2)
    key = state.folder / "cells.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert sha256(ratings.values.tobytes()).hexdigest() not in str(here)
    key.write_bytes(b"")
    with pytest.raises(EnvironmentFault, match="is damaged"):
        cell_keys(state, ratings, CELLS[:1], 2)
    key.unlink()
    assert cell_keys(state, ratings, CELLS[:1], 2) != here


@pytest.mark.parametrize("cell", [CELLS[0], next(cell for cell in CELLS if cell.variant == HISTOGRAM)])
def test_a_cell_is_a_few_means_and_survives_json(ratings: Ratings, cell: Cell) -> None:
    scores = [evaluate_cell(cell, ratings, deal(ratings, 3), fold, "unused") for fold in range(3)]
    stored = [json.loads(json.dumps(fold)) for fold in scores]
    assert set(stored[0]) == {"rmse", "within", "cdf"}
    outcome = outcome_of(stored)
    assert outcome == outcome_of(scores)
    assert outcome.rmse == pytest.approx(np.mean([fold["rmse"] for fold in scores]))
    assert outcome.rmse_sd > 0
    assert outcome.within[0] <= outcome.within[1] <= outcome.within[2] <= outcome.cdf[-1] == 1
