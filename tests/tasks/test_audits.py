"""What an audit leaves in MLflow and on the version, against a real one; and the gate that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from models.audit.claim import Claim
from models.errors import EnvironmentFault, Refused, SpecError
from models.release import RELEASE_FILE
from tasks import audits
from tasks.audit_figure import least_misses
from tasks.auditing import AUDITS, Version, find_version, log_audit, released_subject
from tasks.audits import audit_tags, note_audit, require_not_exceeded
from tasks.state import State
from tasks.tracking import open_tracking
from tests.audited import made_up_registry, subject, trial

registry = made_up_registry
needs_mlflow = pytest.mark.slow  # its tables take seconds to make

AT = datetime(2026, 11, 21, 18, 30, tzinfo=UTC)


def tags_after(*epsilons: float) -> dict[str, str]:
    """Of a version with a claim of 1 and audits that showed these."""
    tags: dict[str, str] = {}
    for epsilon in epsilons:
        tags |= audit_tags(trial(epsilon), "run", tags, AT)
    return tags


def test_a_version_whose_latest_audit_exceeded_is_refused_with_what_was_found_and_when() -> None:
    for shown in ((1.3,), (0.8, 1.3)):
        with pytest.raises(
            Refused, match=r"on 2026-11-21 18:30 UTC ε=1.3 was shown .*and ε=1 is claimed\. Mend"
        ) as told:
            require_not_exceeded(tags_after(*shown))
        assert told.value.exit_code == 1


def test_a_version_within_its_claim_passes_without_a_word() -> None:
    assert require_not_exceeded(tags_after(0.8)) is None


def test_an_audit_run_again_until_it_passes_shows() -> None:
    told = require_not_exceeded(tags_after(1.3, 1.2, 0.8))
    assert told is not None
    assert "The latest of 3 audits of this version stayed within its claim, and 2 exceeded it" in told


def test_an_audit_that_tries_less_hard_does_not_take_back_what_a_harder_one_found() -> None:
    exceeded = tags_after(1.3)
    weaker = {
        "fewer runs": {"audit.runs": "1000000"},
        "more confidence to reach": {"audit.confidence": "0.9"},
        "other neighbours": {"audit.relation": "replace_value"},
        "a confidence that somebody spoilt": {"audit.confidence": "sure"},
    }
    for harder in weaker.values():
        before = {**exceeded, **harder}
        after = before | audit_tags(trial(0.8), "other run", before, AT)
        assert after == {**before, "audit.times": "2"}
        with pytest.raises(Refused):
            require_not_exceeded(after)
    assert tags_after(1.3, 0.8)["audit.result"] == "within"
    assert audit_tags(trial(1.2), "run", {**exceeded, "audit.runs": "1000000"}, AT)["audit.epsilon_shown"] == "1.2"


def test_a_version_that_nobody_audited_passes_and_is_said_to_be_so() -> None:
    assert "never audited" in (require_not_exceeded({"privacy.epsilon": "1"}) or "")


@pytest.mark.parametrize(
    "tampered",
    [{"audit.result": "fine"}, {"audit.result": ""}, {"audit.result": "WITHIN"}, {"audit.result": "exceeded"}],
)
def test_a_result_that_no_audit_wrote_does_not_open_the_gate(tampered: dict[str, str]) -> None:
    with pytest.raises(Refused):
        require_not_exceeded(tampered)


def test_counts_that_somebody_spoilt_begin_anew_and_the_rest_is_read() -> None:
    tags = audit_tags(trial(0.8), "run", {"audit.times": "many", "audit.times_exceeded": "-3"}, AT)
    assert (tags["audit.times"], tags["audit.times_exceeded"]) == ("1", "0")
    assert require_not_exceeded({**tags, "audit.times_exceeded": "٣x"}) is None


def test_gaussian_noise_is_shown_as_the_epsilon_that_its_mu_makes() -> None:
    users = subject(unit="user")
    claim = Claim(1.0, 1e-6, 0.2369)
    as_charged = trial(0.1, users, claim, mu=0.2369)
    assert as_charged.epsilon_shown == pytest.approx(1, abs=1e-3)
    assert trial(0.1, users, claim, mu=0.1).epsilon_shown == pytest.approx(0.38, abs=0.02)
    assert trial(0.1, users, claim, mu=0.0).epsilon_shown == 0.1
    assert not as_charged.audited.exceeded
    assert trial(0.1, users, claim, mu=0.24).audited.exceeded


def test_a_bad_result_is_written_first_and_a_good_one_last(monkeypatch: pytest.MonkeyPatch) -> None:
    for shown, place in ((1.3, 0), (0.8, -1)):
        written: list[str] = []
        client = SimpleNamespace(
            get_model_version=lambda *_: SimpleNamespace(tags={}),
            set_model_version_tag=lambda model, number, name, value, written=written: written.append(name),
        )
        monkeypatch.setattr(audits, "open_tracking", lambda state, client=client: client)
        note_audit(Version("films.pdp-histogram", "1", "films"), trial(shown), "run")
        assert written[place] == "audit.result"
        assert sorted(written) == sorted(tags_after(shown))


@pytest.mark.parametrize("delta", [0.0, 0.1])
def test_the_claim_leaves_no_fewer_misses_than_the_theorems_say(delta: float) -> None:
    false_alarms = np.array([0, 0.1, 0.9, 1])
    least = least_misses(Claim(1.0, delta), false_alarms)
    assert least[0] == pytest.approx(1 - delta)
    assert least[1] == pytest.approx(1 - delta - np.e * 0.1)
    assert least[2] == pytest.approx((1 - delta - 0.9) / np.e)
    assert least[3] == 0
    assert least_misses(Claim(1.0, 0.1, 0.5), np.array([0.5])) == pytest.approx(norm.cdf(-0.5))


@needs_mlflow
def test_the_newest_version_of_the_only_source_is_audited_and_any_that_is_named(registry: State) -> None:
    assert find_version("pdp-histogram", "films", None) == Version("films.pdp-histogram", "2", "films")
    assert find_version("pdp-histogram", "films", 1) == Version("films.pdp-histogram", "1", "films")
    assert find_version("pdp-pmf", None, None) is None


@needs_mlflow
@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("pdp-histogram", None, None), "several sources have a version of pdp-histogram: books, films, spoilt. Name"),
        (("pdp-histogram", "shops", None), "shops has no version of pdp-histogram here; books, films, spoilt has"),
        (("pdp-histogram", "films", 7), "films.pdp-histogram has no version 7; the newest is 2"),
        (("pdp-pmf", "films", None), "no source has a version of pdp-pmf here"),
        (("pdp-pmf", None, 1), "no source has a version of pdp-pmf here"),
    ],
)
def test_a_version_that_is_not_there_is_one_sentence(
    asked: tuple[str, str | None, int | None], sentence: str, registry: State
) -> None:
    with pytest.raises(SpecError, match=sentence):
        find_version(*asked)


@needs_mlflow
def test_a_version_is_audited_as_it_was_released(registry: State) -> None:
    found = released_subject(Version("films.pdp-histogram", "1", "films"), "pdp-histogram", None)
    assert found.candidate.label == "pdp-histogram ε=0.5"
    assert (str(found.scale), found.relation, found.is_claimed) == ("1:5:1", "add_or_remove", True)
    of_dp_pmf = Version("films.dp-pmf", "1", "films")
    assert released_subject(of_dp_pmf, "dp-pmf", None).is_claimed
    assert not released_subject(of_dp_pmf, "dp-pmf", "add_or_remove").is_claimed
    changed = released_subject(Version("films.pdp-histogram", "1", "films"), "pdp-histogram", "replace_value")
    assert (changed.relation, changed.is_claimed) == ("replace_value", True)


def spoilt(document: dict[str, Any], **about: Any) -> dict[str, Any]:
    return {**document, "about": {**document["about"], **about}}


SPOILT: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no JSON": (lambda document: "{", "could not be read as a release"),
    "newer": (lambda document: {**document, "format": 99}, "a newer Jali wrote it. Upgrade"),
    "nothing about it": (lambda document: {**document, "about": {}}, "does not say what was released"),
    "a list about it": (lambda document: {**document, "about": ["x"]}, "does not say what was released"),
    "no scale": (lambda document: {**document, "scale": {"low": 5, "high": 1, "step": 1}}, "does not say what was"),
    "unknown setting": (lambda document: spoilt(document, settings={"warp": 9}), "a newer one released it"),
    "unknown recommender": (lambda document: spoilt(document, recommender="magic"), "a newer one released it"),
    "another recommender": (
        lambda document: spoilt(document, recommender="pmf", settings={}),
        "its release.json and the registry disagree",
    ),
    "another promise": (
        lambda document: spoilt(document, guarantee={**document["about"]["guarantee"], "epsilon": 9}),
        "its release.json and the registry disagree",
    ),
    "settings for less": (
        lambda document: spoilt(document, privacy={"epsilon": 2}),
        "this Jali would promise another epsilon for its settings",
    ),
}


@needs_mlflow
@pytest.mark.parametrize("how", SPOILT)
def test_a_version_whose_files_are_damaged_or_of_another_jali_is_not_audited(how: str, registry: State) -> None:
    spoil, sentence = SPOILT[how]
    file = Path("spoilt.pdp-histogram", "artifacts", "release", RELEASE_FILE)
    whole = file.read_text()
    content = spoil(json.loads(whole))
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    try:
        with pytest.raises(EnvironmentFault, match=sentence) as fault:
            released_subject(Version("spoilt.pdp-histogram", "1", "spoilt"), "pdp-histogram", None)
    finally:
        file.write_text(whole)
    assert str(fault.value).startswith("version 1 of spoilt.pdp-histogram: ")


@needs_mlflow
def test_an_audit_is_a_run_with_a_figure_and_tags_the_version(registry: State) -> None:
    version = Version("books.pdp-histogram", "1", "books")
    client = open_tracking(registry)
    of_version = subject(version=version, epsilon=0.5)
    for epsilon, result in ((0.7, "exceeded"), (0.4, "within")):
        done = trial(epsilon, of_version, Claim(0.5))
        run_id = log_audit(done)
        note_audit(version, done, run_id)
        run = client.get_run(run_id)
        assert client.get_experiment(run.info.experiment_id).name == AUDITS
        assert (run.info.run_name, run.info.status) == ("pdp-histogram ε=0.5", "FINISHED")
        assert run.data.params["setting.threshold"] == "max"
        assert run.data.params["audit.runs"] == "40000"
        assert run.data.metrics["audit.epsilon_claimed"] == 0.5
        assert run.data.metrics["audit.epsilon_shown"] == epsilon
        assert run.data.metrics["audit.runs_per_minute"] == 120_000
        assert run.data.tags["version"] == "version 1 of books.pdp-histogram"
        assert run.data.tags["audit.result"] == result
        (figure,) = client.list_artifacts(run_id, "figures")
        assert figure.path == "figures/claimed_against_shown.png"
        tags = client.get_model_version("books.pdp-histogram", "1").tags
        assert {name: tags[f"audit.{name}"] for name in ("result", "run")} == {"result": result, "run": run_id}
        assert (tags["audit.epsilon_claimed"], tags["audit.epsilon_shown"]) == ("0.5", f"{epsilon:g}")
    assert (tags["audit.times"], tags["audit.times_exceeded"]) == ("2", "1")
    assert "1 exceeded it" in (require_not_exceeded(tags) or "")
    assert tags["source"] == "books"
