"""Against a real MLflow (sqlite and files), and the published model in a process that lacks the project."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from flows.job import Job
from flows.run import bill
from models import private_metrics
from models.candidate import Candidate
from models.errors import EnvironmentFault, NotReleasable
from models.histogram.pdp_histogram import PDPHistogram
from models.index import make_recommender
from models.privacy.budget import Budget
from models.privacy.noise import ExactNoise
from models.privacy.specification import Policy, PrivacySpecification
from models.private_metrics import ERROR_STEPS, PrivateMetrics
from models.ratings import Ratings
from tasks import publishing
from tasks.ledger import Ledger, Reservation
from tasks.ledger_entries import Charge
from tasks.model_card import model_card, refresh_card
from tasks.publishing import publish
from tasks.state import State, current_state
from tasks.tracking import log_evaluations, log_spending, open_tracking
from tasks.training import Evaluation, deal, evaluate_fold, fit_private

if TYPE_CHECKING:
    from mlflow import MlflowClient

pytestmark = pytest.mark.slow


def candidate(name: str = "pdp-histogram", **privacy: object) -> Candidate:
    recommender = make_recommender(name, {})
    specification = PrivacySpecification(**(privacy or {"epsilon": 1}))
    return Candidate(recommender, specification, recommender.guarantee(specification, public_catalogue=True))


def reserve(chosen: Candidate, state: State) -> Reservation:
    return Ledger(state).reserve([bill(Job(source="films"), chosen)])[0]


def published(chosen: Candidate, ratings: Ratings, state: State) -> str:
    reservation = reserve(chosen, state)
    release = fit_private(chosen.recommender, ratings, chosen.specification, reservation, chosen.metrics)
    return publish("films", chosen, release, reservation)


def test_runs_say_what_they_are_and_releases_hold_no_unpaid_figure(ratings: Ratings, state: State) -> None:
    chosen = [candidate("pmf"), candidate()]
    dealt = deal(ratings, 3)
    evaluations = {
        c.name: Evaluation(
            tuple(evaluate_fold(c.recommender, ratings, c.specification, dealt, fold) for fold in range(3))
        )
        for c in chosen
    }
    runs = log_evaluations("films", chosen, evaluations, 3, 4.0, "fresh")
    version = published(chosen[1], ratings, state)
    log_spending(runs["pdp-histogram"], 1.0, f"films.pdp-histogram v{version}")

    client = open_tracking(state)
    run = client.get_run(runs["pdp-histogram"])
    assert run.info.run_name == "pdp-histogram ε=1"
    assert run.info.status == "FINISHED"
    assert run.data.params["setting.threshold"] == "max"
    assert (run.data.params["folds"], run.data.params["batch"]) == ("3", "fresh")
    assert run.data.params["privacy.relation"] == "add_or_remove"
    assert run.data.params["privacy.epsilon_spent"] == "1"
    assert run.data.metrics["privacy.epsilon_spent"] == run.data.metrics["privacy.epsilon"] == 1
    summary = evaluations["pdp-histogram"].summaries["client"]
    assert summary is not None
    assert run.data.metrics["cv_rmse"] == summary["rmse"]
    assert run.data.metrics["cv_rmse_sd"] == summary["rmse_sd"]
    assert {"visitor_rmse", "cv_mae", "cv_ndcg_10", "fold_rmse"} <= set(run.data.metrics)
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "fold_rmse")] == [0, 1, 2]
    assert figures_of(client, run.info.run_id) == {"rmse", "error_cdf", "privacy_utility"}
    assert run.data.tags["latest"] == "yes"
    assert run.data.tags["release"] == "films.pdp-histogram v1"
    assert "paper_rmse" in client.get_run(runs["pmf"]).data.metrics

    released = client.get_model_version("films.pdp-histogram", version)
    release_run = client.get_run(released.run_id)
    assert client.get_experiment(release_run.info.experiment_id).name == "films.releases"
    assert set(release_run.data.metrics) == {"privacy.epsilon_spent"}
    assert figures_of(client, released.run_id) == {"item_offsets", "ledger"}  # no RMSE was paid for
    assert released.tags["privacy.epsilon"] == "1"
    assert released.tags["privacy.verdict"] == "proven"
    assert "differential privacy" in released.tags["privacy.guarantee"]
    assert "No accuracy is stated" in released.description
    (entry,) = Ledger(state).entries()
    assert entry.reservation == released.tags["ledger.reservation"]
    assert entry.outcome == "version 1"


def figures_of(client: MlflowClient, run: str) -> set[str]:
    return {Path(file.path).stem for file in client.list_artifacts(run, "figures")}


def test_a_version_states_the_metrics_that_were_paid_for_and_not_the_exact_ones(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact: list[tuple[int, int]] = []
    exact_sums = private_metrics.exact_sums
    monkeypatch.setattr(private_metrics, "exact_sums", lambda *given: exact.append(exact_sums(*given)) or exact[-1])
    chosen = dataclasses.replace(candidate(), metrics=PrivateMetrics(epsilon=2, ratings_per_user=4))
    client = open_tracking(state)
    released = client.get_model_version("films.pdp-histogram", published(chosen, ratings, state))
    run = client.get_run(released.run_id)
    rmse, low, high = (run.data.metrics[f"private_rmse{end}"] for end in ("", "_low", "_high"))
    assert low < rmse < high
    assert set(run.data.metrics) == {"privacy.epsilon_spent", "private_rmse", "private_rmse_low", "private_rmse_high"}
    assert run.data.metrics["privacy.epsilon_spent"] == 3
    assert run.data.params["privacy.epsilon_spent"] == "3"
    assert figures_of(client, released.run_id) == {"item_offsets", "ledger", "privacy_utility"}
    assert run.data.params["privacy.metrics.ratings_per_user"] == "4"
    assert released.tags["metrics.rmse"] == f"{rmse:.4g}"
    assert released.tags["metrics.rmse_95"] == f"{low:.3g}..{high:.3g}"
    assert released.tags["metrics.epsilon"] == "2"
    assert f"RMSE {rmse:.3g} (95% interval {low:.3g}..{high:.3g})" in released.description
    assert "No accuracy is stated" not in released.description
    release, metrics = Ledger(state).entries()
    assert [(e.claimed_epsilon, e.purpose, e.outcome) for e in (release, metrics)] == [
        (1, "release", "version 1"),
        (2, "private metrics", "version 1"),
    ]
    assert release.reservation == metrics.reservation == released.tags["ledger.reservation"]
    ((total, count),) = exact
    stored = b"".join(path.read_bytes() for path in state.folder.rglob("*") if path.is_file())
    for figure in (total, total / ERROR_STEPS, 4 * (total / ERROR_STEPS / count) ** 0.5, total / ERROR_STEPS / count):
        assert f"{figure:.12g}"[:8].encode() not in stored
    assert repr(rmse)[:8].encode() in stored  # and what is there would be found


def test_metrics_that_are_not_those_of_the_offer_are_not_published(ratings: Ratings, state: State) -> None:
    without = candidate()
    asked = dataclasses.replace(without, metrics=PrivateMetrics(epsilon=2))
    for fitted, offered in ((without, asked), (asked, without)):
        reservation = reserve(fitted, state)
        release = fit_private(fitted.recommender, ratings, fitted.specification, reservation, fitted.metrics)
        with pytest.raises(NotReleasable, match="other metrics"):
            publish("films", offered, release, reservation)
    assert open_tracking(state).search_model_versions() == []


def test_a_policy_is_named_in_full(state: State) -> None:
    chosen = candidate(policy=Policy())
    assert chosen.label == "pdp-histogram ε=0.1..1"
    assert chosen.params["privacy.policy.conservative"] == "0.54"
    assert candidate("pmf").label == "pmf (no privacy)"
    assert candidate("pmf").params["privacy.epsilon"] == "inf"
    assert candidate(epsilon=2, unit="user").label == "pdp-histogram user ε=2"


def test_the_next_release_is_the_next_version(ratings: Ratings, state: State) -> None:
    chosen = (candidate(), candidate(policy=Policy()))
    assert [published(one, ratings, state) for one in chosen] == ["1", "2"]
    client = open_tracking(state)
    alike, personalised = (client.get_model_version("films.pdp-histogram", n).description for n in ("1", "2"))
    assert "Declared levels: conservative ε=0.1 to 0.2 (54%); moderate" in personalised
    assert "Declared levels" not in alike


def test_the_card_of_a_version_follows_its_tags_and_that_of_a_copy_its_own(ratings: Ratings, state: State) -> None:
    number = published(candidate(), ratings, state)
    client = open_tracking(state)
    source = client.get_model_version("films.pdp-histogram", number)
    assert source.tags["ledger.spent_when_released"] == "ε=1 for each rating (add or remove); no budget was set"
    assert source.description == model_card(source.name, fitted_as(candidate()), source.tags)
    client.copy_model_version(f"models:/films.pdp-histogram/{number}", "films.serving")
    client.set_model_version_tag("films.serving", "1", "promotion.by", "ada")
    refresh_card(client, "films.serving", "1")
    served = client.get_model_version("films.serving", "1").description
    assert "- Promoted by ada" in served
    assert "models:/films.serving@champion" in served
    assert client.get_model_version("films.pdp-histogram", number).description == source.description


def fitted_as(chosen: Candidate) -> dict[str, Any]:
    """What a release of this says of itself, as far as its card shows it."""
    return {"recommender": chosen.name, "guarantee": chosen.guarantee.model_dump(mode="json")}


def test_a_budget_is_told_with_what_was_spent_of_it(ratings: Ratings, state: State) -> None:
    Ledger(state).set_budget("films", Budget(epsilon=10))
    number = published(candidate(), ratings, state)
    version = open_tracking(state).get_model_version("films.pdp-histogram", number)
    told = "ε=1, of a budget of ε=10 for each rating (add or remove)"
    assert version.tags["ledger.spent_when_released"] == told
    assert f"- spent when released: {told}" in version.description


def test_a_baseline_cannot_be_fitted_for_release(ratings: Ratings, state: State) -> None:
    pmf = candidate("pmf")
    charge = Charge("films", "pmf", candidate().guarantee, pmf.recommender.cost(pmf.specification))
    (reservation,) = Ledger(state).reserve([[charge]])
    with pytest.raises(NotReleasable, match="never published"):
        fit_private(pmf.recommender, ratings, pmf.specification, reservation)


def test_more_than_was_reserved_cannot_be_fitted(ratings: Ratings, state: State) -> None:
    cheap, dear = candidate(epsilon=0.01), candidate(epsilon=100)
    with pytest.raises(NotReleasable, match="not what was reserved"):
        fit_private(dear.recommender, ratings, dear.specification, reserve(cheap, state))


def test_what_was_not_paid_for_cannot_be_published(ratings: Ratings, state: State) -> None:
    cheap, dear = candidate(epsilon=0.01), candidate(epsilon=100)
    release = dear.recommender.fit(ratings, dear.specification, ExactNoise()).release
    with pytest.raises(NotReleasable, match="state: reserve"):
        publish("films", dear, release, reserve(dear, state))
    paid = reserve(cheap, state)
    fit_private(cheap.recommender, ratings, cheap.specification, paid)
    with pytest.raises(NotReleasable, match="not fitted under the guarantee"):
        publish("films", cheap, release, paid)
    assert open_tracking(state).search_model_versions() == []


class Witness(PDPHistogram, frozen=True):
    """Notes what the ledger says at the moment the ratings are fitted."""

    def fit(self, ratings, specification, noise, *, n_threads=1):  # type: ignore[no-untyped-def]
        seen.append([entry.state for entry in Ledger(current_state()).entries()])
        return super().fit(ratings, specification, noise, n_threads=n_threads)


seen: list[list[str]] = []


def test_it_is_paid_before_it_is_fitted(ratings: Ratings, state: State) -> None:
    chosen = candidate()
    fit_private(Witness(), ratings, chosen.specification, reserve(chosen, state))
    assert seen == [["commit"]]


STEPS = ("_log_settings", "_ensure_registered_model", "set_terminated", "published", "create_model_version")


@pytest.mark.parametrize("failing", STEPS)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_publication_that_fails_at_any_step_leaves_nothing_public(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    from mlflow import MlflowClient

    chosen = candidate()
    reservation = reserve(chosen, state)
    release = fit_private(chosen.recommender, ratings, chosen.specification, reservation)
    place = {"set_terminated": MlflowClient, "create_model_version": MlflowClient, "published": Reservation}.get(
        failing, publishing
    )
    before = getattr(place, failing)
    after_it = failing == "create_model_version"  # the step itself works, and what comes next is an interrupt

    def fails(*arguments: Any, **named: Any) -> None:
        if after_it:
            before(*arguments, **named)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(place, failing, fails)
        with pytest.raises((EnvironmentFault, KeyboardInterrupt)):
            publish("films", chosen, release, reservation)
    reservation.close()
    client = open_tracking(state)
    experiment = client.get_experiment_by_name("films.releases")
    assert client.search_runs([experiment.experiment_id]) == []
    assert client.search_logged_models([experiment.experiment_id]) == []
    assert client.search_model_versions() == []
    assert [entry.outcome for entry in Ledger(state).entries()] == ["spent; nothing was published"]


def test_a_conditional_release_is_labelled_so(ratings: Ratings, state: State) -> None:
    catalogue = dataclasses.replace(ratings.catalogue, public=False)
    private_list = dataclasses.replace(ratings, catalogue=catalogue)
    proven = candidate()
    guarantee = proven.recommender.guarantee(proven.specification, public_catalogue=False)
    chosen = dataclasses.replace(proven, guarantee=guarantee)
    released = open_tracking(state).get_model_version("films.pdp-histogram", published(chosen, private_list, state))
    assert released.tags["privacy.verdict"] == "conditional"
    assert "catalogue was taken from the ratings" in released.tags["privacy.conditions"]
    assert "verdict **conditional**" in released.description
    (entry,) = Ledger(state).entries()
    assert (entry.verdict, entry.proven_epsilon) == ("conditional", None)


def test_an_mlflow_that_does_not_answer_is_one_sentence(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:1?token=hunter2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(EnvironmentFault, match="MLflow does not answer at http://127") as fault:
        open_tracking(current_state())
    assert "hunter2" not in str(fault.value)


@pytest.mark.parametrize("uri", ["nonsense://x", "http://[::1", "postgresql://h:port/x"])
def test_an_address_of_mlflow_that_is_none_is_one_sentence(
    uri: str, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(EnvironmentFault, match="MLflow does not answer at"):
        open_tracking(current_state())


BLOCKER = """
import sys
class NoProject:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("models", "tasks", "flows", "expectations", "jali"):
            raise ImportError(f"{name}: the project is not here")
sys.meta_path.insert(0, NoProject())
"""


def without_the_project(folder: Path) -> dict[str, str]:
    """An environment in which importing any of the project's packages fails."""
    (folder / "sitecustomize.py").write_text(BLOCKER)
    programs = Path(sys.executable).parent
    return {**os.environ, "PYTHONPATH": str(folder), "PATH": f"{programs}:{os.environ['PATH']}"}


def asked_of(port: int, *requests: dict) -> list[dict]:
    body = json.dumps({"dataframe_records": requests}).encode()
    request = Request(f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=10) as response:
        return json.load(response)["predictions"]


def refused_by(port: int, request: dict) -> str:
    with pytest.raises(HTTPError) as refusal:
        asked_of(port, request)
    assert refusal.value.code == 400
    with refusal.value as response:
        return response.read().decode()


def test_mlflow_serves_the_version_without_the_project(ratings: Ratings, state: State, tmp_path: Path) -> None:
    version = published(candidate(), ratings, state)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**without_the_project(tmp_path), "MLFLOW_TRACKING_URI": state.tracking_uri}
    blocked = subprocess.run(
        [sys.executable, "-c", "import models"], env=environment, capture_output=True, text=True, check=False
    )
    assert "the project is not here" in blocked.stderr
    command = [str(Path(sys.executable).with_name("mlflow")), "models", "serve"]
    command += ["-m", f"models:/films.pdp-histogram/{version}", "--env-manager", "local", "-p", str(port)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/ping", timeout=2).close()
                break
            except OSError:
                assert server.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.3)
        own = [{"item": "i1", "rating": 5}, {"item": "i2", "rating": 1.0}, {"item": "elsewhere", "rating": 3}]
        best, asked = asked_of(port, {"ratings": own, "n": 3}, {"ratings": own, "items": ["i5", "i6"]})
        (default, partly) = asked_of(port, {"ratings": own}, {"ratings": own, "items": ["elsewhere", "i5"]})
        refusals = [
            refused_by(port, request)
            for request in (
                {"ratings": [{"item": "i1", "rating": 77.25}]},
                {"ratings": [{"item": "i1", "rating": "much"}]},
                {"ratings": [], "n": -1},
                {"ratings": [], "n": 2.5},
                {"ratings": [own[0], own[0]]},
            )
        ]
    finally:
        if server.poll() is None:
            os.killpg(server.pid, 15)
            server.wait(timeout=20)
    assert len(best["items"]) == len(best["titles"]) == len(best["ratings"]) == 3
    assert best["ratings"] == sorted(best["ratings"], reverse=True)
    assert best["titles"][0] == best["items"][0].replace("i", "Title ")
    assert not {"i1", "i2"} & set(best["items"])
    assert best["ignored"] == 1
    assert asked["items"] == ["i5", "i6"]
    assert (partly["items"], partly["unknown"]) == (["i5"], ["elsewhere"])
    assert default["unknown"] == []
    assert all(1 <= rating <= 5 for rating in asked["ratings"])
    assert len(default["items"]) == 10
    for refusal, sentence in zip(
        refusals,
        ("from 1 to 5", "a number", "at least 0", "whole number", "at most once"),
        strict=True,
    ):
        assert sentence in refusal
    # MLflow's answer quotes the request to whoever sent it; its log, which others read, must not.
    assert "77.25" not in (tmp_path / "log").read_text()
