"""Folds of a run that was cut off: `.jali/folds/SOURCE/NAME.json`, as private as the ratings, until a run ends well.

The next run on the same ratings, with the same settings and code, takes them as they are. There is never more than
what runs of the source left that did not come to their end, and that for a month at most where anything is run.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from models.errors import AnotherRun
from models.metrics import Scores
from models.privacy.specification import PrivacySpecification
from models.ratings import Ratings
from models.recommender import Recommender
from tasks.durable import write_whole
from tasks.fold_keys import fold_keys
from tasks.guard import guarded
from tasks.state import State
from tasks.training import Deal, FoldScores, evaluate_fold
from tasks.turns import one_at_a_time
from tasks.unstored import unstored_task

OLD_SECONDS = 30 * 86400


@guarded("Naming the folds")
def fold_places(
    state: State,
    source: str,
    ratings: Ratings,
    fits: Sequence[tuple[Recommender, PrivacySpecification]],
    n_folds: int,
) -> list[list[Path]]:
    """Where the scores of each fit and fold are kept, shape (n_fits, n_folds)."""
    folder = _folder(state, source)
    folder.mkdir(exist_ok=True)
    return [[folder / f"{name}.json" for name in names] for names in fold_keys(state, ratings, fits, n_folds)]


@guarded("Cross-validation")
def evaluated_fold(
    recommender: Recommender, ratings: Ratings, specification: PrivacySpecification, dealt: Deal, fold: int, place: Path
) -> FoldScores:
    """As `evaluate_fold`; what was kept is not computed again, and what is computed is kept, whole or not at all."""
    kept = _kept(place)
    if kept is not None:
        return kept
    scores = evaluate_fold(recommender, ratings, specification, dealt, fold)
    write_whole(place, json.dumps(asdict(scores)).encode())
    return scores


@guarded("Clearing up after the cross-validation")
def forget_folds(state: State, source: str) -> None:
    """Once a run has come to its end nothing of it is kept, nor of those before it that did not."""
    with suppress(FileNotFoundError):
        shutil.rmtree(_folder(state, source))


def forget_folds_of_nobody(state: State, source: str) -> None:
    """As `forget_folds`, unless a run of the source is at work: it does that itself."""
    if source in {folder.name for folder in _folders(state).iterdir()}:
        with suppress(AnotherRun), one_at_a_time(source):
            forget_folds(state, source)


@guarded("Clearing up after earlier cross-validations")
def forget_old_folds(state: State) -> None:
    """Whatever source they are of: what was killed and is never run again would leave them for ever."""
    for folder in _folders(state).iterdir():
        with suppress(AnotherRun, OSError):  # the run at work there does it, or the next one here
            old = [place for place in folder.iterdir() if time.time() - place.stat().st_mtime > OLD_SECONDS]
            if old:
                with one_at_a_time(folder.name):
                    for place in old:
                        place.unlink()
                    folder.rmdir()


def _kept(place: Path) -> FoldScores | None:
    """What is kept there; None where nothing is that can be read."""
    try:
        told = json.loads(place.read_bytes())
        return FoldScores(**told | {kind: _scores(told[kind]) for kind in ("client", "visitor", "paper")})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _scores(told: dict[str, Any] | None) -> Scores | None:
    return Scores(**told | {name: tuple(told[name]) for name in ("within", "cdf")}) if told else None


def _folders(state: State) -> Path:
    folders = state.folder / "folds"
    folders.mkdir(exist_ok=True)
    return folders


def _folder(state: State, source: str) -> Path:
    return _folders(state) / source


evaluated_fold_task = unstored_task(evaluated_fold, "evaluate fold", run_name="{recommender.name} fold {fold}")
