"""A run that is killed between any two steps, with a real ledger and a real MLflow, and the run after it."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flows.job import Job, candidates, make_job
from flows.run import finish_interrupted_runs, paid_before, reserved
from models.errors import EnvironmentFault, JaliError, LedgerDoubted, Refused
from models.index import RECOMMENDERS
from models.ratings import Ratings
from models.release import ARRAYS_FILE, RELEASE_FILE
from tasks import publishing
from tasks.batches import open_batch
from tasks.ledger import Ledger
from tasks.ledger_entries import SPENT
from tasks.publishing import publish
from tasks.recovery import finish_interrupted, something_was_interrupted
from tasks.runs import Pending
from tasks.state import State
from tasks.tracking import open_tracking
from tasks.training import fit_and_keep
from tasks.turns import one_at_a_time
from tasks.voiding import void

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def empty_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database before anything is in it: a second to make, and nothing to copy."""
    state = State(tmp_path_factory.mktemp("mlflow"))
    MlflowClient(state.local_tracking_uri).search_experiments()
    return state.folder / "mlflow.db"


@pytest.fixture
def state(state: State, empty_mlflow: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    shutil.copy(empty_mlflow, state.folder)
    monkeypatch.setattr(publishing, "save_figures", lambda *_: [])  # half the time, and not what is tested
    return state


def job(**more: object) -> Job:
    return make_job({"source": "films", "recommenders": "pdp-histogram", **more})


def run(told: Job, ratings: Ratings) -> dict[str, str]:
    """What the flow does, in its order, but for Prefect and the cross-validation; returns the versions."""
    state = State(Path.cwd() / ".jali")
    chosen = candidates(told)
    finished = finish_interrupted(state)
    versions = {name: one.version or "" for name, one in paid_before(told, chosen, finished).items()}
    unpaid = [c for c in chosen if c.name not in versions]
    with one_at_a_time(told.source), reserved(Ledger(state), told, unpaid) as (own, reservations):
        for c in chosen:
            if c.name in reservations:
                if told.batch:
                    ratings = open_batch(told.source, c.recommender, ratings, told.batch.kind)
                release = fit_and_keep(c.recommender, ratings, c.specification, reservations[c.name], c.metrics, own)
                versions[c.name] = publish(told.source, c, release, reservations[c.name])
    return versions


def dies(place: object, name: str, when: str) -> None:
    """From now on, whoever calls this function is killed before or after."""
    function = getattr(place, name)

    def deadly(*arguments: Any, **named: Any) -> None:
        if when == "after":
            function(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(place, name, deadly)


def killed(work: Callable[[], object], where: str, name: str, when: str) -> None:
    """Do `work` in a process of its own that is killed at that point."""
    child = os.fork()
    if child == 0:
        try:
            module, _, kind = where.partition(":")
            place: Any = importlib.import_module(module)
            dies(getattr(place, kind) if kind else place, name, when)
            work()
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it was not killed"


def fails(error: BaseException) -> Callable[..., None]:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    return failing


UNPAID = ("given back",)
LOST = ("spent; the run ended before anything was kept",)
KEPT = ("version 1",)

POINTS = [
    ("tasks.runs", "_take", "before", ()),
    ("tasks.ledger:Ledger", "reserve", "before", ()),
    ("tasks.ledger:Ledger", "reserve", "after", UNPAID),
    ("tasks.ledger:Reservation", "commit", "before", UNPAID),
    ("tasks.ledger:Reservation", "commit", "after", LOST),
    ("models.privacy.noise:ExactNoise", "add_discrete_laplace", "after", LOST),
    ("tasks.runs:Pending", "save", "after", LOST),
    ("tasks.runs:RunFolder", "keep", "after", KEPT),
    ("mlflow:MlflowClient", "create_run", "after", KEPT),
    ("tasks.publishing", "_log_settings", "after", KEPT),
    ("tasks.publishing", "_ensure_registered_model", "before", KEPT),
    ("mlflow:MlflowClient", "create_model_version", "after", KEPT),
    ("tasks.ledger:Reservation", "published", "after", KEPT),
    ("tasks.runs:RunFolder", "remove", "before", KEPT),
]


def noises(state: State) -> set[bytes]:
    """All the item matrices that are on the disk, in MLflow's artifacts or kept."""
    return {file.read_bytes() for file in state.folder.rglob(ARRAYS_FILE)}


def outcomes(state: State) -> tuple[str, ...]:
    return tuple(entry.outcome for entry in Ledger(state).entries())


def assert_consistent(state: State) -> None:
    """Every version has its one published reservation, no more noise was seen than paid for, and nothing is left."""
    client = open_tracking(state)
    versions = {
        found.tags["ledger.reservation"]: f"version {found.version}" for found in client.search_model_versions()
    }
    assert len(versions) == len(client.search_model_versions())
    entries = Ledger(state).entries()
    assert versions == {entry.reservation: entry.outcome for entry in entries if entry.state == "publish"}
    assert len(noises(state)) <= len({entry.reservation for entry in entries if entry.state in (*SPENT, "void")})
    assert {entry.state for entry in entries} <= {"publish", "fail", "cancel", "void"}
    experiment = client.get_experiment_by_name("films.releases")
    if experiment is not None:
        of_releases = [experiment.experiment_id]
        assert {r.info.run_id for r in client.search_runs(of_releases)} == {
            found.run_id for found in client.search_model_versions()
        }
        assert len(client.search_logged_models(of_releases)) == len(versions)
    assert list((state.folder / "runs").iterdir()) == []


@pytest.mark.parametrize(("where", "name", "when", "left"), POINTS)
def test_a_kill_between_any_two_steps_is_made_good_by_the_next_run(
    ratings: Ratings, state: State, where: str, name: str, when: str, left: tuple[str, ...]
) -> None:
    killed(lambda: run(job(), ratings), where, name, when)
    fitted = noises(state)
    assert something_was_interrupted(state)
    assert run(job(), ratings) == {"pdp-histogram": "1"}
    assert outcomes(state) == (left if left == KEPT else (*left, "version 1"))
    assert left != KEPT or noises(state) == fitted, "the noise that was paid for, and no other"
    assert_consistent(state)


def test_a_run_that_is_killed_while_it_finishes_another_is_finished_by_the_third(
    ratings: Ratings, state: State
) -> None:
    killed(lambda: run(job(), ratings), "tasks.publishing", "_ensure_registered_model", "before")
    fitted = noises(state)
    for name in ("delete_run", "create_run", "create_model_version"):
        killed(lambda: run(job(), ratings), "mlflow:MlflowClient", name, "after")
    assert run(job(), ratings) == {"pdp-histogram": "1"}
    assert (outcomes(state), noises(state)) == (KEPT, fitted)
    assert_consistent(state)
    assert run(job(), ratings) == {"pdp-histogram": "2"}, "the run after that is one like any other"
    assert outcomes(state) == (*KEPT, "version 2")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_could_not_be_published_is_published_by_the_next_run_and_charged_once(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_model_version", fails(error))
        with pytest.raises((EnvironmentFault, KeyboardInterrupt)) as fault:
            run(job(), ratings)
    if isinstance(error, OSError):
        assert str(fault.value).endswith("the next run publishes it and charges nothing for it.")
    assert outcomes(state) == ("spent",)
    assert open_tracking(state).search_model_versions() == []
    fitted = noises(state)
    assert run(job(), ratings) == {"pdp-histogram": "1"}
    assert (outcomes(state), noises(state)) == (KEPT, fitted)
    assert_consistent(state)


def test_what_cannot_be_published_in_the_next_run_either_says_how_to_give_it_up(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_model_version", fails(OSError(28, "No space left on device")))
        for _ in range(2):
            with pytest.raises(EnvironmentFault, match="No space left on device") as fault:
                run(job(), ratings)
    (entry,) = Ledger(state).entries()
    assert "pdp-histogram of films, which the run that was interrupted on 20" in str(fault.value)
    assert f"`jali ledger void {entry.reservation} --reason ...` gives it up." in str(fault.value)
    assert run(job(), ratings) == {"pdp-histogram": "1"}


def test_what_could_not_be_kept_is_not_published_and_stays_charged(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Pending, "save", fails(OSError(28, "No space left on device")))
        with pytest.raises(EnvironmentFault, match="Keeping what was fitted failed: No space left on device") as fault:
            run(job(), ratings)
    assert "charges nothing" not in str(fault.value)
    assert outcomes(state) == ("spent; nothing was published",)
    assert not something_was_interrupted(state)


@pytest.mark.parametrize("other", [{"privacy": {"epsilon": 2}}, {"scale": "1:5:1"}])
def test_another_job_publishes_what_was_left_and_fits_its_own(
    ratings: Ratings, state: State, other: dict[str, object]
) -> None:
    killed(lambda: run(job(), ratings), "tasks.runs:RunFolder", "keep", "after")
    assert run(job(**other), ratings) == {"pdp-histogram": "2"}
    assert outcomes(state) == ("version 1", "version 2")
    assert_consistent(state)


def test_metrics_that_were_paid_for_are_kept_with_their_release(ratings: Ratings, state: State) -> None:
    told = job(privacy={"metrics": 0.5})
    killed(lambda: run(told, ratings), "tasks.runs:RunFolder", "keep", "after")
    assert run(job(), ratings) == {"pdp-histogram": "2"}, "without metrics it is another release"
    killed(lambda: run(told, ratings), "tasks.runs:RunFolder", "keep", "after")
    assert run(told, ratings) == {"pdp-histogram": "3"}
    assert outcomes(state) == ("version 1",) * 2 + ("version 2",) + ("version 3",) * 2
    with_metrics = ["metrics.rmse" in found.tags for found in open_tracking(state).search_model_versions()]
    assert with_metrics == [True, False, True]
    assert_consistent(state)


def test_a_batch_that_was_interrupted_is_finished_before_the_next_one_begins(ratings: Ratings, state: State) -> None:
    nightly = job(batch=True)
    killed(lambda: run(nightly, ratings), "tasks.publishing", "_ensure_registered_model", "before")
    fitted = noises(state)
    assert run(nightly, ratings) == {"pdp-histogram": "2"}
    assert noises(state) > fitted
    assert outcomes(state) == ("version 1", "version 2")
    assert run(job(), ratings) == {"pdp-histogram": "3"}
    killed(lambda: run(nightly, ratings), "tasks.runs:RunFolder", "keep", "after")
    assert run(job(), ratings) == {"pdp-histogram": "5"}, "a batch is no release of everything"
    assert Ledger(state).spent("films", unit="rating", relation="add_or_remove").epsilon == 3
    assert_consistent(state)


def test_a_run_that_publishes_nothing_leaves_what_was_left_to_the_next(ratings: Ratings, state: State) -> None:
    killed(lambda: run(job(), ratings), "tasks.runs:RunFolder", "keep", "after")
    assert finish_interrupted_runs(job(publish=False)) == []
    assert outcomes(state) == ("spent",)
    assert something_was_interrupted(state)


def test_what_was_published_by_a_run_that_then_failed_is_not_charged_again(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = job(recommenders="pdp-histogram,dp-pmf", settings={"dp-pmf": {"n_iterations": 1}})
    with monkeypatch.context() as patch:
        patch.setattr(RECOMMENDERS["dp-pmf"], "fit", fails(MemoryError()))
        with pytest.raises(JaliError, match="The fit for release failed"):
            run(both, ratings)
    assert outcomes(state) == ("version 1", "spent; nothing was published")
    assert run(both, ratings) == {"pdp-histogram": "1", "dp-pmf": "1"}
    assert outcomes(state) == ("version 1", "spent; nothing was published", "version 1")
    assert_consistent(state)


def test_a_version_that_was_deleted_since_is_fitted_anew(ratings: Ratings, state: State) -> None:
    killed(lambda: run(job(), ratings), "tasks.runs:RunFolder", "remove", "before")
    open_tracking(state).delete_model_version("films.pdp-histogram", "1")
    assert run(job(), ratings) == {"pdp-histogram": "2"}
    assert outcomes(state) == ("version 1", "version 2")


@pytest.mark.parametrize("dies_at", ["take_back", None])
def test_what_was_given_up_is_never_published(ratings: Ratings, state: State, dies_at: str | None) -> None:
    killed(lambda: run(job(), ratings), "tasks.publishing", "_ensure_registered_model", "before")
    ledger = Ledger(state)
    name = ledger.entries()[0].reservation
    if dies_at:
        killed(lambda: void(state, Ledger(state), name, "A test."), "tasks.publishing", dies_at, "before")
    else:
        void(state, ledger, name, "A test.")
    assert outcomes(state) == ("void: A test.",)
    assert finish_interrupted(state) == []
    assert open_tracking(state).search_model_versions() == []
    assert_consistent(state)


def test_what_has_a_version_is_not_voided(ratings: Ratings, state: State) -> None:
    killed(lambda: run(job(), ratings), "tasks.ledger:Reservation", "published", "before")
    ledger = Ledger(state)
    with pytest.raises(Refused, match=r"version 1 of films\.pdp-histogram was made of this charge"):
        void(state, ledger, ledger.entries()[0].reservation, "A test.")
    assert run(job(), ratings) == {"pdp-histogram": "1"}
    assert_consistent(state)


def test_what_has_a_version_is_not_voided_from_another_folder_either(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JALI_LEDGER_KEY", "k" * 40)
    killed(lambda: run(job(), ratings), "tasks.ledger:Reservation", "published", "before")
    monkeypatch.setenv("JALI_LEDGER_URL", state.ledger_url)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", state.local_tracking_uri)
    other = State(tmp_path / "other" / ".jali")
    other.folder.mkdir(parents=True)
    (entry,) = Ledger(other).entries()
    with pytest.raises(Refused, match=r"version 1 of films\.pdp-histogram was made of this charge"):
        void(other, Ledger(other), entry.reservation, "A test.", gone=True)
    Ledger(other).reservation(entry.reservation).failed("spent; nothing was published")
    with pytest.raises(Refused, match="delete that version first"):
        void(other, Ledger(other), entry.reservation, "A test.")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(EnvironmentFault, match="MLflow does not answer"):
        void(other, Ledger(other), entry.reservation, "A test.")
    assert outcomes(other) == ("spent; nothing was published",)


def test_what_a_ledger_that_is_gone_had_paid_for_is_neither_published_nor_deleted(
    ratings: Ratings, state: State
) -> None:
    killed(lambda: run(job(), ratings), "tasks.runs:RunFolder", "keep", "after")
    before = noises(state)
    for file in state.folder.glob("ledger.*"):
        file.unlink()
    with pytest.raises(LedgerDoubted, match="Restore it"):
        run(job(), ratings)
    assert noises(state) == before


def test_what_was_kept_and_is_damaged_is_not_published(ratings: Ratings, state: State) -> None:
    killed(lambda: run(job(), ratings), "tasks.runs:RunFolder", "keep", "after")
    (damaged,) = state.folder.rglob(RELEASE_FILE)
    damaged.write_bytes(damaged.read_bytes()[:-9])
    (finished,) = finish_interrupted(state)
    assert "It stays charged; `jali ledger void" in finished.sentence
    assert outcomes(state) == LOST
    assert_consistent(state)
