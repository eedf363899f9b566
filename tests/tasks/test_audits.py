"""What an audit leaves in MLflow and on the version, against a real one; and the gate that reads it."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from models.audit.claim import Claim
from models.errors import EnvironmentFault, Refused, SpecError
from models.release import RELEASE_FILE, Release
from tasks import auditing, audits, model_card
from tasks.audit_figure import least_misses
from tasks.audit_history import HISTORY, LONGEST, History, told_share
from tasks.auditing import Trial, Version, find_version, log_audit, released_subject
from tasks.audits import entry_of, note_audit, require_not_exceeded
from tasks.registry import FROM
from tasks.state import State
from tasks.tracking import open_tracking
from tasks.views import AUDITS
from tests.audited import made_up_registry, subject, trial

registry = made_up_registry
needs_mlflow = pytest.mark.slow  # its tables take seconds to make

AT = datetime(2026, 11, 21, 18, 30, tzinfo=UTC)


def history_after(*trials: Trial, run: str = "r" * 32) -> History:
    history = History()
    for done in trials:
        history = history.after(entry_of(done, run, AT))
    return history


def noted(history: History) -> dict[str, str]:
    return {HISTORY: history.text, **history.tags}


def tags_after(*epsilons: float) -> dict[str, str]:
    """Of a version with a claim of 1 and audits that showed these."""
    return noted(history_after(*map(trial, epsilons)))


def is_refused(tags: dict[str, str]) -> bool:
    try:
        require_not_exceeded(tags)
    except Refused:
        return True
    return False


def test_a_version_whose_latest_audit_exceeded_is_refused_with_what_was_found_and_when() -> None:
    for shown in ((1.3,), (0.8, 1.3)):
        with pytest.raises(
            Refused, match=r"on 2026-11-21 18:30 UTC ε=1.3 was shown .*and ε=1 is claimed\. Mend"
        ) as told:
            require_not_exceeded(tags_after(*shown))
        assert told.value.exit_code == 1


def test_what_exceeded_hides_no_tag_that_somebody_changed() -> None:
    with pytest.raises(Refused, match=r"exceeded its claim.*contradict"):
        require_not_exceeded({**tags_after(1.3), "audit.result": "within"})


def test_a_version_within_its_claim_passes_without_a_word() -> None:
    assert require_not_exceeded(tags_after(0.8)) is None


def test_an_audit_run_again_until_it_passes_shows() -> None:
    told = require_not_exceeded(tags_after(1.3, 1.2, 0.8))
    assert told is not None
    assert "Of 3 audits of this version 2 exceeded its claim, and were taken back" in told


other_neighbours = subject(relation="replace_value")
WEAKER = {
    "fewer runs": trial(0.8, n_runs=39_998),
    "more confidence to reach": trial(0.8, confidence=np.nextafter(0.95, 1)),
    "other neighbours": trial(0.8, other_neighbours, n_runs=1_000_000),
}


@pytest.mark.parametrize("why", WEAKER)
def test_an_audit_that_tries_less_hard_does_not_take_back_what_a_harder_one_found(why: str) -> None:
    history = history_after(trial(1.3), *[WEAKER[why]] * 3)
    assert is_refused(noted(history))
    assert (history.tags["audit.result"], history.tags["audit.times"]) == ("exceeded", "4")
    assert not is_refused(noted(history.after(entry_of(trial(0.8), "run", AT))))


def test_a_weaker_audit_that_exceeds_does_not_make_a_harder_one_easier_to_take_back() -> None:
    hard = trial(1.3, n_runs=1_000_000)
    assert is_refused(noted(history_after(hard, trial(1.1), trial(0.8))))
    assert is_refused(noted(history_after(hard, trial(1.1, other_neighbours), trial(0.8, other_neighbours))))
    assert history_after(hard, trial(1.1)).tags["audit.runs"] == "1000000"
    history = history_after(hard, trial(1.1), trial(0.8))
    assert (history.tags["audit.runs"], history.tags["audit.epsilon_shown"]) == ("1000000", "1.3")
    assert not is_refused(noted(history.after(entry_of(trial(0.8, n_runs=1_000_000), "run", AT))))


def test_an_audit_takes_back_what_was_found_before_it_only() -> None:
    assert is_refused(tags_after(0.8, 0.8, 1.3))
    assert is_refused(noted(history_after(trial(0.8, n_runs=1_000_000), trial(1.3))))


def test_a_quick_audit_does_not_hide_a_thorough_one() -> None:
    history = history_after(trial(0.9, n_runs=400_000), trial(0.1, n_runs=1000))
    assert (history.tags["audit.epsilon_shown"], history.tags["audit.runs"]) == ("0.9", "400000")
    assert history_after(trial(0.9), trial(0.7)).tags["audit.epsilon_shown"] == "0.7"


def test_a_version_remembers_as_much_as_a_tag_holds_and_never_forgets_what_stands() -> None:
    history = history_after(trial(0.9, n_runs=400_000), trial(1.3))
    for n in range(100):
        history = history.after(entry_of(trial(0.5, n_runs=1000 + n), "r" * 32, AT))
        assert len(history.text) <= LONGEST
    assert history.standing == history_after(trial(1.3)).standing
    assert history.past[0].runs == 400_000
    assert history.past[-1].runs == 1099
    assert (history.times, history.times_exceeded) == (102, 1)
    for _ in range(100):
        history = history.after(entry_of(trial(1.2, n_runs=1000), "r" * 32, AT))
    assert history.standing[0].runs == 40_000
    assert (history.times, history.times_exceeded) == (202, 101)


def test_what_stands_and_does_not_fit_is_refused_instead_of_forgotten() -> None:
    histories = [History()]

    def go_on() -> None:
        for n in range(100):  # each harder to take back in one way, and easier in the other
            entry = entry_of(trial(1.3, n_runs=1000 + n, confidence=0.9 + n / 1e4), "r" * 32, AT)
            histories.append(histories[-1].after(entry))

    with pytest.raises(Refused, match="so many audits"):
        go_on()
    assert len(histories[-1].standing) == len(histories) - 1
    assert is_refused(noted(histories[-1]))


def test_a_version_that_nobody_audited_passes_and_is_said_to_be_so() -> None:
    assert "never audited" in (require_not_exceeded({"privacy.epsilon": "1"}) or "")


TAMPERED = ["audit.result", "audit.epsilon_shown", "audit.epsilon_claimed", "audit.runs", "audit.times"]


@pytest.mark.parametrize("name", TAMPERED)
def test_tags_that_contradict_the_history_shut_the_gate(name: str) -> None:
    tags = tags_after(0.8)
    for value in ({name: "1000"}, {name: ""}, {}):
        with pytest.raises(Refused, match=r"contradict audit\.history"):
            require_not_exceeded({**{other: text for other, text in tags.items() if other != name}, **value})
    with pytest.raises(Refused, match=r"contradict audit\.history"):
        require_not_exceeded({name: tags[name]})


def test_a_history_that_somebody_spoilt_shuts_the_gate_in_a_sentence() -> None:
    tags = tags_after(1.3, 0.8)
    whole = json.loads(tags[HISTORY])
    spoilt = [
        "", "null", "{", "[]", "[" * 100_000, "{}x",
        *(json.dumps(whole | change) for change in (
            {"times": 1}, {"times": "2"}, {"times": True}, {"times_exceeded": 0}, {"times_exceeded": 3}, {"more": 1},
            {"standing": [], "past": []}, {"standing": whole["past"], "past": []}, {"past": [{}]},
            {"past": [{**whole["past"][1], "runs": -1}]}, {"past": [{**whole["past"][1], "shown": float("nan")}]},
        )),
    ]  # fmt: skip
    for text in spoilt:
        with pytest.raises(Refused, match=r"audit\.history is not as an audit wrote it|contradict"):
            require_not_exceeded({**tags, HISTORY: text})


def registry_of(tags: dict[str, str], fails_at: int | None = None, **aliases: str) -> SimpleNamespace:
    """A version's tags, of which the write number `fails_at` does not come through; and aliases of what is served."""
    written: list[str] = []

    def write(model: str, number: str, name: str, value: str) -> None:
        if len(written) == fails_at:
            raise OSError(errno.EIO, "broken")
        written.append(name)
        tags[name] = value

    return SimpleNamespace(
        get_model_version=lambda *_: SimpleNamespace(tags=dict(tags)),
        set_model_version_tag=write,
        search_registered_models=lambda _: [SimpleNamespace(name="films.serving", aliases=aliases)],
        written=written,
    )


A_VERSION = Version("films.pdp-histogram", "1", "films")


def note(
    patch: pytest.MonkeyPatch, tags: dict[str, str], done: Trial, fails_at: int | None = None
) -> tuple[str, list[str]]:
    client = registry_of(tags, fails_at)
    patch.setattr(audits, "open_tracking", lambda state: client)
    patch.setattr(audits, "refresh_card", lambda client, name, number: None)
    return note_audit(A_VERSION, done, "run"), client.written


@pytest.mark.parametrize(("before", "then"), [((), 1.3), ((0.8,), 1.3), ((1.3,), 0.8), ((1.3,), 1.2), ((), 0.8)])
def test_noting_that_is_cut_off_anywhere_never_opens_the_gate_and_is_mended_by_the_next(
    before: tuple[float, ...], then: float, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_writes = len(tags_after(0.8))
    for at in range(n_writes):
        tags = tags_after(*before) if before else {}
        with pytest.raises(EnvironmentFault, match="Noting the audit on the version failed"):
            note(monkeypatch, tags, trial(then), fails_at=at)
        was = 1.3 in before
        assert is_refused(tags) == (at > 0 or was), (at, tags)
        if then > 1 and at > 0:
            assert json.loads(tags[HISTORY])["standing"]
        if was and then < 1:
            assert tags["audit.result"] == "exceeded"  # what people see becomes good last
        note(monkeypatch, tags, trial(0.8))
        assert not is_refused(tags)


def test_a_bad_result_is_shown_first_and_a_good_one_last(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    for shown, place in ((1.3, 1), (0.8, -1)):
        _, written = note(monkeypatch, {}, trial(shown))
        assert (written[0], written[place]) == (HISTORY, "audit.result")
        assert sorted(written) == sorted(tags_after(shown))


def test_what_is_noted_is_said(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    tags: dict[str, str] = {}
    assert note(monkeypatch, tags, trial(0.8))[0] == "Noted on version 1 of films.pdp-histogram, in its tags audit.*."
    assert "go on telling of the audit of 40,000 runs" in note(monkeypatch, tags, trial(0.8, n_runs=1000))[0]
    note(monkeypatch, tags, trial(1.3))
    said, _ = note(monkeypatch, tags, trial(0.8, n_runs=1000))
    assert "whose result stays `exceeded`: the audit of" in said
    assert "stands until one of 40,000 runs or more, with --confidence 0.95 or less and the same relation" in said
    assert json.loads(tags[HISTORY])["times"] == 4
    tags[HISTORY] = "?"
    with pytest.raises(Refused, match="Restore it"):
        note(monkeypatch, tags, trial(0.8))


def test_an_audit_is_noted_though_the_card_cannot_tell_of_it(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version has no files, of which its card could be made."""

    def no_files(name: str, number: str) -> Release:
        raise EnvironmentFault(f"version {number} of {name}: MLflow does not find its files. Restore them.")

    tags: dict[str, str] = {}
    monkeypatch.setattr(model_card, "release_of", no_files)
    monkeypatch.setattr(audits, "open_tracking", lambda state: registry_of(tags))
    assert "Its description could not be rewritten" in note_audit(A_VERSION, trial(1.3), "run")
    assert is_refused(tags)


@pytest.mark.parametrize(
    ("shown", "origin", "is_told"),
    [
        (1.3, "films.pdp-histogram/1", True),
        (0.8, "films.pdp-histogram/1", False),
        (1.3, "films.pdp-histogram/2", False),
    ],
)
def test_who_finds_that_the_champion_exceeds_is_told_how_to_take_it_back(
    state: State, monkeypatch: pytest.MonkeyPatch, shown: float, origin: str, is_told: bool
) -> None:
    client = registry_of({FROM: origin}, champion="4")  # of which the audited version's tags are the copy's, too
    monkeypatch.setattr(audits, "open_tracking", lambda state: client)
    monkeypatch.setattr(audits, "refresh_card", lambda client, name, number: None)
    said = note_audit(A_VERSION, trial(shown), "run")
    assert (
        "version 4 of films.serving, the champion, is a copy of it. `jali rollback --source films`" in said
    ) == is_told


def test_audits_that_end_together_are_all_counted(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    tags: dict[str, str] = {}
    client = registry_of(tags)
    read = client.get_model_version

    def slowly(*version: str) -> object:
        found = read(*version)
        time.sleep(0.02)  # the other one would read the same
        return found

    client.get_model_version = slowly
    monkeypatch.setattr(audits, "open_tracking", lambda state: client)
    monkeypatch.setattr(audits, "refresh_card", lambda client, name, number: None)
    monkeypatch.setattr(audits, "PAUSE", 0.005)
    with ThreadPoolExecutor(5) as threads:
        list(threads.map(lambda epsilon: note_audit(A_VERSION, trial(epsilon), "run"), [0.8, 0.8, 1.3, 0.8, 0.8]))
    assert (tags["audit.times"], tags["audit.times_exceeded"]) == ("5", "1")


def test_an_audit_that_is_kept_from_noting_says_so(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "PATIENCE", 0.01)
    with audits._one_at_a_time(), pytest.raises(EnvironmentFault, match="another audit has been noting"):
        note(monkeypatch, {}, trial(0.8))
    note(monkeypatch, {}, trial(0.8))


@pytest.mark.parametrize("share", [0.5, 0.994, 0.9999999, 1.0, 1.0000001, 1.0004, 1.2])
def test_figures_never_contradict_the_verdict(share: float) -> None:
    done = trial(share / 3, claim=Claim(1 / 3))
    assert (float(done.shown_in_words) > done.audited.claim.epsilon) == done.audited.exceeded
    assert (float(told_share(done.audited.share).rstrip("%")) > 100) == done.audited.exceeded
    by_mu = trial(0, subject(unit="user"), Claim(1.0, 1e-6, 0.2366981362912288), mu=share * 0.2366981362912288)
    assert (float(by_mu.shown_in_words) > 1) == by_mu.audited.exceeded
    assert len(told_share(0.9449)) == len("94%")


def test_what_a_mechanism_that_just_keeps_its_claim_would_show_grows_towards_the_claim() -> None:
    users = subject(unit="user")
    for of, claim in ((subject(), Claim(1.0)), (users, Claim(1.0, 1e-6, 0.2367))):
        few, many = (trial(0.1, of, claim, mu=0.1, n_runs=n).epsilon_of_the_worst for n in (4000, 1_000_000))
        assert 0 <= few < many < 1
        assert many > 0.9
    small = trial(0, claim=Claim(0.01), n_runs=1000)
    assert small.epsilon_of_the_worst == 0


def test_gaussian_noise_is_shown_as_the_epsilon_that_its_mu_makes() -> None:
    users = subject(unit="user")
    claim = Claim(1.0, 1e-6, 0.2369)
    as_charged = trial(0.1, users, claim, mu=0.2369)
    assert as_charged.epsilon_shown == pytest.approx(1, abs=1e-3)
    assert trial(0.1, users, claim, mu=0.1).epsilon_shown == pytest.approx(0.38, abs=0.02)
    assert trial(0.1, users, claim, mu=0.0).epsilon_shown == 0.1
    assert not as_charged.audited.exceeded
    assert trial(0.1, users, claim, mu=0.24).audited.exceeded


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
    "a list about it": (lambda document: {**document, "about": ["x"]}, "could not be read as a release"),
    "no scale": (lambda document: {**document, "scale": {"low": 5, "high": 1, "step": 1}}, "could not be read as a"),
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
        run_id = log_audit(done, "As on the terminal.")
        note_audit(version, done, run_id)
        run = client.get_run(run_id)
        assert client.get_experiment(run.info.experiment_id).name == AUDITS
        assert run.info.run_name == f"books.pdp-histogram v1: {result}, {epsilon:g} of 0.5"
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow.note.content"] == "As on the terminal."
        assert run.data.tags["jali"]
        assert run.data.params["setting.threshold"] == "max"
        assert run.data.params["audit.runs"] == "40000"
        assert run.data.metrics["audit.epsilon_claimed"] == 0.5
        assert run.data.metrics["audit.epsilon_shown"] == epsilon
        assert run.data.metrics["audit.runs_per_minute"] == 120_000
        assert run.data.tags["version"] == "version 1 of books.pdp-histogram"
        assert run.data.tags["audit.result"] == result
        again = released_subject(version, "pdp-histogram", None).pair
        assert again == (done.audited.neighbours if result == "exceeded" else None)
        (figure,) = client.list_artifacts(run_id, "figures")
        assert figure.path == "figures/claimed_against_shown.png"
        tags = client.get_model_version("books.pdp-histogram", "1").tags
        assert {name: tags[f"audit.{name}"] for name in ("result", "run")} == {"result": result, "run": run_id}
        assert (tags["audit.epsilon_claimed"], tags["audit.epsilon_shown"]) == ("0.5", f"{epsilon:g}")
    assert (tags["audit.times"], tags["audit.times_exceeded"]) == ("2", "1")
    assert "Of 2 audits of this version 1 exceeded" in (require_not_exceeded(tags) or "")
    assert tags["source"] == "books"


@needs_mlflow
def test_a_run_that_cannot_be_finished_is_marked_as_failed(registry: State, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(auditing, "save_figures", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        log_audit(trial(0.123), "")
    client = open_tracking(registry)
    (run,) = client.search_runs([client.get_experiment_by_name(AUDITS).experiment_id], "metrics.`audit.share` = 0.123")
    assert run.info.status == "FAILED"


@needs_mlflow
def test_a_version_whose_files_are_gone_is_one_sentence_with_a_way_on(registry: State) -> None:
    files = Path("spoilt.pdp-histogram", "artifacts")
    for path in (files, files / "release" / RELEASE_FILE):
        path.rename("away")
        try:
            with pytest.raises(
                EnvironmentFault, match=r"restore them from a backup, or describe .* --epsilon"
            ) as fault:
                released_subject(Version("spoilt.pdp-histogram", "1", "spoilt"), "pdp-histogram", None)
        finally:
            Path("away").rename(path)
        assert str(fault.value).startswith("version 1 of spoilt.pdp-histogram: ")


@needs_mlflow
def test_a_version_that_is_deleted_meanwhile_is_one_sentence(registry: State) -> None:
    with pytest.raises(EnvironmentFault, match=r"version 9 of films\.pdp-histogram"):
        note_audit(Version("films.pdp-histogram", "9", "films"), trial(0.8), "run")
