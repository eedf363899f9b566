"""What leaves: a release becomes a run in SOURCE.releases and a version of SOURCE.RECOMMENDER.

Neither ever holds a figure computed from exact ratings.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import models.release
from models.candidate import Candidate
from models.errors import NotReleasable
from models.privacy.guarantee import Guarantee
from models.private_metrics import PaidMetrics
from models.release import Release
from tasks.figures import release_figure, save_figures
from tasks.guard import guarded
from tasks.ledger import Reservation
from tasks.ledger_entries import SPENT
from tasks.ledger_figure import amounts_spent, ledger_figure
from tasks.model_card import model_card
from tasks.registry import HEAD, LEDGER, RESERVATION, SPENT_THEN
from tasks.state import current_state
from tasks.tracking import as_params, experiment_id, open_tracking
from tasks.unstored import unstored_task
from tasks.utility_figure import RELEASED, UTILITY, released_points, utility_figure
from tasks.views import RELEASES_VIEWS

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models import ModelSignature

RELEASE_CODE = Path(models.release.__file__)
MODEL_SCRIPT = Path(__file__).parents[1] / "mlflow" / "serve_release.py"

RELEASES_NOTE = """\
What left the house from **{source}**, a run for each release: its settings, and what it cost in privacy.

- `privacy.epsilon_spent` is the most that it cost anybody, its paid metrics included.
- `private_rmse` is there where somebody paid for it (`--private-metrics`), with a 95% interval in `private_rmse_low` \
and `private_rmse_high`. No figure here was computed from exact ratings.
- Under *Artifacts*: the released item offsets, and what was spent until then.

Its versions are the registered models `{source}.*`; each has a card that says what it promises."""
MODEL_NOTE = (
    "Item matrices learned from **{source}** by `{recommender}`, each released under the guarantee on its version. "
    "A version answers from a user's own ratings; it knows no user."
)


@guarded("Publication")
def publish(source: str, candidate: Candidate, release: Release, reservation: Reservation) -> str:
    """Log and register the release; returns the version. What fails half-way is taken back, and stays spent.

    Raises:
      NotReleasable: the reservation did not pay for this release.
    """
    reservation.require_committed(source, candidate.name)
    if release.about.get("guarantee") != candidate.guarantee.model_dump(mode="json"):
        raise NotReleasable(f"this release of {candidate.name} was not fitted under the guarantee it is offered with.")
    metrics = PaidMetrics.of(release)
    if (metrics and metrics.price) != candidate.metrics:
        raise NotReleasable(f"this release of {candidate.name} has other metrics than those it is offered with.")
    state = current_state()
    client = open_tracking(state)
    note = RELEASES_NOTE.format(source=source)
    experiment = experiment_id(client, f"{source}.releases", note, state, RELEASES_VIEWS)
    tags = {"source": source, "recommender": candidate.name, "verdict": candidate.guarantee.verdict}
    try:
        run_id = client.create_run(
            experiment, run_name=candidate.label, tags={**tags, RESERVATION: reservation.id}
        ).info.run_id
        _log_settings(client, run_id, candidate, release, reservation)
        number = _register(source, candidate, release, run_id, client, reservation)
        client.set_terminated(run_id, "FINISHED")
        reservation.published(f"version {number}")
    except BaseException:  # an interrupt too: nothing half-published may stay
        with contextlib.suppress(Exception):  # the first error is the one to tell, and the next run tries again
            take_back(client, source, candidate.name, reservation.id)
        raise
    return number


def versions_paid_by(client: MlflowClient, reservation_id: str) -> list[ModelVersion]:
    """Whatever is registered, under any name, that this reservation paid for."""
    return list(client.search_model_versions(_paid_by(reservation_id)))


def published_version(client: MlflowClient, source: str, recommender: str, reservation_id: str) -> str | None:
    """The version that this reservation paid for; None where none is registered."""
    found = client.search_model_versions(f"name = '{source}.{recommender}' and {_paid_by(reservation_id)}")
    return str(found[0].version) if found else None


def take_back(client: MlflowClient, source: str, recommender: str, reservation_id: str) -> None:
    """Delete whatever the publication of a release has made so far: version, logged model and run."""
    experiment = client.get_experiment_by_name(f"{source}.releases")
    if experiment is None:
        return
    number = published_version(client, source, recommender, reservation_id)
    if number is not None:
        client.delete_model_version(f"{source}.{recommender}", number)
    for run in client.search_runs([experiment.experiment_id], _paid_by(reservation_id)):
        for model in client.search_logged_models([experiment.experiment_id], f"source_run_id = '{run.info.run_id}'"):
            client.delete_logged_model(model.model_id)
        client.delete_run(run.info.run_id)


def _paid_by(reservation_id: str) -> str:
    """MLflow's filter for runs and versions."""
    return f"tags.`{RESERVATION}` = '{reservation_id}'"


def _log_settings(
    client: MlflowClient, run_id: str, candidate: Candidate, release: Release, reservation: Reservation
) -> None:
    from mlflow.entities import Metric

    params = {**candidate.params, "privacy.epsilon_spent": f"{candidate.epsilon:g}"}
    numbers = {"privacy.epsilon_spent": candidate.epsilon}
    metrics = PaidMetrics.of(release)
    if metrics:
        numbers |= {"private_rmse": metrics.rmse, "private_rmse_low": metrics.low, "private_rmse_high": metrics.high}
    client.log_batch(run_id, [Metric(name, value, 0, 0) for name, value in numbers.items()], as_params(params))
    ledger = reservation.ledger
    history = ledger.history(reservation.source)
    figures = {
        "item_offsets": release_figure(release),
        "ledger": ledger_figure(reservation.source, history, ledger.budget(reservation.source)),
    }
    if metrics:
        points = released_points(client, client.get_run(run_id).info.experiment_id)
        figures[UTILITY] = utility_figure(reservation.source, points, RELEASED)
    with TemporaryDirectory(prefix="jali-") as folder:
        for path in save_figures(figures, Path(folder)):
            client.log_artifact(run_id, str(path), "figures")
    client.log_dict(run_id, {"spent": amounts_spent(history)}, "ledger.json")


def _register(
    source: str, candidate: Candidate, release: Release, run_id: str, client: MlflowClient, reservation: Reservation
) -> str:
    """Log the model, then make it a version that carries its guarantee from the first moment."""
    import mlflow

    name = f"{source}.{candidate.name}"
    with TemporaryDirectory(prefix="jali-") as place, _without_advice(), _release_code_importable():
        folder = Path(place)
        script, code = (_private_copy(source_file, folder) for source_file in (MODEL_SCRIPT, RELEASE_CODE))
        files = folder / "release"
        files.mkdir()
        release.save(files)
        with mlflow.start_run(run_id=run_id):
            model = mlflow.pyfunc.log_model(
                name="release",
                python_model=str(script),
                artifacts={"release": str(files)},
                code_paths=[str(code)],
                signature=_signature(),
                pip_requirements=[f"{package}=={version(package)}" for package in NEEDED_TO_SERVE],
            )
    _ensure_registered_model(client, name, source, candidate)
    tags = _version_tags(candidate, release, reservation)
    card = model_card(name, release.about, tags)
    return str(client.create_model_version(name, model.model_uri, run_id, tags=tags, description=card).version)


def _private_copy(file: Path, folder: Path) -> Path:
    """A copy that its owner alone may read: MLflow copies the mode with the file, and ours has the repository's."""
    return Path(shutil.copyfile(file, folder / file.name))


NEEDED_TO_SERVE = ("mlflow", "numpy", "pandas", "safetensors")


def _ensure_registered_model(client: MlflowClient, name: str, source: str, candidate: Candidate) -> None:
    from mlflow.exceptions import MlflowException

    note = MODEL_NOTE.format(source=source, recommender=candidate.name)
    try:
        client.create_registered_model(name, tags={"source": source}, description=note)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _version_tags(candidate: Candidate, release: Release, reservation: Reservation) -> dict[str, str]:
    promise, metrics = candidate.guarantee, PaidMetrics.of(release)
    return {  # MLflow lists them in this order, a line of each
        **promise.tags,
        **(metrics.tags if metrics else {}),
        "source": reservation.source,
        SPENT_THEN: _spent_when_released(promise, reservation),
        RESERVATION: reservation.id,
        LEDGER: reservation.head.ledger,
        HEAD: str(reservation.head),
    }


def _spent_when_released(promise: Guarantee, reservation: Reservation) -> str:
    """Of the source's budget; where it has none, what was spent in the release's own unit and relation."""
    ledger, source = reservation.ledger, reservation.source
    if budget := ledger.budget(source):
        spent = budget.spent([entry.amount for entry in ledger.entries(source) if entry.state in SPENT])
        return f"{budget.amount(spent)}, of a budget of {budget}"
    assert promise.unit is not None
    assert promise.relation is not None
    total = ledger.spent(source, unit=promise.unit, relation=promise.relation)
    at = f" at δ={total.delta:g}" if total.delta else ""
    relation = promise.relation.replace("_", " ")
    besides = f"; {', '.join(total.without_promise)} promised nothing of it" if total.without_promise else ""
    return f"ε={total.epsilon:.4g}{at} for each {promise.unit} ({relation}){besides}; no budget was set"


def _signature() -> ModelSignature:
    from mlflow.models import ModelSignature
    from mlflow.types.schema import AnyType, Array, ColSpec, DataType, Object, Property, Schema

    # AnyType where JSON has one kind of number and MLflow several: `"rating": 5` is no double to it, and a
    # field that only some of the requests have is no long. The model script says what is wrong.
    own = Array(Object([Property("item", AnyType()), Property("rating", AnyType())]))
    return ModelSignature(
        inputs=Schema(
            [
                ColSpec(own, "ratings"),
                ColSpec(AnyType(), "n", required=False),
                ColSpec(AnyType(), "items", required=False),
            ]
        ),
        outputs=Schema(
            [
                ColSpec(Array(DataType.string), "items"),
                ColSpec(Array(DataType.string), "titles"),
                ColSpec(Array(DataType.double), "ratings"),
                ColSpec(DataType.long, "ignored"),
                ColSpec(Array(DataType.string), "unknown"),
            ]
        ),
    )


@contextlib.contextmanager
def _release_code_importable() -> Iterator[None]:
    """The model script imports `release`, as it will where it is served; MLflow runs it here once."""
    sys.path.insert(0, str(RELEASE_CODE.parent))
    try:
        yield
    finally:
        sys.path.remove(str(RELEASE_CODE.parent))
        sys.modules.pop(RELEASE_CODE.stem, None)


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """MLflow recommends an input example and says what it registered; the run's table says what matters."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


publish_task = unstored_task(publish, "publish")
