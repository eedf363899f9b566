"""`jali promote` and `jali rollback`: in this process without servers, and once for real."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

import flows.promote
import flows.promotion_commands
from flows.cli import app
from flows.promote import Decision
from flows.promote_view import decision_markdown, refusal
from flows.promotion_requests import Promotion, make_promotion, make_rollback
from models.errors import EnvironmentFault, NotPromoted, Refused, SpecError
from tasks.clean_process import CleanProcess
from tasks.decisions import GATES, Who
from tasks.gates import Finding
from tasks.lease import lease
from tasks.promotion import LAST_REFUSAL, Aliases
from tasks.rollback import Way, require_servable
from tasks.state import State
from tasks.tracking import open_tracking
from tests import promoted
from tests.command import clean, jali
from tests.promoted import NAME, SERVING, aliases_of
from tests.tasks.test_gates import Answering

needs_mlflow = pytest.mark.slow  # its tables, and three publications

films, published_films = promoted.films, promoted.published_films


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flows and their tasks as the functions that they are; what they leave in Prefect."""
    left: list[str] = []

    @contextlib.contextmanager
    def no_prefect() -> Iterator[Any]:
        yield lambda: None

    @contextlib.contextmanager
    def no_process() -> Iterator[CleanProcess | None]:
        yield None

    def answers(offered: Any, code: Finding, process: object) -> str:
        return flows_load_gate(offered, code, Answering(offered.readable))

    flows_load_gate = flows.promote.load_gate
    monkeypatch.setattr(flows.promotion_commands, "_prefect", no_prefect)
    monkeypatch.setattr(flows.promotion_commands, "started_early", contextlib.nullcontext)
    monkeypatch.setattr(flows.promote, "clean_process", no_process)
    monkeypatch.setattr(flows.promote, "load_gate", answers)
    for name in ("promote", "rollback"):
        monkeypatch.setattr(flows.promote, name, getattr(flows.promote, name).fn.__wrapped__)
    monkeypatch.setattr(flows.promote, "whole", lambda value: value)
    for name in [name for name in vars(flows.promote) if name.endswith("_task")]:
        monkeypatch.setattr(flows.promote, name, getattr(flows.promote, name).fn)
    monkeypatch.setattr(flows.promote, "leave_decision_task", lambda source, markdown: left.append(markdown))
    return left


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("magic",), "RECOMMENDER is one of pmf, dp-pmf, pdp-pmf, pdp-histogram; found 'magic'."),
        (("serving",), "found 'serving'"),
        (("films.serving",), "found 'films.serving'"),
        (("pdp-histogram", "0"), "VERSION is a whole number, 1 or more, as the registry counts them; found '0'."),
        (("pdp-histogram", "newest"), "VERSION is a whole number"),
        (("pdp-histogram", "1.5"), "VERSION is a whole number"),
        (("pdp-histogram", "--max-rmse", "much"), "--max-rmse is a number above 0, in rating units; found 'much'."),
        (("pdp-histogram", "--max-rmse", "nan"), "--max-rmse is a number above 0"),
        (("pdp-histogram", "--max-rmse", "0"), "--max-rmse is a number above 0"),
        (
            ("pdp-histogram", "--waive", "taste=good"),
            "there is no gate 'taste' to waive. The gates are verdict",
        ),
        (("pdp-histogram", "--waive", "audit"), "the gate audit is waived with a reason, --waive audit=REASON"),
        (("pdp-histogram", "--waive", "audit= "), "the gate audit is waived with a reason"),
        (("pdp-histogram", "--waive", f"audit={'x' * 501}"), "of 1 to 500 characters"),
        (("pdp-histogram", "--waive", "verdict=a", "--accept-unproven", "b"), "the gate verdict is waived twice"),
        (("pdp-histogram", "--because", " "), "--because says why, in 1 to 500 characters"),
        (("pdp-histogram", "--source", "a/b"), "a source is called by letters"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(
    decisions: list[str], state: State, arguments: tuple[str, ...], sentence: str
) -> None:
    outcome = command("promote", *arguments)
    assert outcome.exit_code == 2
    assert sentence in " ".join(outcome.stderr.split())
    assert decisions == []


def test_a_rollback_asked_wrongly_is_one_sentence_too(decisions: list[str], state: State) -> None:
    outcome = command("rollback", "--to", "the one before")
    assert outcome.exit_code == 2
    assert "--to is a version of SOURCE.serving: a whole number, 1 or more" in outcome.stderr


def test_a_source_may_stand_before_the_recommender() -> None:
    asked = make_promotion("films.csv.pdp-histogram", [], None, {"version": "3"})
    assert (asked.source, asked.recommender, asked.version) == ("films.csv", "pdp-histogram", "3")


def test_a_promotion_is_a_form_in_prefect_that_says_which_gates_there_are() -> None:
    schema = Promotion.model_json_schema()
    assert set(schema["properties"]) == {"recommender", "version", "source", "dry_run", "waive", "why", "max_rmse"}
    assert schema["properties"]["waive"]["propertyNames"]["enum"] == list(GATES)
    with pytest.raises(ValueError, match="taste"):
        Promotion.model_validate({"recommender": "pdp-histogram", "waive": {"taste": "good"}})


@needs_mlflow
def test_the_newest_version_is_promoted_then_rolled_back_and_each_is_recorded(
    decisions: list[str], films: State
) -> None:
    first = command("promote", "pdp-histogram", "1", "--because", "the first one")
    assert first.exit_code == 0, first.stderr
    assert [line.split()[:2] for line in first.stdout.splitlines()[1:8]] == [[gate, "pass"] for gate in GATES]
    assert f"{NAME}/1 is the champion of films now, as version 1 of {SERVING}; nothing was served" in first.stdout
    second = command("promote", "pdp-histogram")
    assert f"{NAME}/3 is the champion of films now" in second.stdout
    assert f"jali rollback --source films   brings {NAME}/1 back" in second.stdout
    again = command("promote", "pdp-histogram")
    assert (again.exit_code, again.stdout.splitlines()[0]) == (
        0,
        f"{NAME}/3 is the champion of films already. Nothing was changed.",
    )
    back = command("rollback", "--because", "it was worse")
    assert back.exit_code == 0, back.stderr
    assert f"{NAME}/1 is the champion of films again" in back.stdout
    assert aliases_of(films) == Aliases("1", "2")
    titles = [markdown.splitlines()[0] for markdown in decisions]
    assert titles == [f"# {NAME}/1: promoted", f"# {NAME}/3: promoted", f"# {NAME}/1: rolled back to"]
    assert "- why: the first one" in decisions[0]
    assert "- why: it was worse" in decisions[2]


@needs_mlflow
def test_a_refusal_shows_every_gate_is_recorded_and_changes_nothing_that_is_served(
    decisions: list[str], films: State
) -> None:
    client = open_tracking(films)
    client.set_model_version_tag(NAME, "3", "audit.result", "within")
    outcome = command("promote", "pdp-histogram", "--max-rmse", "1", "--waive", "audit=the tag is a test's")
    assert outcome.exit_code == 1
    rows = [line.split()[:2] for line in outcome.stdout.splitlines() if line.split(" ")[0] in GATES]
    assert dict(rows) == {**dict.fromkeys(GATES, "pass"), "metric": "refused", "audit": "waived"}
    assert "Waived: the tag is a test's" in " ".join(outcome.stdout.split())
    assert f"{NAME}/3 is refused by the gate metric; nothing is served. Mend what they found" in outcome.stderr
    assert "--waive metric=REASON" in outcome.stderr
    assert LAST_REFUSAL in client.get_model_version(NAME, "3").tags
    assert client.search_registered_models(f"name = '{SERVING}'") == []
    (markdown,) = decisions
    assert markdown.startswith(f"# {NAME}/3: refused")


@needs_mlflow
def test_a_dry_run_changes_nothing_whatever_it_finds(decisions: list[str], films: State) -> None:
    before = films.tracking_database.read_bytes()
    good = command("promote", "pdp-histogram", "--dry-run")
    assert (good.exit_code, f"{NAME}/3 would be promoted. Nothing was changed" in good.stdout) == (0, True)
    bad = command("promote", "pdp-histogram", "--dry-run", "--max-rmse", "1")
    assert (bad.exit_code, "would be refused by the gate metric" in bad.stderr) == (1, True)
    assert films.tracking_database.read_bytes() == before
    assert decisions == []


@needs_mlflow
def test_what_is_not_there_is_said_with_what_is(decisions: list[str], films: State) -> None:
    for arguments, code, sentence in (
        (("promote", "dp-pmf"), 2, "no source has a version of dp-pmf here"),
        (("promote", "pdp-histogram", "9"), 2, "films.pdp-histogram has no version 9; it has 1, 2, 3"),
        (("promote", "pdp-histogram", "--source", "books"), 2, "books does not have a version"),
        (("rollback",), 2, "no source has a champion here"),
    ):
        outcome = command(*arguments)
        assert (outcome.exit_code, sentence in outcome.stderr) == (code, True), outcome.stderr
    command("promote", "pdp-histogram")
    outcome = command("rollback")
    assert (outcome.exit_code, "nothing was champion of films before" in outcome.stderr) == (1, True)


@needs_mlflow
def test_who_comes_second_is_refused_at_once_and_told_of_the_first(decisions: list[str], films: State) -> None:
    open_tracking(films).create_registered_model(SERVING)
    with lease(films, "changing what films serves", "ann"):
        for arguments in (("promote", "pdp-histogram"), ("rollback",)):
            outcome = command(*arguments)
            assert outcome.exit_code == 1
            assert "changing what films serves is under way already: ann began it at" in outcome.stderr
        assert command("promote", "pdp-histogram", "--dry-run").exit_code == 0
    assert decisions == []


@needs_mlflow
@pytest.mark.parametrize("lost", ["the artifact", "the flow's last state", "an interrupt"])
def test_what_is_served_is_told_though_prefect_is_lost_or_somebody_interrupts(
    decisions: list[str], films: State, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Whoever is told that a rollback failed does it again, which undoes it."""

    def losing(*_: Any) -> None:
        raise OSError("the server is gone")

    def ending(flow: Any) -> Any:
        def ended(request: Any) -> None:
            flow(request)
            raise KeyboardInterrupt if lost == "an interrupt" else OSError("the server is gone")

        return ended

    command("promote", "pdp-histogram", "1")
    for name in ("promote", "rollback"):
        if lost == "the artifact":
            monkeypatch.setattr(flows.promote, "leave_decision_task", losing)
        else:
            monkeypatch.setattr(flows.promote, name, ending(getattr(flows.promote, name)))
    monkeypatch.setattr("flows.exits.os._exit", sys.exit)
    for arguments, sentence in (
        (("promote", "pdp-histogram", "2"), f"{NAME}/2 is the champion of films now"),
        (("rollback",), f"{NAME}/1 is the champion of films again"),
    ):
        outcome = command(*arguments)
        assert sentence in outcome.stdout
        assert ("Prefect did not keep the decision as an artifact" in outcome.stdout) == (lost == "the artifact")
        assert (outcome.exit_code == 0) == (lost == "the artifact")
    assert "makes version N the champion, whichever it is" in outcome.stderr or lost != "an interrupt"
    assert aliases_of(films) == Aliases("1", "2")


@needs_mlflow
def test_a_rollback_to_what_the_gates_would_refuse_now_needs_a_reason(decisions: list[str], films: State) -> None:
    for number in ("1", "2"):
        command("promote", "pdp-histogram", number)
    open_tracking(films).set_model_version_tag(NAME, "1", "audit.result", "exceeded")
    refused = command("rollback")
    assert (refused.exit_code, "contradict" in refused.stderr) == (1, True)
    assert aliases_of(films) == Aliases("2", "1")
    done = command("rollback", "--because", "the other one answers nothing")
    assert done.exit_code == 0, done.stderr
    assert "Since it was promoted, something was found about it: the version's tags audit.*" in done.stdout
    assert "something was found about it" in decisions[-1]


def decision(*findings: Finding, **more: Any) -> Decision:
    return Decision("films", f"{NAME}/3", Who("ann", "today", ""), findings, "refused", **more)


def test_a_refusal_says_what_may_be_waived_and_what_never() -> None:
    audit, schema = (Finding(gate, "refused", "why | not") for gate in ("audit", "schema"))
    told = refusal(decision(audit, schema, champion=f"{NAME}/1"))
    assert f"refused by the gates audit and schema; {NAME}/1 stays the champion." in told
    assert "--waive audit=REASON --waive schema=REASON." in told
    final = dataclasses.replace(audit, gate="verdict", waiver="please", is_final=True)
    assert refusal(decision(final, schema)).endswith("What verdict found cannot be waived.")
    assert "| verdict | refused | why \\| not This cannot be waived. |" in decision_markdown(decision(final))


def test_a_refusal_keeps_what_the_gates_found_and_survives_being_stored() -> None:
    refused = NotPromoted("no", decision())
    assert isinstance(refused, Refused)
    again = refused.__reduce__()
    assert str(again[0](*again[1])) == "no"


@pytest.mark.parametrize("told", [{"to": "x"}, {"why": ""}, {"source": "audits"}])
def test_a_rollback_is_understood_or_refused(told: dict[str, str | None]) -> None:
    with pytest.raises(SpecError):
        make_rollback(told)


@needs_mlflow
def test_mlflow_that_is_lost_is_an_environment_s_fault(
    decisions: list[str], films: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> Any:
        raise EnvironmentFault("MLflow does not answer.")

    monkeypatch.setattr(flows.promote, "find_offered_task", lost)
    outcome = command("promote", "pdp-histogram")
    assert (outcome.exit_code, outcome.stderr) == (3, "jali: MLflow does not answer.\n")


@needs_mlflow
def test_the_real_command_promotes_what_then_can_be_served(films: State, shared_prefect: str) -> None:
    outcome = clean(jali(films.folder.parent, "promote", "pdp-histogram", PREFECT_API_URL=shared_prefect))
    assert outcome.returncode == 0, outcome.stderr
    assert "a process without Jali loaded it" in " ".join(outcome.stdout.split())
    assert aliases_of(films) == Aliases("1")
    require_servable("films", Way(Aliases(), "1", "", ""), films.folder / "files")  # loading it left its files alone
