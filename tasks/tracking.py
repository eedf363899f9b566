"""The internal side of MLflow: experiment SOURCE holds one run per evaluated recommender, for comparison."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import quote

from models.batch import BatchKind
from models.candidate import Candidate
from models.errors import EnvironmentFault
from models.papers.experiment import VARIANTS, Cell, Experiment, Outcome
from tasks.addresses import is_web
from tasks.figures import error_cdf_figure, experiment_figure, rmse_figure, save_figures
from tasks.guard import guarded
from tasks.state import State, current_state, without_credentials
from tasks.training import Evaluation
from tasks.unstored import unstored_task
from tasks.utility_figure import BATCH, EVALUATED, UTILITY, evaluated_points, newest_evaluations, utility_figure
from tasks.views import EVALUATIONS_VIEWS, LATEST, with_links

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Param

NOTE = "mlflow.note.content"

INTERNAL_NOTE = """\
Cross-validation of recommenders on **{source}**, a run for each. **Internal**: computed from exact ratings and not \
paid for; to choose by these figures what is shown to others is a private choice that no guarantee covers.

- `cv_rmse` (lower is better): held-out ratings, predicted from V and their user's other ratings; `cv_rmse_sd` \
over folds.
- `privacy.epsilon` is the most that a release costs anybody (a run without it has no privacy), `privacy.verdict` what \
the promise is worth: *proven*, *conditional*, *broken*, *none*.
- `release` is the version that it became.
- Under *Artifacts* of every run, `figures/privacy_utility.png`: RMSE against ε of all that was tried until then.

What left the house: experiment `{source}.releases`, and the registered models `{source}.*`."""

PAPERS_NOTE = (
    "Experiments of papers, run again on **{source}**. Internal: computed from exact ratings and not paid for. Each "
    "run has the paper's figure under *Artifacts*, and `statements.json`: what the paper says beside what came out."
)


def import_mlflow() -> None:
    """Now, while there is something else to wait for: it takes seconds."""
    import mlflow  # noqa: F401


@guarded("Opening MLflow")
def open_tracking(state: State) -> MlflowClient:
    """A client of the tracking server, after one call has shown that it answers.

    Raises:
      EnvironmentFault: it does not.
    """
    import mlflow  # seconds to import
    from mlflow.exceptions import MlflowException

    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retries are not news; our sentence is
    try:
        mlflow.set_tracking_uri(state.tracking_uri)
        client = mlflow.MlflowClient()
        client.search_experiments(max_results=1)
    except (MlflowException, OSError, ValueError) as error:  # ValueError: an address that is none
        reason = type(error).__name__
    else:
        return client
    raise EnvironmentFault(
        f"MLflow does not answer at {without_credentials(state.tracking_uri)} ({reason}). "
        "Start it, or unset MLFLOW_TRACKING_URI to keep runs under .jali."
    )


@guarded("Opening MLflow")
def require_tracking(state: State) -> None:
    """Raise EnvironmentFault, before any work, where `open_tracking` would."""
    open_tracking(state)


def experiment_id(
    client: MlflowClient, name: str, note: str, state: State, views: Mapping[str, str] | None = None
) -> str:
    """The experiment called `name`, with this note and views; made when missing, local artifacts go under .jali."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        location = (state.artifacts / name).as_uri() if state.tracks_locally else None
        try:
            client.create_experiment(name, location)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another run was faster
                raise
        return experiment_id(client, name, note, state, views)
    number = str(found.experiment_id)
    if found.lifecycle_stage != "active":
        client.restore_experiment(number)
    tags = {NOTE: with_links(note, number), **views} if views else {NOTE: note}
    for tag, text in tags.items():
        if found.tags.get(tag) != text:  # it is new, or another version of Jali wrote it
            client.set_experiment_tag(number, tag, text)
    return number


def place_in_mlflow(words: str, page: str) -> str:
    """In Markdown, a link to a page of MLflow where that has an address; the words alone where `jali ui` gives it one.

    Args:
      page: behind the `#`, such as `runs/ID`.
    """
    address = without_credentials(current_state().tracking_uri)
    return f"[{words}]({address.rstrip('/')}/#/{quote(page)})" if is_web(address) else words


def as_params(values: Mapping[str, str]) -> list[Param]:
    """MLflow's own form of parameters, each as long as it may be."""
    from mlflow.entities import Param

    return [Param(name, value[:6000]) for name, value in values.items()]


@guarded("Logging to MLflow")
def log_reproduction(
    source: str,
    experiment: Experiment,
    outcomes: Mapping[Cell, Outcome],
    statements: list[tuple[str, ...]],
    n_folds: int,
    scale_width: float,
) -> None:
    """One run in the internal experiment SOURCE.papers: the figure, and the statements as a table."""
    state = current_state()
    client = open_tracking(state)
    at = experiment_id(client, f"{source}.papers", PAPERS_NOTE.format(source=source), state)
    run = client.create_run(at, run_name=experiment.name, tags={"source": source, NOTE: experiment.title})
    client.log_batch(run.info.run_id, params=as_params({"experiment": experiment.name, "folds": str(n_folds)}))
    with TemporaryDirectory(prefix="jali-") as folder:
        figures = {experiment.name: experiment_figure(experiment, outcomes, scale_width)}
        for path in save_figures(figures, Path(folder)):
            client.log_artifact(run.info.run_id, str(path), "figures")
    columns = ("published statement", *VARIANTS)
    table = {name: [row[at] for row in statements] for at, name in enumerate(columns)}
    client.log_table(run.info.run_id, table, "statements.json")
    client.set_terminated(run.info.run_id, "FINISHED")


@guarded("Logging to MLflow")
def log_evaluations(
    source: str,
    candidates: list[Candidate],
    evaluations: Mapping[str, Evaluation],
    n_folds: int,
    scale_width: float,
    batch: BatchKind | None = None,
) -> dict[str, str]:
    """One run per recommender in the internal experiment; returns run ids by recommender.

    Args:
      batch: of what kind it is, if it is one: then what is new alone was held out and predicted.
    """
    state = current_state()
    client = open_tracking(state)
    experiment = experiment_id(client, source, INTERNAL_NOTE.format(source=source), state, EVALUATIONS_VIEWS)
    ended = time.time()
    told = {"folds": str(n_folds), **({BATCH: batch} if batch else {})}
    runs = {}
    for candidate in candidates:
        evaluation = evaluations[candidate.name]
        run = client.create_run(
            experiment,
            start_time=int((ended - evaluation.seconds) * 1000),  # MLflow then shows the seconds of the evaluation
            run_name=candidate.label,
            tags={"source": source, **_about(candidate), **({LATEST: "yes"} if evaluation.summaries["client"] else {})},
        )
        runs[candidate.name] = run.info.run_id
        _log_numbers(client, run.info.run_id, candidate, evaluation, told)
    labels = {candidate.name: candidate.label for candidate in candidates}
    by_label = {labels[name]: evaluation for name, evaluation in evaluations.items()}
    figures = {"rmse": rmse_figure(by_label), "error_cdf": error_cdf_figure(by_label, scale_width)}
    if newest := newest_evaluations(client, experiment):  # none where a first batch has nothing to be judged on
        figures[UTILITY] = utility_figure(source, evaluated_points(newest), EVALUATED)
    with TemporaryDirectory(prefix="jali-") as folder:
        paths = save_figures(figures, Path(folder))
        for run_id in runs.values():
            for path in paths:
                client.log_artifact(run_id, str(path), "figures")
            client.set_terminated(run_id, "FINISHED", int(ended * 1000))
    return runs


@guarded("Logging to MLflow")
def log_spending(run_id: str, epsilon_spent: float, release: str | None) -> None:
    """Say on an internal run what its release cost and which version it became."""
    client = open_tracking(current_state())
    client.log_param(run_id, "privacy.epsilon_spent", f"{epsilon_spent:g}")
    client.log_metric(run_id, "privacy.epsilon_spent", epsilon_spent)
    client.set_tag(run_id, "release", release or "none")


def _about(candidate: Candidate) -> dict[str, str]:
    return {
        "recommender": candidate.name,
        "verdict": candidate.guarantee.verdict,
        "guarantee": candidate.guarantee.sentence,
    }


def _log_numbers(
    client: MlflowClient, run_id: str, candidate: Candidate, evaluation: Evaluation, told: Mapping[str, str]
) -> None:
    from mlflow.entities import Metric

    summaries = evaluation.summaries
    numbers: dict[str, float] = {}  # cv_rmse first: MLflow's comparison preselects the first metric
    for kind, prefix in (("client", "cv"), ("visitor", "visitor"), ("paper", "paper")):
        numbers |= {f"{prefix}_{name}": value for name, value in (summaries[kind] or {}).items()}
    numbers |= {"fit_seconds": evaluation.fit_seconds, "cv_seconds": evaluation.seconds}
    if candidate.guarantee.epsilon is not None:
        numbers["privacy.epsilon"] = candidate.guarantee.epsilon
    metrics = [Metric(name, value, 0, 0) for name, value in numbers.items()]
    metrics += [
        Metric(f"fold_{name}", value, 0, fold.fold)
        for fold in evaluation.folds
        if fold.client is not None
        for name, value in fold.client.headline().items()
        if value == value
    ]
    client.log_batch(run_id, metrics, as_params({**candidate.params, **told}))


require_tracking_task = unstored_task(require_tracking, "open MLflow", spends_nothing=True)
log_evaluations_task = unstored_task(log_evaluations, "log evaluations")
log_spending_task = unstored_task(log_spending, "log spending")
log_reproduction_task = unstored_task(log_reproduction, "log reproduction")
