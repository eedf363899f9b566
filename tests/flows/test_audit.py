"""`jali audit`: in this process with audits nobody ran, and once for real."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

import flows.audit
import flows.cli
import flows.exits
from flows.audit import Request
from flows.audit_view import claim_lines
from flows.cli import app
from models.audit.claim import Claim
from models.errors import EnvironmentFault
from models.privacy.specification import Policy
from models.private_metrics import PrivateMetrics
from tasks import auditing
from tasks.auditing import Subject
from tasks.progress import listening
from tasks.state import State
from tasks.tracking import open_tracking
from tests.audited import made_up_registry, subject, trial
from tests.command import clean, jali

registry = made_up_registry
needs_mlflow = pytest.mark.slow  # its tables take seconds to make


@pytest.fixture
def without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow and its tasks as the functions that they are."""

    @contextlib.contextmanager
    def no_prefect() -> Iterator[Any]:
        flows.cli.prepared()
        yield lambda: None

    monkeypatch.setattr(flows.cli, "_prefect", no_prefect)
    monkeypatch.setattr(flows.audit, "audit", inspect.unwrap(flows.audit.audit.fn))
    monkeypatch.setattr(flows.audit, "whole", lambda value: value)
    for name in [name for name in vars(flows.audit) if name.endswith("_task")]:
        monkeypatch.setattr(flows.audit, name, getattr(flows.audit, name).fn)


@pytest.fixture
def audits(without_servers: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What every audit shows of its claim; and, afterwards, what was audited."""
    told: dict[str, Any] = {"shows": 0.8}

    def nobody_ran(subject: Subject, n_runs: int, confidence: float) -> auditing.Trial:
        epsilon = subject.candidate.guarantee.epsilon
        assert epsilon is not None
        told["subject"], told["n_runs"], told["confidence"] = subject, n_runs, confidence
        return trial(told["shows"] * epsilon, subject, told.get("claim") or Claim(epsilon), mu=told.get("mu"))

    monkeypatch.setattr(flows.audit, "run_audit_task", nobody_ran)
    return told


def audit(*arguments: str):
    return CliRunner().invoke(app, ["audit", *arguments])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("magic",), "there is no recommender 'magic'. Choose from"),
        (("pmf",), "pmf promises nothing about privacy, so there is nothing to audit"),
        (("pmf", "--source", "films"), "pmf promises nothing"),
        (("pdp-histogram", "--epsilon", "inf"), "a claim of infinity cannot be exceeded"),
        (("pdp-histogram", "--epsilon", " Infinity"), "a claim of infinity cannot be exceeded"),
        (("pdp-histogram", "--epsilon", "1e999"), "less than or equal to 1000"),
        (("pdp-histogram", "--epsilon", "nan"), "privacy.epsilon"),
        (("pdp-histogram", "--epsilon", "0"), "greater than or equal to 0.000001"),
        (("pdp-histogram", "--epsilon", "1e9"), "less than or equal to 1000"),
        (("pdp-histogram", "--epsilon", "1", "--policy", "default"), "either one epsilon for all or a policy"),
        (("pdp-histogram", "--policy", "nowhere.yaml"), "nowhere.yaml"),
        (("pdp-histogram", "--unit", "item"), "privacy.unit"),
        (("pdp-histogram", "--delta", "2"), "--delta matters only with --unit user"),
        (("pdp-histogram", "--delta", "2", "--unit", "user"), "privacy.delta"),
        (("dp-pmf", "--unit", "user"), "dp-pmf protects one rating"),
        (("pdp-histogram", "--set", "pdp-histogram.warp=9"), "there is no setting warp"),
        (("pdp-histogram", "--set", "warp"), "--set takes RECOMMENDER.SETTING=VALUE"),
        (
            ("pdp-histogram", "--set", "pmf.n_factors=9"),
            "settings are given for pmf, and pdp-histogram is to be audited",
        ),
        (("pdp-histogram", "--runs", "0"), "--runs is a whole number from 1 to 1,000,000; found '0'"),
        (("pdp-histogram", "--runs", "1e9"), "--runs is"),
        (("pdp-histogram", "--runs", "40k"), "--runs is a whole number"),
        (("pdp-histogram", "--runs", "99999999"), "--runs is"),
        (("pdp-histogram", "--confidence", "0.5"), "--confidence is between 0.5 and 1"),
        (("pdp-histogram", "--confidence", "1"), "--confidence is between"),
        (("pdp-histogram", "--confidence", "nan"), "--confidence is between"),
        (("pdp-histogram", "--confidence", "95"), "--confidence is between 0.5 and 1 (95% is 0.95); found '95'"),
        (("pdp-histogram", "--relation", "local"), "--relation is add_or_remove or replace_value; found 'local'"),
        (("pdp-histogram", "--source", "audits"), "audits and names ending in"),
        (("pdp-histogram", "--source", "a/b"), "a source is called by"),
        (("pdp-histogram", "--version", "0"), "--version is a whole number, 1 or more"),
        (("pdp-histogram", "--version", "one"), "--version is a whole number"),
        (("films.magic",), "there is no recommender"),
        (("films.pdp-histogram", "--source", "books"), "there is no recommender 'films.pdp-histogram'"),
        (("films.pdp-histogram", "--epsilon", "1"), "--source and --version name a version, which"),
        (("pdp-histogram", "--version", "1", "--epsilon", "1"), "--source and --version name a version, which"),
        (("pdp-histogram", "--source", "films", "--set", "pdp-histogram.threshold=max"), "Give the ones or the others"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    arguments: tuple[str, ...], sentence: str, without_servers: None, state: State
) -> None:
    outcome = audit(*arguments)
    assert (outcome.exit_code, sentence in outcome.stderr) == (2, True), outcome.output
    assert not state.tracking_database.exists()


def test_the_request_holds_names_and_settings_only() -> None:
    """Prefect stores it; whoever adds a field asks whether everybody may see it."""
    assert set(Request.model_fields) == {
        "recommender", "settings", "privacy", "relation", "runs", "confidence", "source", "version"
    }  # fmt: skip


@needs_mlflow
def test_too_few_runs_and_too_large_an_epsilon_are_said_before_any_run(without_servers: None, registry: State) -> None:
    few = audit("pdp-histogram", "--epsilon", "2", "--runs", "100")
    assert few.exit_code == 2
    assert "100 runs are too few" in few.stderr
    assert "Raise --runs" in few.stderr
    large = audit("pdp-histogram", "--epsilon", "40")
    assert large.exit_code == 2
    assert "more than 1,000,000 runs" in large.stderr


@needs_mlflow
def test_within_the_claim_is_a_table_that_fits_and_a_run_to_look_at(audits: dict[str, Any], registry: State) -> None:
    outcome = audit("pdp-histogram", "--epsilon", "0.5", "--runs", "12345", "--confidence", "0.99")
    assert outcome.exit_code == 0, outcome.output
    assert (audits["n_runs"], audits["confidence"]) == (12345, 0.99)
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    (row,) = [line.split() for line in outcome.stdout.splitlines() if line.startswith("pdp-histogram")]
    assert row == ["pdp-histogram", "one", "rating,", "0.5", "0.4", "80%", "40,000", "within"]
    said = " ".join(outcome.stdout.split())
    assert said.startswith("Audited: pdp-histogram ε=0.5 as described, and so not version 1 of books.pdp-histogram or")
    assert "pdp-histogram. All ratings were made up: nothing private was read" in said
    assert "at most 5% of all audits show more). Less is no proof" in said
    assert "Of a mechanism that hides exactly as much as is claimed, so many runs show about ε=0.4" in said
    assert "--runs 400000 shows more" in said
    assert "Noted" not in said
    client = open_tracking(registry)
    experiment = client.get_experiment_by_name("audits")
    (run,) = client.search_runs([experiment.experiment_id], "params.`privacy.epsilon` = '0.5'", max_results=1)
    assert f"run {run.info.run_id[:8]}" in said
    assert "version" not in run.data.tags


@needs_mlflow
def test_more_than_the_claim_is_refused_after_the_table_and_noted_on_the_version(
    audits: dict[str, Any], registry: State
) -> None:
    audits["shows"] = 1.5
    outcome = audit("pdp-histogram", "--source", "films")
    assert outcome.exit_code == 1
    assert "exceeded" in outcome.stdout
    said = " ".join(outcome.stdout.split())
    assert said.startswith("Audited: the code installed here, with the settings of version 2 of films.pdp-histogram")
    assert "This is a proof, at 95%" in said
    assert "What is known of it: docs/guarantees.md#pdp-histogram-unit-rating" in said
    assert "--runs" not in said
    assert "Noted on version 2 of films.pdp-histogram" in said
    (sentence,) = outcome.stderr.splitlines()[-1:]
    assert sentence.startswith(
        "jali: version 2 of films.pdp-histogram exceeds its claim: ε=0.5 is claimed, and ε=0.75 was shown at 95%"
    )
    client = open_tracking(registry)
    assert client.get_model_version("films.pdp-histogram", "2").tags["audit.result"] == "exceeded"
    assert "audit.result" not in client.get_model_version("films.pdp-histogram", "1").tags


@needs_mlflow
def test_what_a_version_claims_nothing_for_is_said_and_not_held_against_it(
    audits: dict[str, Any], registry: State
) -> None:
    audits["shows"] = 4
    outcome = audit("dp-pmf", "--relation", "add_or_remove")
    assert outcome.exit_code == 1
    assert "exceeded" in outcome.stdout
    assert "(unclaimed)" in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    said = " ".join(outcome.stdout.split())
    assert "dp-pmf claims nothing for added or removed ratings; it is audited as if it claimed ε=0.5." in said
    assert "Not noted on version 1 of films.dp-pmf, which claims nothing of the kind." in said
    assert "does not protect added or removed ratings, and does not claim to: ε=2 was shown" in outcome.stderr
    client = open_tracking(registry)
    assert "audit.result" not in client.get_model_version("films.dp-pmf", "1").tags
    audits_of_it = "tags.version = 'version 1 of films.dp-pmf'"
    (run,) = client.search_runs([client.get_experiment_by_name("audits").experiment_id], audits_of_it)
    assert run.data.tags["audit.result"] == "unclaimed"
    assert "dp-pmf claims nothing for added or removed ratings" in run.data.tags["mlflow.note.content"]


@needs_mlflow
def test_a_changed_rating_counts_twice_and_that_is_held_against_a_version(
    audits: dict[str, Any], registry: State
) -> None:
    audits["claim"] = Claim(1.0)
    outcome = audit("pdp-histogram", "--source", "books", "--relation", "replace_value")
    assert outcome.exit_code == 0, outcome.output
    said = " ".join(outcome.stdout.split())
    assert "one removed and one added: what is claimed for either counts twice" in said
    assert "Noted on version 1 of books.pdp-histogram" in said


@needs_mlflow
def test_gaussian_noise_is_explained(audits: dict[str, Any], registry: State) -> None:
    audits |= {"claim": Claim(1.0, 1e-6, 0.2369), "mu": 0.1, "shows": 0.05}
    outcome = audit("pdp-histogram", "--unit", "user", "--epsilon", "1")
    assert outcome.exit_code == 0, outcome.output
    said = " ".join(outcome.stdout.split())
    assert "one user moves a release by at most 0.237 standard deviations; shown: at least 0.1." in said
    assert "without assuming Gaussian noise: ε=0.05" in said


def test_what_is_not_audited_of_a_version_is_said() -> None:
    plain = subject().candidate
    batch = plain.recommender.guarantee(plain.specification, public_catalogue=True, batch="fresh")
    bought = dataclasses.replace(plain, guarantee=batch, metrics=PrivateMetrics(epsilon=2))
    lines = " ".join(claim_lines(trial(0.8, dataclasses.replace(subject(), candidate=bought))))
    assert "The RMSE that it states was paid for separately" in lines
    assert "It is a batch" in lines
    assert claim_lines(trial(0.8)) == []


def test_a_changed_rating_of_a_policy_counts_twice_its_own_epsilon() -> None:
    own = subject(relation=None, epsilon=None, policy=Policy())
    assert any("the own epsilon of the rating" in line for line in claim_lines(trial(0.8, own)))
    changed = dataclasses.replace(own, relation="replace_value")
    assert any("twice the own epsilon of the rating" in line for line in claim_lines(trial(0.8, changed)))


@needs_mlflow
def test_a_version_is_named_as_the_registry_does(audits: dict[str, Any], registry: State) -> None:
    assert audit("films.pdp-histogram").exit_code == 0
    assert str(audits["subject"].version) == "version 2 of films.pdp-histogram"


@needs_mlflow
def test_what_exceeded_and_stands_is_tried_again_before_anything_else(audits: dict[str, Any], registry: State) -> None:
    audits["shows"] = 1.5
    assert audit("pdp-histogram", "--source", "spoilt").exit_code == 1
    assert audits["subject"].pair is None
    again = audit("pdp-histogram", "--source", "spoilt")
    assert audits["subject"].pair.what == "a rating of an item nobody else rated"
    assert "There was no search: tried again was the pair" in " ".join(again.stdout.split())
    audits["shows"] = 0.5
    assert audit("pdp-histogram", "--source", "spoilt").exit_code == 0
    audit("pdp-histogram", "--source", "spoilt")
    assert audits["subject"].pair is None


@needs_mlflow
@pytest.mark.parametrize(("shows", "code"), [(0.8, 3), (1.5, 1)])
def test_what_came_out_is_told_where_mlflow_is_lost_meanwhile(
    shows: float, code: int, audits: dict[str, Any], registry: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise EnvironmentFault("MLflow does not answer.")

    audits["shows"] = shows
    monkeypatch.setattr(flows.audit, "log_audit_task", lost)
    monkeypatch.setattr(flows.audit, "note_audit_task", lost)
    outcome = audit("pdp-histogram", "--source", "books")
    assert outcome.exit_code == code
    assert ("within" if code == 3 else "exceeded") in outcome.stdout
    assert "jali ui" not in outcome.stdout
    sentence = outcome.stderr.splitlines()[-1]
    assert sentence.lower().endswith("what came out is not kept as it should be: mlflow does not answer.")


def test_whoever_interrupts_is_not_told_about_charges(
    audits: dict[str, Any], state: State, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(request: Request) -> None:
        raise KeyboardInterrupt

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(flows.audit, "audit", interrupted)
    monkeypatch.setattr(flows.exits.os, "_exit", leave)
    outcome = audit("pdp-histogram")
    assert outcome.exit_code == 130
    assert outcome.stderr.endswith(
        "jali: interrupted. Nothing private was read, and an audit that did not end is not noted.\n"
    )


@needs_mlflow
def test_without_a_release_and_without_options_it_is_audited_at_epsilon_1(
    audits: dict[str, Any], registry: State
) -> None:
    assert audit("pdp-pmf").exit_code == 0
    assert audits["subject"].candidate.label == "pdp-pmf ε=1"
    assert audits["subject"].version is None


def test_an_mlflow_that_does_not_answer_is_one_sentence(
    audits: dict[str, Any], state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    outcome = audit("pdp-histogram")
    assert outcome.exit_code == 3
    assert "MLflow does not answer" in outcome.stderr
    assert "subject" not in audits


def test_progress_is_told_a_hundredth_at_a_time() -> None:
    told: list[str] = []

    class Ear:
        def stage(self, text: str, steps: int = 1) -> None:
            told.append(f"{text}: {steps}")

        def step(self) -> None:
            told.append(".")

    with listening(Ear()):
        progress = auditing._Hundredths()
        for text, n_runs, portions in (("few", 30, [10] * 3), ("many", 12345, [100] * 123 + [45])):
            progress.begin(text, n_runs)
            for portion in portions:
                progress.count(portion)
    assert "".join(told) == f"few: 100{'.' * 100}many: 100{'.' * 100}"


@needs_mlflow
def test_the_real_command_audits_a_version_and_tags_it(registry: State, shared_prefect: str) -> None:
    options = ("--version", "1", "--runs", "3000", "--confidence", "0.9999")
    command = jali(registry.folder.parent, "audit", "films.pdp-histogram", *options, PREFECT_API_URL=shared_prefect)
    outcome = clean(command)
    assert outcome.returncode == 0, outcome.stderr
    (row,) = [line.split() for line in outcome.stdout.splitlines() if line.startswith("pdp-histogram")]
    assert [row[3], *row[-2:]] == ["0.5", "3,000", "within"]
    assert 0 <= float(row[4]) <= 0.5
    assert "Telling them apart: 100 of 100" in outcome.stderr
    tags = open_tracking(registry).get_model_version("films.pdp-histogram", "1").tags
    assert (tags["audit.result"], tags["audit.epsilon_claimed"], tags["audit.times"]) == ("within", "0.5", "1")
