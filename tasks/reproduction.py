"""Cells of a paper's experiment: computed once, kept under a key that tells nobody which ratings they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from prefect import task

from models.evaluation import client_scores, paper_scores
from models.metrics import Scores
from models.papers.experiment import Cell, Outcome
from models.privacy.noise import SeededNoise
from models.ratings import Ratings
from tasks.fold_keys import fold_keys
from tasks.guard import guarded
from tasks.state import State
from tasks.training import Deal


@guarded("Naming the cells")
def cell_keys(state: State, ratings: Ratings, cells: Sequence[Cell], n_folds: int) -> list[list[str]]:
    """For each cell and fold the name under which its scores are kept, shape (n_cells, n_folds); see fold_keys."""
    return fold_keys(state, ratings, [(cell.recommender, cell.specification) for cell in cells], n_folds)


@guarded("Evaluation of a cell")
def evaluate_cell(cell: Cell, ratings: Ratings, dealt: Deal, fold: int, key: str) -> dict[str, Any]:
    """Scores of one fold as JSON: by the paper's own U where the recommender has one, by fold-in elsewhere."""
    is_test = dealt.ratings == fold
    train, test = ratings.where(~is_test), ratings.where(is_test)
    fitted = cell.recommender.fit(train, cell.specification, SeededNoise())
    scores: Scores | None = paper_scores(fitted, test) or client_scores(fitted, train, test)
    assert scores is not None  # validation demands a rating in every fold
    return {"rmse": scores.rmse, "within": scores.within[1:], "cdf": scores.cdf}


@guarded("Averaging the folds")
def outcome_of(folds: Sequence[Mapping[str, Any]]) -> Outcome:
    """Means over folds of what `evaluate_cell` returned."""
    rmse = [fold["rmse"] for fold in folds]
    within, cdf = (np.mean([fold[name] for fold in folds], axis=0) for name in ("within", "cdf"))
    return Outcome(
        float(np.mean(rmse)),
        float(np.std(rmse, ddof=1)),
        (float(within[0]), float(within[1]), float(within[2])),
        tuple(cdf.tolist()),
    )


# Unlike every other task's, these results are stored: means of errors, under .jali, for a run that was cut off.
evaluate_cell_task = task(
    name="evaluate cell",
    task_run_name="{cell.label}, fold {fold}",
    cache_key_fn=lambda _, parameters: str(parameters["key"]),
    persist_result=True,
    result_serializer="json",
    retries=0,
)(evaluate_cell)
