"""Every gate lets a good version pass, and refuses what it is there for; none hides another."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.batches import batch_bill
from models.batch import BatchKind
from models.errors import EnvironmentFault, Refused
from models.privacy.budget import Budget
from models.privacy.guarantee import Guarantee
from models.private_metrics import PaidMetrics
from models.release import FORMAT, RELEASE_FILE, Release
from tasks import gates
from tasks.audit_history import RESULT
from tasks.clean_process import CleanProcess, clean_process, made_up_requests, require_same_answers, started_early
from tasks.decisions import GATES
from tasks.gates import (
    Champion,
    Finding,
    NotLooked,
    Offered,
    Unwaivable,
    audit_gate,
    budget_gate,
    code_gate,
    load_gate,
    look,
    metric_gate,
    schema_gate,
    verdict_gate,
)
from tasks.ledger import Ledger
from tasks.model_files import CODE, signature_of
from tasks.promotion import open_offered
from tasks.registered import RELEASE_FOLDER, checksum
from tasks.registry import HEAD, LEDGER, RESERVATION
from tasks.state import State
from tasks.tracking import open_tracking
from tasks.views import AUDITS
from tests import promoted
from tests.promoted import NAME, bill_of, candidate, offered

pytestmark = pytest.mark.slow  # MLflow's tables, and three publications

films, published_films = promoted.films, promoted.published_films
PASSED = Finding("code", "pass", "")


@pytest.fixture(scope="module")
def first(published_films: Path, tmp_path_factory: pytest.TempPathFactory) -> Offered:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(published_films.parent)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return offered("1", tmp_path_factory.mktemp("first"))


@pytest.fixture
def good(first: Offered, tmp_path: Path) -> Offered:
    """A version that passes, with its files in a folder of the test's own."""
    return dataclasses.replace(first, folder=Path(shutil.copytree(first.folder, tmp_path / "files")))


def with_tags(version: Offered, **tags: str | None) -> Offered:
    told = {**version.tags, **{name.replace("__", "."): text for name, text in tags.items()}}
    return dataclasses.replace(version, tags={name: text for name, text in told.items() if text is not None})


def with_about(version: Offered, **about: object) -> Offered:
    release = version.readable
    return dataclasses.replace(version, release=dataclasses.replace(release, about={**release.about, **about}))


def promising(version: Offered, verdict: str, **more: object) -> Offered:
    """The version as if it had been released so, tags and files alike."""
    told = {**version.readable.about["guarantee"], "verdict": verdict, **more}
    guarantee = Guarantee.model_validate(told)
    changed = with_about(version, guarantee=guarantee.model_dump(mode="json"))
    return dataclasses.replace(changed, tags={**changed.tags, **guarantee.tags})


def paid(version: Offered, low: float, high: float) -> Offered:
    metrics = PaidMetrics((low + high) / 2, low, high, False, 0.5, 5)
    changed = dataclasses.replace(version, release=metrics.added_to(version.readable))
    return dataclasses.replace(changed, tags={**changed.tags, **metrics.tags})


def champion_of(version: Offered) -> Champion:
    return Champion("1", "films.pdp-histogram/1", version.release, signature_of(version.folder))


# The verdict


def test_a_version_that_is_proven_and_says_so_everywhere_passes(good: Offered) -> None:
    assert verdict_gate(good) == "proven: ε=1 for one rating, add or remove; the tags say what release.json says."


@pytest.mark.parametrize(
    "tags",
    [
        {"privacy__verdict": "conditional"},
        {"privacy__verdict": None},
        {"privacy__epsilon": "0.1"},
        {"privacy__delta": "1e-6"},
        {"privacy__unit": "user"},
        {"privacy__conditions": ""},
        {"privacy__guarantee": "Nobody learns anything."},
        {"source": "books"},
    ],
)
def test_tags_that_say_something_else_than_the_files_are_never_promoted(
    good: Offered, tags: Mapping[str, str | None]
) -> None:
    with pytest.raises(Unwaivable, match=r"the registry and release.json disagree"):
        verdict_gate(with_tags(good, **tags))


@pytest.mark.parametrize("verdict", ["conditional", "broken"])
def test_a_tag_that_calls_proven_what_is_not_deceives_nobody(good: Offered, verdict: str) -> None:
    weak = with_tags(promising(good, verdict), privacy__verdict="proven")
    with pytest.raises(Unwaivable, match=r"disagree \(privacy.verdict\)"):
        verdict_gate(weak)


@pytest.mark.parametrize("verdict", ["conditional", "broken"])
def test_what_is_not_proven_needs_a_reason(good: Offered, verdict: str) -> None:
    weak = promising(good, verdict, weaknesses=["the catalogue was taken from the ratings"])
    found = look("verdict", "", lambda: verdict_gate(weak))
    assert (found.outcome, found.is_final) == ("refused", False)
    assert f"it is {verdict} and not proven: the catalogue was taken from the ratings." in found.found
    assert look("verdict", "a demo", lambda: verdict_gate(weak)).outcome == "waived"


def test_what_promises_nothing_is_never_promoted(good: Offered) -> None:
    found = look("verdict", "please", lambda: verdict_gate(promising(good, "none")))
    assert (found.outcome, found.is_final) == ("refused", True)
    assert "promises nothing" in found.found


def test_metrics_that_nobody_paid_for_cannot_be_written_into_the_tags(good: Offered) -> None:
    with pytest.raises(Unwaivable, match=r"metrics.rmse\)"):
        verdict_gate(with_tags(paid(good, 0.8, 0.9), metrics__rmse="0.1"))


def test_a_version_of_another_recommender_is_found_out(good: Offered) -> None:
    with pytest.raises(Unwaivable, match="its recommender"):
        verdict_gate(with_about(good, recommender="dp-pmf"))


@pytest.mark.parametrize("about", [{"guarantee": {}}, {"guarantee": None}, {"guarantee": {"verdict": "proven"}}])
def test_files_that_do_not_say_what_was_promised_are_refused(good: Offered, about: dict[str, Any]) -> None:
    with pytest.raises(Unwaivable, match="does not say what was promised"):
        verdict_gate(with_about(good, **about))


@pytest.mark.parametrize("metrics", [1, {}, {"rmse": 1}, {"rmse": "0.1", "low": "0", "high": "1", "epsilon": "?"}])
def test_metrics_that_nobody_could_have_been_sold_cannot_be_waived(good: Offered, metrics: object) -> None:
    told = with_about(good, private_metrics=metrics)
    for gate in (lambda: verdict_gate(told), lambda: metric_gate(told, None, None)):
        with pytest.raises(Unwaivable, match="does not say what accuracy was paid for"):
            gate()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda file: file.unlink(), "could not be read as a release"),
        (lambda file: file.write_bytes(file.read_bytes()[:100]), "could not be read as a release"),
        (lambda file: file.write_text(json.dumps({"format": FORMAT + 1})), "a newer Jali wrote it"),
    ],
)
def test_files_that_cannot_be_read_are_told_by_one_gate_and_hide_no_other(
    films: State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], object],
    sentence: str,
) -> None:
    load = Release.load.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Release, "load", classmethod(lambda cls, folder: (damage(folder / RELEASE_FILE), load(cls, folder))[1])
    )
    broken = open_offered("pdp-histogram", "films", "1", tmp_path / "files")
    with pytest.raises(Unwaivable, match=sentence):
        verdict_gate(broken)
    for gate in (lambda: metric_gate(broken, None, None), lambda: schema_gate(broken, None)):
        with pytest.raises(NotLooked):
            gate()
    assert look("audit", "", lambda: audit_gate(broken)).outcome == "pass"


# The budget


def test_a_version_that_was_paid_for_passes_and_is_told_that_nobody_keeps_a_budget(good: Offered, films: State) -> None:
    assert "nobody declared a budget (`jali ledger budget films --epsilon E`)" in budget_gate(good)


def test_within_its_budget_a_version_passes_and_beyond_it_needs_a_reason(
    good: Offered,
    films: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Ledger(films).set_budget("films", Budget(epsilon=3))
    assert "ε=3 is spent or reserved, of ε=3 for each rating (add or remove)." in budget_gate(good)
    monkeypatch.setattr(Ledger, "budget", lambda *_: Budget(epsilon=2.5))
    with pytest.raises(Refused, match=r"ε=3 is spent or reserved on films, and its budget is ε=2.5"):
        budget_gate(good)


@pytest.mark.parametrize(
    ("ends", "sentence"), [("commit", "its run was interrupted"), ("fail", "its charge is"), ("void", "is void: none")]
)
def test_a_charge_that_did_not_end_in_a_publication_cannot_be_waived(
    good: Offered,
    films: State,
    ends: str,
    sentence: str,
) -> None:
    ledger, chosen = Ledger(films), candidate()
    (reservation,) = ledger.reserve([bill_of(chosen)])
    if ends == "void":
        ledger.void(reservation.id, "none")
    else:
        reservation.commit(chosen.name, chosen.recommender.cost(chosen.specification))
    if ends == "fail":
        reservation.close()
    found = look("budget", "please", lambda: budget_gate(with_tags(good, ledger__reservation=reservation.id)))
    assert (found.outcome, found.is_final) == ("refused", True)
    assert sentence in found.found


def test_one_version_cannot_live_on_another_s_charge(good: Offered, films: State, tmp_path: Path) -> None:
    another = offered("2", tmp_path)
    with pytest.raises(Unwaivable, match=r"as one for version 2 of films.pdp-histogram, proven, and"):
        budget_gate(with_tags(good, ledger__reservation=another.tags[RESERVATION]))


@pytest.mark.parametrize(
    "claim", [{"epsilon": 0.5}, {"delta": 1e-9}, {"unit": "user"}, {"relation": "replace_value"}], ids=str
)
def test_files_and_tags_that_promise_more_than_was_paid_for_are_never_promoted(
    good: Offered, films: State, claim: dict[str, Any]
) -> None:
    """Who may write both deceives the verdict, and not the ledger, whose rows are sealed."""
    better = promising(good, "proven", **claim)
    assert verdict_gate(better)
    with pytest.raises(Unwaivable, match="it was not this that was paid for"):
        budget_gate(better)


def test_accuracy_that_was_not_paid_for_is_found_out_by_the_ledger(good: Offered, films: State) -> None:
    with pytest.raises(Unwaivable, match="it was not this that was paid for"):
        budget_gate(paid(good, 0.1, 0.2))


@pytest.mark.parametrize("kind", ["fresh", "corrected", "withdrawal"])
@pytest.mark.parametrize("metrics", [False, True])
def test_a_batch_promises_what_its_bill_says(good: Offered, films: State, kind: BatchKind, metrics: bool) -> None:
    chosen = candidate()
    promise = chosen.recommender.guarantee(chosen.specification, public_catalogue=True, batch=kind)
    told = promising(good, "proven", **promise.model_dump(mode="json", exclude={"verdict"}))
    (charge,) = bill_of(chosen)
    bill = batch_bill(dataclasses.replace(charge, guarantee=promise), chosen.specification, kind)
    if metrics:
        told = paid(told, 0.1, 0.2)
        bill = (*bill, dataclasses.replace(charge, purpose="private metrics"))
    (reservation,) = Ledger(films).reserve([bill])
    reservation.commit(chosen.name, bill[0].event, charge.event if metrics else None)
    reservation.published("version 1")
    assert "paid for" in budget_gate(with_tags(told, ledger__reservation=reservation.id))


@pytest.mark.parametrize("tag", [RESERVATION, LEDGER, HEAD])
def test_a_ledger_that_does_not_know_its_releases_is_doubted(good: Offered, films: State, tag: str) -> None:
    wrong = {RESERVATION: "nobody's", LEDGER: "another", HEAD: "1:other"}[tag]
    open_tracking(films).set_model_version_tag(NAME, "1", tag, wrong)
    with pytest.raises(Refused, match="that this ledger does not know"):
        budget_gate(dataclasses.replace(good, tags={**good.tags, tag: wrong}))


def test_a_version_from_before_somebody_withdrew_needs_a_reason(good: Offered, films: State) -> None:
    ledger, chosen = Ledger(films), candidate()
    (charge,) = bill_of(chosen)
    for name, later in (("dp-pmf", False), ("pdp-histogram", True)):
        withdrawal = dataclasses.replace(charge, recommender=name, purpose="withdrawal", series="x")
        (reservation,) = ledger.reserve([[withdrawal]])
        reservation.commit(name, charge.event)
        reservation.published("version 4")
        found = look("budget", "nobody knows them", lambda: budget_gate(good))
        assert (found.outcome == "waived", "Promote version 4, which does not" in found.found) == (later, later)


def test_a_withdrawal_and_a_budget_that_is_used_up_are_told_together(
    good: Offered, films: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(films)
    (charge,) = bill_of(candidate())
    (reservation,) = ledger.reserve([[dataclasses.replace(charge, purpose="withdrawal", series="x")]])
    reservation.commit(charge.recommender, charge.event)
    reservation.published("version 4")
    monkeypatch.setattr(Ledger, "budget", lambda *_: Budget(epsilon=0.5))
    found = look("budget", "that person agreed", lambda: budget_gate(good))
    assert found.outcome == "waived"
    assert "somebody withdrew from the batches" in found.found
    assert "and its budget is ε=0.5" in found.found
    forged = look("budget", "trust me", lambda: budget_gate(with_tags(good, ledger__reservation="f" * 32)))
    assert (forged.outcome, forged.is_final) == ("refused", True)
    assert "and its budget is ε=0.5" in forged.found


@pytest.mark.parametrize("tag", [None, "f" * 32])
def test_no_reason_makes_a_version_pass_whose_charge_the_ledger_does_not_know(
    good: Offered, films: State, tag: str | None
) -> None:
    found = look("budget", "trust me", lambda: budget_gate(with_tags(good, ledger__reservation=tag)))
    assert (found.outcome, found.is_final) == ("refused", True)
    assert "knows no charge that paid for it" in found.found


def test_a_ledger_that_was_changed_is_one_sentence(
    good: Offered,
    films: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JALI_LEDGER_KEY", "k" * 64)
    found = look("budget", "the key was lost", lambda: budget_gate(good))
    assert found.outcome == "refused"  # what else there is to find, nobody knows
    assert "is not as it was written" in found.found


# The metric


@pytest.mark.parametrize(
    ("interval", "before", "passes"),
    [
        ((0.8, 0.9), (0.7, 0.85), True),
        ((0.8, 0.9), (0.7, 0.8), True),
        ((0.81, 0.9), (0.7, 0.8), False),
        ((0.5, 0.6), (0.7, 0.8), True),
    ],
)
def test_a_version_is_refused_if_it_is_surely_worse_than_the_champion(
    good: Offered, interval: tuple[float, float], before: tuple[float, float], passes: bool
) -> None:
    new, old = paid(good, *interval), champion_of(paid(good, *before))
    assert (look("metric", "", lambda: metric_gate(new, old, None)).outcome == "pass") == passes


@pytest.mark.parametrize(("most", "passes"), [(0.9, True), (0.95, True), (0.89, False), (0.85, False)])
def test_the_whole_interval_has_to_be_within_max_rmse(good: Offered, most: float, passes: bool) -> None:
    found = look("metric", "", lambda: metric_gate(paid(good, 0.8, 0.9), None, most))
    assert (found.outcome == "pass") == passes


def test_without_paid_accuracy_nothing_is_compared_and_max_rmse_is_not_shown(good: Offered) -> None:
    assert metric_gate(good, champion_of(paid(good, 0.1, 0.2)), None) == "no accuracy was paid for; not compared."
    assert "nothing to compare it with" in metric_gate(paid(good, 3, 4), champion_of(good), None)
    with pytest.raises(Refused, match="nothing shows that --max-rmse holds"):
        metric_gate(good, None, 4.0)


def test_no_gate_reads_what_was_not_paid_for(
    good: Offered,
    films: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The internal experiment is never opened: the metric comes from the release alone."""
    from mlflow import MlflowClient

    def spied(*_: Any, **__: Any) -> Any:
        raise AssertionError("a run was looked at")

    def experiment(client: MlflowClient, name: str) -> None:
        assert name == AUDITS  # on made-up ratings

    for name in ("get_run", "search_runs", "get_metric_history"):
        monkeypatch.setattr(MlflowClient, name, spied)
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", experiment)
    for gate in (verdict_gate, budget_gate, audit_gate, code_gate):
        assert gate(good)
    assert metric_gate(good, champion_of(good), None)
    assert schema_gate(good, champion_of(good))


# The audit


def test_an_audit_that_exceeded_stands_in_the_way_and_none_is_only_told(good: Offered, films: State) -> None:
    assert "never audited" in audit_gate(good)
    with pytest.raises(Refused, match="contradict"):
        audit_gate(with_tags(good, audit__result="within"))


@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_audit_that_exceeded_is_remembered_where_its_tags_were_deleted(
    good: Offered, films: State, is_deleted: bool
) -> None:
    client = open_tracking(films)
    experiment = client.create_experiment(AUDITS)
    for version, result in ((str(good), "within"), ("version 2 of films.pdp-histogram", "exceeded")):
        client.create_run(experiment, tags={"version": version, RESULT: result})
    assert "never audited" in audit_gate(good)
    run = client.create_run(experiment, tags={"version": str(good), RESULT: "exceeded"})
    if is_deleted:
        client.delete_run(run.info.run_id)
    with pytest.raises(Refused, match="has 1 audits of the version that exceeded its claim, and its tags know of 0"):
        audit_gate(good)


# The code, and loading it


def test_what_runs_is_compared_with_what_is_shipped(good: Offered) -> None:
    assert code_gate(good) == "what runs is what Jali 0.1.0 ships."


def replaced(file: str, old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    "tamper",
    [
        *(replaced(file, "import", "import os, ") for file in CODE),
        lambda folder: (folder / "more.py").write_text("1"),
        lambda folder: (folder / "python_model.pkl").write_bytes(b"1"),
        lambda folder: (folder / "code" / "numpy.py").write_text("1"),
        lambda folder: (folder / "serve_release.py").unlink(),
        replaced("MLmodel", "mlflow.pyfunc.loaders.code_model", "mlflow.pyfunc.model"),
        replaced("MLmodel", "code: code", "code: code\n    python_model: python_model.pkl"),
        replaced("MLmodel", "serve_release.py", "more.py"),
        replaced("MLmodel", "path: artifacts/release", "path: ../elsewhere"),
        replaced("MLmodel", "flavors:", "flavors:\n  sklearn: {}"),
        replaced("MLmodel", "flavors:", "flavours:"),
        replaced("requirements.txt", "numpy==", "numpy @ https://elsewhere.example/numpy-"),
        replaced("requirements.txt", "mlflow==", "other==1\nmlflow=="),
        replaced("requirements.txt", "mlflow==", "--index-url https://elsewhere.example\nmlflow=="),
        replaced("conda.yaml", "conda-forge", "elsewhere"),
        replaced("conda.yaml", "- numpy==", "- other=="),
        replaced("python_env.yaml", "-r requirements.txt", "-r elsewhere.txt"),
        replaced("python_env.yaml", "- wheel", "- other"),
    ],
)
def test_a_version_that_would_run_or_install_something_else_is_refused_and_not_run(
    good: Offered, tamper: Callable[[Path], object]
) -> None:
    class Nobody(CleanProcess):
        def __init__(self) -> None:
            pass

        def ask(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("it was run")

    before = checksum(good.folder)
    tamper(good.folder)
    assert checksum(good.folder) != before
    code = look("code", "", lambda: code_gate(good))
    assert code.outcome == "refused"
    assert look("load", "", lambda: load_gate(good, code, Nobody())).outcome == "-"


def test_a_reason_for_another_script_is_none_for_other_packages(good: Offered) -> None:
    """A gate is waived as a whole: what it finds is told as a whole, too."""
    for file, old, new in (
        ("serve_release.py", "import", "import os, "),
        ("requirements.txt", "mlflow==", "x==1\nmlflow=="),
    ):
        replaced(file, old, new)(good.folder)
    (good.folder / "more.py").write_text("1")
    found = look("code", "an older Jali wrote it", lambda: code_gate(good)).found
    assert "has more.py" in found
    assert "serve_release.py of the version is not what Jali" in found
    assert "requirements.txt of the version would load or install" in found


class Answering(CleanProcess):
    """Answers as the release does, or with what `spoil` makes of it."""

    def __init__(self, release: Release, spoil: Callable[[dict[str, Any]], object] = lambda answer: None) -> None:
        self.release, self.spoil = release, spoil

    def ask(self, folder: Path, requests: Any, seconds: float = 1) -> Any:
        answers = []
        for request in requests:
            own = {entry["item"]: entry["rating"] for entry in request["ratings"]}
            if "items" in request:
                answer = {"items": request["items"], "ratings": self.release.predict(own, request["items"]).tolist()}
            else:
                best = self.release.recommend(own, request["n"])
                answer = {"items": [item for item, _, _ in best], "ratings": [rating for _, _, rating in best]}
            self.spoil(answer)
            answers.append(answer)
        return answers


@pytest.mark.parametrize(
    "spoil",
    [
        lambda answer: answer.update(ratings=[rating + 1e-3 for rating in answer["ratings"]]),
        lambda answer: answer.update(items=answer["items"][::-1]),
        lambda answer: answer.update(ratings=[]),
        lambda answer: answer.pop("items"),
        lambda answer: answer.update(ratings=["much"]),
        lambda answer: answer.update(ratings=[np.nan] * len(answer["ratings"])),
    ],
)
def test_other_answers_than_the_release_s_own_are_refused(good: Offered, spoil: Callable[..., object]) -> None:
    assert "same answers" in load_gate(good, PASSED, Answering(good.readable))
    with pytest.raises(Refused, match="answers otherwise"):
        load_gate(good, PASSED, Answering(good.readable, spoil))


def test_fewer_answers_than_requests_are_refused(good: Offered) -> None:
    requests = made_up_requests(good.readable)
    answers = Answering(good.readable).ask(good.folder, requests)
    assert require_same_answers(good.readable, requests, answers)
    with pytest.raises(Refused, match="answers otherwise"):
        require_same_answers(good.readable, requests, answers[:-1])


def test_requests_are_made_up_of_public_items_and_the_middle_of_the_scale(good: Offered) -> None:
    first, second, third = made_up_requests(good.readable)
    assert {entry["rating"] for entry in first["ratings"]} == {3.0}
    assert set(second["items"]) <= set(good.readable.items)
    assert third["ratings"] == []
    nothing = dataclasses.replace(good.readable, items=(), titles=())
    assert made_up_requests(nothing)[1]["items"] == []


def test_a_clean_process_knows_no_jali_and_no_password_and_gives_the_same_numbers(
    good: Offered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    script = good.folder / "serve_release.py"
    spy = (
        "import os, sys\n"
        "assert 'hunter2' not in str(os.environ) and not os.listdir()\n"
        "for name in ('models.release', 'tasks', 'flows', 'expectations', 'serving'):\n"
        "    try:\n        __import__(name)\n    except ImportError:\n        continue\n"
        "    raise RuntimeError('Jali is here')\n"
    )
    script.write_text(script.read_text().replace("import mlflow\n", f"import mlflow\n{spy}", 1))
    with started_early(), clean_process() as process:
        assert "same answers to 3" in load_gate(good, PASSED, process)


def test_a_version_that_does_not_load_is_one_sentence_and_one_that_takes_too_long(good: Offered) -> None:
    (good.folder / "MLmodel").write_text("flavors: {}")
    with clean_process() as process, pytest.raises(Refused, match="does not load in a process of its own"):
        process.ask(good.folder, [])
    with clean_process() as process, pytest.raises(Refused, match=r"did not answer within 0.01 seconds"):
        process.ask(good.folder, [], seconds=0.01)


# The schema


def test_a_version_that_is_asked_like_the_champion_passes_and_tells_of_the_catalogue(good: Offered) -> None:
    assert schema_gate(good, None) == f"format {FORMAT}, 8 items; nothing is served yet."
    release = good.readable
    fewer = dataclasses.replace(
        release,
        items=("new", *release.items[1:-1]),
        titles=release.titles[:-1],
        factors=dataclasses.replace(release.factors, V=release.factors.V[:-1], offset=release.factors.offset[:-1]),
    )
    changed = dataclasses.replace(good, release=fewer)
    assert schema_gate(changed, champion_of(good)).endswith("7 items: 1 are new, 2 are gone.")


def test_another_scale_or_other_fields_or_a_champion_that_is_lost_are_refused(good: Offered) -> None:
    champion = champion_of(good)
    half = dataclasses.replace(good, release=dataclasses.replace(good.readable, step=0.5))
    with pytest.raises(Refused, match=r"its scale is 1:5:0.5, and that of the champion films.pdp-histogram/1 is 1:5:1"):
        schema_gate(half, champion)
    with pytest.raises(Refused, match="other fields"):
        schema_gate(good, dataclasses.replace(champion, signature={"inputs": "[]", "outputs": "[]"}))
    with pytest.raises(Refused, match="the champion's files cannot be read"):
        schema_gate(good, dataclasses.replace(champion, release=None))
    with pytest.raises(Refused, match=r"other fields .* Moreover: its scale is"):
        schema_gate(half, dataclasses.replace(champion, signature={"inputs": "[]", "outputs": "[]"}))


@pytest.mark.parametrize("text", ["", "signature: null", "[", "signature: {inputs: x}", "- 1"])
def test_an_mlmodel_that_says_nothing_of_the_fields_is_refused(good: Offered, text: str) -> None:
    (good.folder / "MLmodel").write_text(text)
    with pytest.raises(Refused, match="does not say what it takes and gives"):
        schema_gate(good, champion_of(good))


# All of them


def test_a_gate_that_breaks_refuses_and_hides_no_other(good: Offered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "require_not_exceeded", lambda _: 1 / 0)
    found = look("audit", "why not", lambda: audit_gate(good))
    assert (found.outcome, found.is_final) == ("refused", True)
    assert "The gate audit failed (ZeroDivisionError)" in found.found


def test_a_waiver_of_what_passes_changes_nothing(good: Offered) -> None:
    assert look("verdict", "why not", lambda: verdict_gate(good)).outcome == "pass"


def test_a_gate_that_could_not_look_is_not_waived() -> None:
    def lost() -> str:
        raise EnvironmentFault("MLflow does not answer.")

    assert look("budget", "", lost) == Finding("budget", "refused", "MLflow does not answer.", is_final=True)


def test_there_are_seven_gates_in_their_order() -> None:
    assert GATES == ("verdict", "budget", "metric", "audit", "code", "load", "schema")


def test_the_checksum_is_of_names_and_contents_and_not_of_what_loading_leaves(good: Offered) -> None:
    before = checksum(good.folder)
    (good.folder / "registered_model_meta").write_text("MLflow notes where it came from")
    (good.folder / "code" / "__pycache__").mkdir()
    (good.folder / "code" / "__pycache__" / "release.cpython-311.pyc").write_bytes(b"what Python made of it")
    assert checksum(good.folder) == before
    items = good.folder / RELEASE_FOLDER / RELEASE_FILE
    items.rename(items.with_name("other.json"))
    assert checksum(good.folder) != before
