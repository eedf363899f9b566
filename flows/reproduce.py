"""A paper's experiment run again: cross-validate its cells, draw its figure, hold its statements against it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from prefect import flow
from prefect.futures import as_completed

from flows.job import Job
from flows.refusals import named_refusals
from flows.run import PromptThreads
from models.errors import SpecError, quoted
from models.papers.experiment import VARIANTS, Cell, Experiment, Outcome, panels
from models.papers.zhang_2019 import EXPERIMENTS
from models.ratings import Ratings
from tasks.loading import load_task
from tasks.progress import stage, step
from tasks.reproduction import cell_keys, evaluate_cell_task, outcome_of
from tasks.state import current_state
from tasks.tracking import log_reproduction_task, require_tracking_task
from tasks.training import deal_task
from tasks.unstored import whole
from tasks.validation import validate_task


@dataclass(frozen=True)
class Reproduction:
    """What one experiment came to on one set of ratings."""

    experiment: Experiment
    job: Job
    outcomes: Mapping[Cell, Outcome]
    scale_width: float

    @property
    def command(self) -> str:
        """What runs it again, in a folder that holds the files."""
        words = ["jali", "reproduce", self.experiment.name]
        if self.job.ratings:
            words += ["--ratings", self.job.ratings.name]
        if self.job.items:
            words += ["--items", Path(self.job.items).name]
        if self.job.scale:
            words += ["--scale", str(self.job.scale)]
        return " ".join(map(quote, [*words, "--source", self.job.source, "--folds", str(self.job.folds)]))

    @property
    def statements(self) -> list[tuple[str, ...]]:
        """Rows: what the paper says, and what each variant shows."""
        shown = panels(self.outcomes)
        return [
            (statement.text, *(statement.measure(shown[variant]) for variant in VARIANTS))
            for statement in self.experiment.statements
        ]


def experiment_named(name: str) -> Experiment:
    """Raises SpecError where there is none of that name."""
    if name not in EXPERIMENTS:
        raise SpecError(f"there is no experiment {quoted(name)}. Choose from {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]


@flow(
    name="jali reproduce",
    flow_run_name="{names} on {job.source}",
    task_runner=PromptThreads(max_workers=os.cpu_count() or 1),  # type: ignore[arg-type]
    persist_result=False,
)
@named_refusals
def reproduce(names: list[str], job: Job) -> list[Reproduction]:
    """Run the experiments on the job's ratings; what was computed before is not computed again. Nothing is released."""
    stage("Opening MLflow")
    require_tracking_task(current_state())
    stage("Reading the ratings")
    loaded = load_task(job.ratings, job.items, job.scale)
    stage("Validating them")
    ratings = validate_task(whole(loaded), job.minimums)
    done = []
    for name in names:
        experiment = experiment_named(name)
        outcomes = compute(experiment, ratings, job.folds)
        done.append(Reproduction(experiment, job, outcomes, ratings.scale.width))
        log_reproduction_task(job.source, experiment, outcomes, done[-1].statements, job.folds, ratings.scale.width)
    return done


def compute(experiment: Experiment, ratings: Ratings, n_folds: int) -> dict[Cell, Outcome]:
    """One task per cell and fold, in parallel."""
    stage(f"Computing {experiment.name}", n_folds * len(experiment.cells))
    dealt = deal_task(whole(ratings), n_folds)
    keys = cell_keys(current_state(), ratings, experiment.cells, n_folds)
    futures = {
        cell: [
            evaluate_cell_task.submit(whole(cell), whole(ratings), whole(dealt), fold, keys[at][fold])
            for fold in range(n_folds)
        ]
        for at, cell in enumerate(experiment.cells)
    }
    for _ in as_completed([future for folds in futures.values() for future in folds]):
        step()
    return {cell: outcome_of([future.result() for future in folds]) for cell, folds in futures.items()}
