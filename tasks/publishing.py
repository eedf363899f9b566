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
from models.errors import JaliError, NotReleasable
from models.private_metrics import PaidMetrics
from models.release import Release
from tasks.figures import release_figure, save_figures
from tasks.guard import guarded
from tasks.ledger import Reservation
from tasks.ledger_figure import amounts_spent, ledger_figure
from tasks.registry import HEAD, LEDGER, RESERVATION
from tasks.state import current_state
from tasks.tracking import as_params, experiment_id, open_tracking
from tasks.unstored import unstored_task

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.models import ModelSignature

RELEASE_CODE = Path(models.release.__file__)
MODEL_SCRIPT = Path(__file__).parents[1] / "mlflow" / "serve_release.py"

RELEASES_NOTE = (
    "What left the house from **{source}**: one run per release, with its settings and what it cost in privacy. "
    "No run here holds a figure computed from exact ratings."
)
MODEL_NOTE = (
    "Item matrices learned from **{source}** by `{recommender}`, each released under the guarantee on its version. "
    "A version answers from a user's own ratings; it knows no user."
)


@guarded("Publication")
def publish(source: str, candidate: Candidate, release: Release, reservation: Reservation) -> str:
    """Log and register the release; returns the version. What fails half-way is taken back.

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
    experiment = experiment_id(client, f"{source}.releases", RELEASES_NOTE.format(source=source), state)
    tags = {"source": source, "recommender": candidate.name, "verdict": candidate.guarantee.verdict}
    run_id = client.create_run(experiment, run_name=candidate.label, tags=tags).info.run_id
    try:
        _log_settings(client, run_id, candidate, release, reservation)
        number = _register(source, candidate, release, run_id, client, reservation)
        client.set_terminated(run_id, "FINISHED")
        reservation.published(f"version {number}")
    except BaseException:  # an interrupt too: nothing half-published may stay
        left = _take_back(client, experiment, run_id, f"{source}.{candidate.name}", reservation)
        with contextlib.suppress(JaliError):  # the first error is the one to tell
            reservation.failed(f"spent; could not take back {left}" if left else "spent; nothing was published")
        raise
    return number


def _take_back(client: MlflowClient, experiment: str, run_id: str, name: str, reservation: Reservation) -> str:
    """Delete version, logged model and run of a publication that failed; returns what could not be deleted."""

    def versions() -> None:
        for found in client.search_model_versions(f"name = '{name}'"):
            if found.tags.get(RESERVATION) == reservation.id:
                client.delete_model_version(name, found.version)

    def models() -> None:
        for model in client.search_logged_models([experiment]):
            if model.source_run_id == run_id:
                client.delete_logged_model(model.model_id)

    def run() -> None:
        client.delete_run(run_id)

    left = []
    for what, delete in (("the version", versions), ("the logged model", models), ("the run", run)):
        try:
            delete()
        except Exception:
            left.append(what)
    return ", ".join(left)


def _log_settings(
    client: MlflowClient, run_id: str, candidate: Candidate, release: Release, reservation: Reservation
) -> None:
    from mlflow.entities import Metric

    params = {**candidate.params, "privacy.epsilon_spent": f"{candidate.epsilon:g}"}
    numbers = {"privacy.epsilon_spent": candidate.epsilon}
    if metrics := PaidMetrics.of(release):
        numbers |= {"private_rmse": metrics.rmse, "private_rmse_low": metrics.low, "private_rmse_high": metrics.high}
    client.log_batch(run_id, [Metric(name, value, 0, 0) for name, value in numbers.items()], as_params(params))
    ledger = reservation.ledger
    history = ledger.history(reservation.source)
    figures = {
        "item_offsets": release_figure(release),
        "ledger": ledger_figure(reservation.source, history, ledger.budget(reservation.source)),
    }
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
                pip_requirements=[f"{package}=={version(package)}" for package in _NEEDED_TO_SERVE],
            )
    _ensure_registered_model(client, name, source, candidate)
    return str(
        client.create_model_version(
            name,
            model.model_uri,
            run_id,
            tags=_version_tags(candidate, release, reservation),
            description=_description(source, candidate, release),
        ).version
    )


def _private_copy(file: Path, folder: Path) -> Path:
    """A copy that its owner alone may read: MLflow copies the mode with the file, and ours has the repository's."""
    return Path(shutil.copyfile(file, folder / file.name))


_NEEDED_TO_SERVE = ("mlflow", "numpy", "pandas", "safetensors")


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
    return {
        "source": reservation.source,
        "privacy.epsilon": promise.epsilon_summary,
        "privacy.delta": f"{promise.delta:g}",
        "privacy.unit": str(promise.unit),
        "privacy.relation": str(promise.relation),
        "privacy.verdict": promise.verdict,
        "privacy.guarantee": promise.sentence,
        "privacy.conditions": "; ".join(promise.conditions),
        RESERVATION: reservation.id,
        LEDGER: reservation.head.ledger,
        HEAD: str(reservation.head),
        **(metrics.tags if metrics else {}),
    }


def _description(source: str, candidate: Candidate, release: Release) -> str:
    promise, metrics = candidate.guarantee, PaidMetrics.of(release)
    conditions = "\n".join(f"- {condition}" for condition in promise.conditions)
    levels = f"Declared levels: {promise.declared_levels}.\n\n" if promise.levels else ""
    return (
        f"`{candidate.name}` on **{source}**, verdict **{promise.verdict}**.\n\n{promise.sentence}\n\n{levels}"
        f"Protects {promise.protects}, against {promise.observers}. Conditions:\n{conditions}\n\n"
        f"Proof: {promise.reference}. {metrics.sentence if metrics else 'No accuracy is stated: none was paid for.'}"
    )


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
