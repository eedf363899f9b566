"""Against a real MLflow (sqlite and files), and the published model in a process that lacks the project."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from models.errors import EnvironmentFault, NotReleasable
from models.index import make_recommender
from models.privacy.specification import Policy, PrivacySpecification
from models.ratings import Ratings
from tasks import publishing
from tasks.ledger import Charge, Ledger, Reservation
from tasks.publishing import publish
from tasks.state import State
from tasks.tracking import Candidate, log_evaluations, log_spending, open_tracking
from tasks.training import Evaluation, deal, evaluate_fold, fit_private

pytestmark = pytest.mark.slow


def candidate(name: str = "pdp-histogram", **privacy: object) -> Candidate:
    recommender = make_recommender(name, {})
    specification = PrivacySpecification(**(privacy or {"epsilon": 1}))
    return Candidate(recommender, specification, recommender.guarantee(specification, public_catalogue=True))


def reserve(chosen: Candidate, state: State) -> Reservation:
    charge = Charge("films", chosen.name, chosen.guarantee, str(chosen.recommender.cost(chosen.specification)))
    return Ledger(state.ledger_url).reserve([charge])[0]


def published(chosen: Candidate, ratings: Ratings, state: State) -> str:
    reservation = reserve(chosen, state)
    release = fit_private(chosen.recommender, ratings, chosen.specification, reservation)
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
    runs = log_evaluations("films", chosen, evaluations, 3, 4.0)
    version = published(chosen[1], ratings, state)
    log_spending(runs["pdp-histogram"], 1.0, f"films.pdp-histogram v{version}")

    client = open_tracking(state)
    run = client.get_run(runs["pdp-histogram"])
    assert run.info.run_name == "pdp-histogram ε=1"
    assert run.info.status == "FINISHED"
    assert run.data.params["setting.threshold"] == "max"
    assert run.data.params["folds"] == "3"
    assert run.data.params["privacy.relation"] == "add_or_remove"
    assert run.data.params["privacy.epsilon_spent"] == "1"
    assert run.data.metrics["privacy.epsilon_spent"] == run.data.metrics["privacy.epsilon"] == 1
    summary = evaluations["pdp-histogram"].summaries["client"]
    assert summary is not None
    assert run.data.metrics["cv_rmse"] == summary["rmse"]
    assert run.data.metrics["cv_rmse_sd"] == summary["rmse_sd"]
    assert {"visitor_rmse", "cv_mae", "cv_ndcg_10", "fold_rmse"} <= set(run.data.metrics)
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "fold_rmse")] == [0, 1, 2]
    assert {file.path for file in client.list_artifacts(run.info.run_id, "figures")} == {
        "figures/rmse.png",
        "figures/error_cdf.png",
    }
    assert run.data.tags["release"] == "films.pdp-histogram v1"
    assert "paper_rmse" in client.get_run(runs["pmf"]).data.metrics

    released = client.get_model_version("films.pdp-histogram", version)
    release_run = client.get_run(released.run_id)
    assert client.get_experiment(release_run.info.experiment_id).name == "films.releases"
    assert set(release_run.data.metrics) == {"privacy.epsilon_spent"}
    assert released.tags["privacy.epsilon"] == "1"
    assert released.tags["privacy.verdict"] == "proven"
    assert "differential privacy" in released.tags["privacy.guarantee"]
    assert "No accuracy is stated" in released.description
    (entry,) = Ledger(state.ledger_url).entries()
    assert entry.reservation == released.tags["ledger.reservation"]
    assert entry.outcome == "version 1"


def test_a_policy_is_named_in_full(state: State) -> None:
    chosen = candidate(policy=Policy())
    assert chosen.label == "pdp-histogram ε=0.1..1"
    assert chosen.params["privacy.policy.conservative"] == "0.54"
    assert candidate("pmf").label == "pmf (no privacy)"
    assert candidate("pmf").params["privacy.epsilon"] == "inf"
    assert candidate(epsilon=2, unit="user").label == "pdp-histogram user ε=2"


def test_the_next_release_is_the_next_version(ratings: Ratings, state: State) -> None:
    assert [published(candidate(), ratings, state) for _ in range(2)] == ["1", "2"]


def test_a_baseline_cannot_be_fitted_for_release(ratings: Ratings, state: State) -> None:
    chosen = candidate("pmf")
    with pytest.raises(NotReleasable, match="never published"):
        fit_private(chosen.recommender, ratings, chosen.specification, reserve(candidate(), state))


def test_a_publication_that_fails_half_way_leaves_nothing_public(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = candidate()
    reservation = reserve(chosen, state)
    release = fit_private(chosen.recommender, ratings, chosen.specification, reservation)

    def out_of_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publishing, "_ensure_registered_model", out_of_disk)
    with pytest.raises(EnvironmentFault, match="No space left"):
        publish("films", chosen, release, reservation)
    reservation.close()
    client = open_tracking(state)
    experiment = client.get_experiment_by_name("films.releases")
    assert client.search_runs([experiment.experiment_id]) == []
    assert client.search_model_versions() == []
    assert [entry.outcome for entry in Ledger(state.ledger_url).entries()] == ["spent, failed"]


def test_an_mlflow_that_does_not_answer_is_one_sentence(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    from tasks.state import current_state

    with pytest.raises(EnvironmentFault, match="MLflow does not answer at http"):
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
        (default,) = asked_of(port, {"ratings": own})
        refusals = [
            refused_by(port, request)
            for request in (
                {"ratings": [{"item": "i1", "rating": 77.25}]},
                {"ratings": [{"item": "i1", "rating": "much"}]},
                {"ratings": [], "n": -1},
                {"ratings": [], "n": 2.5},
                {"ratings": [], "items": ["i1", "elsewhere"]},
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
    assert all(1 <= rating <= 5 for rating in asked["ratings"])
    assert len(default["items"]) == 10
    for refusal, sentence in zip(
        refusals,
        ("from 1 to 5", "a number", "at least 0", "whole number", "1 of the items"),
        strict=True,
    ):
        assert sentence in refusal
    # MLflow's answer quotes the request to whoever sent it; its log, which others read, must not.
    assert "77.25" not in (tmp_path / "log").read_text()
