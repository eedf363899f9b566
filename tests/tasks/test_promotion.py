"""What is served, after every decision and after every kill; and that a copy of a version confuses nobody."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.errors import EnvironmentFault, Refused, SpecError
from models.release import Release
from tasks import decisions, rollback
from tasks.audit_history import HISTORY as AUDITS_OF_A_VERSION
from tasks.audit_history import History
from tasks.auditing import find_version
from tasks.audits import entry_of
from tasks.batches import release_before
from tasks.decisions import HISTORY, WAS_CHAMPION, Who, history_with
from tasks.gates import Finding
from tasks.lease import lease
from tasks.ledger import Ledger
from tasks.promotion import (
    AT,
    BY,
    CHECKSUM,
    CONDITION,
    CONDITION_TAG,
    LAST_REFUSAL,
    LONGEST_FOUND,
    REPLACES,
    RESULTS,
    WAIVED,
    WHY,
    Aliases,
    copy_that_serves,
    find_offered,
    find_serving,
    note_refusal,
    open_champion,
    serve,
)
from tasks.publishing import published_version, take_back, versions_paid_by
from tasks.registered import CHAMPION
from tasks.registry import FROM, RESERVATION, require_same_ledger
from tasks.released import newest_release
from tasks.rollback import ROLLED_BACK, Way, require_nothing_since, require_servable, roll_back, way_back
from tasks.state import State
from tasks.tracking import open_tracking
from tasks.voiding import void
from tests import promoted
from tests.audited import trial
from tests.promoted import FINDINGS, NAME, SERVING, WHO, aliases_of, offered, promote

pytestmark = pytest.mark.slow  # MLflow's tables, and three publications

films, published_films = promoted.films, promoted.published_films
served, served_films = promoted.served, promoted.served_films


def tags_of(state: State, number: str, name: str = SERVING) -> dict[str, str]:
    return dict(open_tracking(state).get_model_version(name, number).tags)


def rolled_back(state: State, to: str | None = None, who: Who = WHO) -> Way:
    with lease(state, "changing what films serves", who.name) as held:
        way = way_back("films", to)
        roll_back("films", way, who, held)
    return way


def test_the_champion_is_a_copy_that_says_what_it_is_and_who_made_it_so(films: State) -> None:
    assert promote(films, "1") == "1"
    assert aliases_of(films) == Aliases("1", None)
    tags, original = tags_of(films, "1"), tags_of(films, "1", NAME)
    assert original.items() <= tags.items()
    assert (tags[FROM], tags[REPLACES], tags[BY], tags[AT], tags[WHY]) == (f"{NAME}/1", "", "me", WHO.at, "because")
    assert tags[f"{WAIVED}audit"] == "it was chance"
    assert json.loads(tags[RESULTS]) == {"verdict": ["pass", "proven"], "audit": ["waived", "x" * LONGEST_FOUND]}
    assert tags[CONDITION_TAG] == CONDITION
    assert tags[CHECKSUM].startswith("sha256:")
    version = open_tracking(films).get_model_version(SERVING, "1")
    assert version.source == f"models:/{NAME}/1"
    assert "it was chance" in version.description
    assert "jali rollback" in open_tracking(films).get_registered_model(SERVING).description


def card_of(state: State, number: str) -> str:
    return str(open_tracking(state).get_model_version(SERVING, number).description)


def test_what_was_champion_becomes_previous_and_a_rollback_changes_the_two(films: State) -> None:
    promote(films, "1")
    promote(films, "3")
    assert aliases_of(films) == Aliases("2", "1")
    assert tags_of(films, "2")[REPLACES] == "1"
    later = Who("you", "2026-11-22 12:00:00 UTC", "it was worse")
    assert rolled_back(films, who=later) == Way(Aliases("2", "1"), "1", f"{NAME}/3", f"{NAME}/1")
    assert aliases_of(films) == Aliases("1", "2")
    assert [tags_of(films, "2")[tag] for tag in ROLLED_BACK] == ["you", later.at, "it was worse"]
    assert "it was worse" in card_of(films, "2")
    rolled_back(films)
    assert aliases_of(films) == Aliases("2", "1")
    assert "it was worse" not in card_of(films, "2")
    assert not set(ROLLED_BACK) & set(tags_of(films, "2"))


def test_a_version_that_was_served_before_is_not_copied_twice_and_says_what_holds_now(served: State) -> None:
    rolled_back(served)
    client = open_tracking(served)
    client.set_model_version_tag(NAME, "2", "audit.note", "noted since")
    client.set_model_version_tag(NAME, "2", LAST_REFUSAL, "{}")
    with_reason = Who("you", "later", "")
    assert promote(served, "2", with_reason, FINDINGS[:1]) == "2"
    assert aliases_of(served) == Aliases("2", "1")
    tags = tags_of(served, "2")
    assert (tags["audit.note"], tags[BY], tags[WHY]) == ("noted since", "you", "")
    assert not {f"{WAIVED}audit", LAST_REFUSAL, *ROLLED_BACK} & set(tags)
    assert len(client.search_model_versions(f"name = '{SERVING}'")) == 2


def test_a_number_that_comes_again_is_another_version(served: State, monkeypatch: pytest.MonkeyPatch) -> None:
    assert copy_that_serves(offered("1", served.folder / "a")) == "1"
    assert copy_that_serves(offered("3", served.folder / "b")) is None
    from mlflow import MlflowClient

    where = MlflowClient.get_model_version_download_uri
    monkeypatch.setattr(
        MlflowClient,
        "get_model_version_download_uri",
        lambda self, name, number: where(self, name, number) + ("" if name == SERVING else "/made/anew"),
    )
    assert copy_that_serves(offered("1", served.folder / "c")) is None


def test_tags_that_are_changed_after_the_gates_looked_are_not_served(served: State) -> None:
    looked_at = offered("3", served.folder / "files")
    open_tracking(served).set_model_version_tag(NAME, "3", "audit.result", "exceeded")
    with (
        lease(served, "changing what films serves", "me") as held,
        pytest.raises(
            Refused, match=r"the tags of version 3 of films.pdp-histogram were changed while the gates looked"
        ),
    ):
        serve(looked_at, FINDINGS, aliases_of(served), WHO, held)
    assert what_answers(served) == "2"
    assert len(open_tracking(served).search_model_versions(f"name = '{SERVING}'")) == 2


def test_a_version_brings_no_decision_along_that_nobody_made(films: State) -> None:
    client = open_tracking(films)
    for tag in (f"{WAIVED}verdict", WAS_CHAMPION, HISTORY, ROLLED_BACK[0], "promotion.more"):
        client.set_model_version_tag(NAME, "1", tag, "forged")
    promote(films, "1")
    assert "forged" not in tags_of(films, "1").values()
    assert client.get_model_version(SERVING, "1").description.count("forged") == 0


def decisions_on(state: State, number: str) -> list[tuple[str, str]]:
    return [(told["what"], told["by"]) for told in json.loads(tags_of(state, number)[HISTORY])]


def test_no_decision_about_a_version_is_forgotten(served: State) -> None:
    rolled_back(served, who=Who("ann", "later", "it was worse"))
    promote(served, "2", Who("bob", "later still", ""))
    assert decisions_on(served, "2") == [("promoted", "me"), ("taken back", "ann"), ("promoted", "bob")]
    assert decisions_on(served, "1") == [
        ("promoted", "me"),
        ("replaced", "me"),
        ("brought back", "ann"),
        ("replaced", "bob"),
    ]
    assert not set(ROLLED_BACK) & set(tags_of(served, "2"))


def test_of_too_many_decisions_the_newest_are_kept() -> None:
    tags: dict[str, str] = {}
    for n in range(100):
        tags |= history_with(tags, "promoted", Who(str(n), "now", "é" * 500), "x" * 5000)
        assert len(tags[HISTORY]) <= decisions.LONGEST
    assert json.loads(tags[HISTORY])[-1]["by"] == "99"
    for spoilt in ("", "3", "{", "[" * 100_000):
        assert len(json.loads(history_with({HISTORY: spoilt}, "promoted", WHO)[HISTORY])) == 1


# Cut off anywhere


@contextmanager
def as_before(state: State) -> Iterator[None]:
    """What the block does to the registry is taken back."""
    with (
        closing(sqlite3.connect(":memory:")) as before,
        closing(sqlite3.connect(state.tracking_database)) as now,
    ):
        now.backup(before)
        yield
        before.backup(now)


class Killed(BaseException):
    """What comes of a SIGKILL: no more writes."""


WRITES = (
    "create_registered_model",
    "create_model_version",
    "update_model_version",
    "set_model_version_tag",
    "delete_model_version_tag",
    "set_registered_model_alias",
)


def cut_off(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """MLflow takes so many writes, and then the process is killed."""
    from mlflow import MlflowClient

    told = SimpleNamespace(writes=0)

    def counted(write: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if told.writes >= after:
                raise Killed
            told.writes += 1
            return write(*arguments, **named)

        return wrapped

    for name in WRITES:
        monkeypatch.setattr(MlflowClient, name, counted(getattr(MlflowClient, name)))


def what_answers(state: State) -> str:
    """Which version the champion is a copy of; its files are there."""
    champion = aliases_of(state).champion
    assert champion is not None
    open_champion("films", state.folder.parent / "looked")[1].release.recommend({}, 3)  # type: ignore[union-attr]
    shutil.rmtree(state.folder.parent / "looked")
    return tags_of(state, champion)[FROM].rpartition("/")[2]


def test_a_promotion_that_is_killed_at_any_write_leaves_what_was_served_and_the_way_back(
    served: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: 2 is champion and 1 previous. However far the promotion of 3 came, a rollback then leads to what
    it should, and the promotion can be done again."""
    for after in range(7):  # the registered model (it is there), copy, card, two of the end, previous, champion
        with as_before(served):
            with monkeypatch.context() as patch:
                cut_off(patch, after)
                with pytest.raises(Killed):
                    promote(served, "3")
            assert what_answers(served) == "2"
            assert way_back("films", None).reached == f"{NAME}/1"
            promote(served, "3")
            assert what_answers(served) == "3"
            assert way_back("films", None).reached == f"{NAME}/2"
            assert len(open_tracking(served).search_model_versions(f"name = '{SERVING}'")) == 3
    cut_off(monkeypatch, 7)
    promote(served, "3")


def test_a_rollback_that_is_killed_at_any_write_can_be_done_again(
    served: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    for after in range(9):  # replaces, history, three of who and why, two of the end, previous, champion
        with as_before(served):
            with monkeypatch.context() as patch:
                cut_off(patch, after)
                with pytest.raises(Killed):
                    rolled_back(served)
            assert what_answers(served) == "2"
            assert rolled_back(served).reached == f"{NAME}/1"
            assert aliases_of(served) == Aliases("1", "2")
    cut_off(monkeypatch, 11)  # and two cards, when all is settled
    rolled_back(served)


def test_a_second_promotion_that_came_between_is_found_out(films: State) -> None:
    promote(films, "1")
    before = aliases_of(films)
    promote(films, "2")
    with lease(films, "changing what films serves", "me") as held, pytest.raises(Refused, match="changed meanwhile"):
        serve(offered("3", films.folder / "files"), FINDINGS, before, WHO, held)
    assert what_answers(films) == "2"


def test_nothing_moves_once_the_lease_was_lost(served: State) -> None:
    with lease(served, "changing what films serves", "the slow", seconds=0.0) as slow:
        promote(served, "3")
        with pytest.raises(Refused, match="somebody else began it meanwhile"):
            serve(offered("1", served.folder / "files"), FINDINGS, aliases_of(served), WHO, slow)
    assert what_answers(served) == "3"


def test_what_mlflow_loses_as_the_champion_moves_is_done_again_and_not_undone(
    served: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alias moves, and its answer is lost: `jali rollback` once more would bring back what was taken back."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    move = MlflowClient.set_registered_model_alias

    def moved_and_lost(client: MlflowClient, name: str, alias: str, version: str) -> None:
        move(client, name, alias, version)
        if alias == CHAMPION:
            raise MlflowException("lost")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_registered_model_alias", moved_and_lost)
        with pytest.raises(
            EnvironmentFault, match=r"`jali rollback --source films --to 1` makes it that, however it is"
        ):
            rolled_back(served)
    with pytest.raises(Refused, match=r"version 1 of films\.serving is the champion already"):
        rolled_back(served, "1")
    assert what_answers(served) == "1"


@pytest.mark.parametrize("lost", ["refresh_card", "delete_model_version_tag"])
def test_nothing_that_follows_a_rollback_says_that_it_failed(
    served: State, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    from mlflow import MlflowClient

    rolled_back(served)
    monkeypatch.setattr(rollback, "refresh_card", lambda *_: None)
    monkeypatch.setattr(*((rollback, lost) if lost == "refresh_card" else (MlflowClient, lost)), lambda *_: 1 / 0)
    with lease(served, "changing what films serves", "me") as held:
        told = roll_back("films", way_back("films", None), WHO, held)
    assert "The description of version 2 of films.serving could not be rewritten, and tells of before." in told
    assert what_answers(served) == "2"


# The way back


def test_what_exceeded_since_is_brought_back_for_a_reason_alone(served: State) -> None:
    client, nobody = open_tracking(served), Who("ann", "now", "")
    way = way_back("films", None)
    assert require_nothing_since("films", way, nobody) == ""
    history = History().after(entry_of(trial(1.3), "run", datetime(2026, 11, 21, tzinfo=UTC)))
    for name, text in {AUDITS_OF_A_VERSION: history.text, **history.tags}.items():
        client.set_model_version_tag(NAME, "1", name, text)
    with pytest.raises(
        Refused, match=r"found about films.pdp-histogram/1: .*ε=1.3 was shown.* say with --because TEXT"
    ):
        require_nothing_since("films", way, nobody)
    found = require_nothing_since("films", way, WHO)
    with lease(served, "changing what films serves", "me") as held:
        roll_back("films", way, WHO, held, found)
    assert "ε=1.3 was shown" in json.loads(tags_of(served, "1")[HISTORY])[-1]["although"]


def test_what_somebody_withdrew_from_since_is_brought_back_for_a_reason_alone(served: State) -> None:
    (charge,) = promoted.bill_of(promoted.candidate())
    (withdrawal,) = Ledger(served).reserve([[dataclasses.replace(charge, purpose="withdrawal", series="x")]])
    withdrawal.commit(charge.recommender, charge.event)
    withdrawal.published("version 4")
    way = way_back("films", None)
    for is_deleted in (False, True):  # then the copy says what it was
        if is_deleted:
            open_tracking(served).delete_model_version(NAME, "1")
        with pytest.raises(Refused, match="somebody withdrew from the batches since"):
            require_nothing_since("films", way, Who("ann", "now", ""))


def test_a_copy_that_was_never_champion_is_none_to_go_back_to(served: State) -> None:
    promoted_by_hand_since = Aliases("1", None)
    with lease(served, "changing what films serves", "me") as held, pytest.raises(Refused, match="changed meanwhile"):
        serve(offered("3", served.folder / "files"), FINDINGS, promoted_by_hand_since, WHO, held)
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, 2)
        with pytest.raises(Killed):
            promote(served, "3")
    assert tags_of(served, "3")[BY] == "me"
    with pytest.raises(SpecError, match=r"has no version '3' that was champion; it has 1, 2\."):
        way_back("films", "3")


def test_without_anything_before_there_is_no_way_back(films: State) -> None:
    with pytest.raises(Refused, match="nothing was champion of films before"):
        way_back("films", None)
    promote(films, "1")
    with pytest.raises(Refused, match="nothing was champion of films before"):
        way_back("films", None)
    with pytest.raises(Refused, match="the champion already"):
        way_back("films", "1")
    with pytest.raises(SpecError, match=r"has no version '7' that was champion; it has 1\."):
        way_back("films", "7")


def test_a_version_before_that_was_deleted_is_no_way_back_and_an_older_one_can_be_named(served: State) -> None:
    promote(served, "3")
    open_tracking(served).delete_model_version(SERVING, "2")
    with pytest.raises(Refused, match="or it was deleted"):
        way_back("films", None)
    assert rolled_back(served, "1").reached == f"{NAME}/1"
    assert aliases_of(served) == Aliases("1", "3")


def test_a_champion_that_was_deleted_is_no_hindrance(served: State) -> None:
    open_tracking(served).delete_model_version(SERVING, "2")
    assert aliases_of(served) == Aliases(None, "1")
    rolled_back(served)
    assert what_answers(served) == "1"


@pytest.mark.parametrize("file", ["artifacts/release/items.safetensors", "artifacts/release/release.json", "MLmodel"])
@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_no_rollback_to_files_that_are_gone_or_changed(
    served: State, monkeypatch: pytest.MonkeyPatch, file: str, damage: str
) -> None:
    downloaded = rollback.downloaded

    def damaged(name: str, number: str, folder: Path) -> Release:
        downloaded(name, number, folder)
        (folder / file).unlink() if damage == "gone" else (folder / file).write_bytes(b"{}")
        try:
            return Release.load(folder / "artifacts/release")
        except ValueError:
            raise EnvironmentFault("its files are damaged.") from None

    way = way_back("films", None)
    require_servable("films", way, served.folder / "good")
    monkeypatch.setattr(rollback, "downloaded", damaged)
    with pytest.raises(Refused, match=r"would serve what does not work: .* The champion stays"):
        require_servable("films", way, served.folder / "bad")


# What is found, and what is not


def test_the_newest_version_of_the_only_source_is_offered_and_a_copy_is_none_of_them(films: State) -> None:
    assert find_offered("pdp-histogram", None, None) == ("films", "3")
    promote(films, "1")
    assert find_offered("pdp-histogram", None, None) == ("films", "3")
    assert find_offered("pdp-histogram", "films", "2") == ("films", "2")
    for told, sentence in (
        (("pdp-histogram", None, "9"), "films.pdp-histogram has no version 9; it has 1, 2, 3"),
        (("pdp-histogram", "books", None), "books does not have a version of pdp-histogram here; films has"),
        (("dp-pmf", None, None), "no source has a version of dp-pmf here"),
    ):
        with pytest.raises(SpecError, match=sentence):
            find_offered(*told)


def test_of_several_sources_one_has_to_be_named(films: State) -> None:
    client = open_tracking(films)
    client.create_registered_model("books.pdp-histogram")
    client.create_model_version("books.pdp-histogram", "/nowhere", tags={"source": "books"})
    with pytest.raises(SpecError, match=r"several sources have a version of pdp-histogram: books, films. Name one"):
        find_offered("pdp-histogram", None, None)


def test_what_serves_is_found_by_its_registered_model(films: State) -> None:
    with pytest.raises(SpecError, match="no source has a champion here"):
        find_serving(None)
    promote(films, "1")
    assert find_serving(None) == find_serving("films") == "films"
    with pytest.raises(SpecError, match="books does not have a champion here; films has"):
        find_serving("books")


def test_a_refusal_is_written_on_the_version(films: State) -> None:
    found = (Finding("verdict", "pass", "fine"), Finding("audit", "refused", "y" * 5000))
    note_refusal(offered("1", films.folder / "files"), found, WHO)
    told = json.loads(tags_of(films, "1", NAME)[LAST_REFUSAL])
    assert told == {"by": "me", "at": WHO.at, "why": "because", "gates": {"audit": "y" * LONGEST_FOUND}}


def test_who_decides_is_the_account_and_mlflow_s_name_for_it_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions.getpass, "getuser", lambda: "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann@example")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    assert Who.now("why").name == "ann as ann@example"
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    assert Who.now(None) == Who("ann", Who.now(None).at, "")


def test_what_mlflow_refuses_is_one_sentence(films: State, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    def refused(*_: Any, **__: Any) -> None:
        raise MlflowException("values and all", PERMISSION_DENIED)

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", refused)
    with pytest.raises(EnvironmentFault, match=r"did not take the decision \(PERMISSION_DENIED\)"):
        promote(films, "1")


# A copy confuses nobody


def test_a_copy_is_asked_about_like_its_original_and_nobody_takes_it_for_one(films: State) -> None:
    ledger = Ledger(films)
    promote(films, "2")
    reservation = tags_of(films, "2", NAME)[RESERVATION]
    client = open_tracking(films)
    require_same_ledger("films", ledger)
    assert published_version(client, "films", "pdp-histogram", reservation) == "2"
    assert {(v.name, str(v.version)) for v in versions_paid_by(client, reservation)} == {(NAME, "2"), (SERVING, "1")}
    assert str(find_version("pdp-histogram", None, None)) == f"version 3 of {NAME}"
    newest = newest_release("films", "pdp-histogram")
    assert newest is not None
    assert newest[0] == "3"
    assert release_before("films", "pdp-histogram") is None  # none of them is a batch


def test_a_charge_whose_version_is_served_cannot_be_voided_though_the_original_was_deleted(films: State) -> None:
    ledger = Ledger(films)
    chosen = promoted.candidate()
    promote(films, "1")
    reservation = tags_of(films, "1", NAME)[RESERVATION]
    client = open_tracking(films)
    client.delete_model_version(NAME, "1")
    with pytest.raises(Refused, match="published, and what was released cannot be taken back"):
        void(films, ledger, reservation, "nobody saw it")
    # and where the ledger does not know that it was published:
    (lost,) = ledger.reserve([promoted.bill_of(chosen)])
    lost.commit(chosen.name, chosen.recommender.cost(chosen.specification))
    lost.failed("spent; nothing was published")
    client.set_model_version_tag(SERVING, "1", RESERVATION, lost.id)
    with pytest.raises(Refused, match=f"version 1 of {SERVING} was made of this charge"):
        void(films, ledger, lost.id, "nobody saw it")


def test_a_ledger_that_lost_the_charge_of_what_is_served_is_doubted(served: State) -> None:
    open_tracking(served).delete_model_version(NAME, "1")
    require_same_ledger("films", Ledger(served))
    open_tracking(served).set_model_version_tag(SERVING, "1", RESERVATION, "unknown")
    with pytest.raises(Refused, match="that this ledger does not know"):
        require_same_ledger("films", Ledger(served))


@pytest.mark.parametrize("how", ["version", "taken back"])
def test_what_is_served_still_answers_when_its_original_is_deleted(served: State, how: str) -> None:
    reservation = tags_of(served, "2", NAME)[RESERVATION]
    client = open_tracking(served)
    if how == "version":
        client.delete_model_version(NAME, "2")
    else:
        take_back(client, "films", "pdp-histogram", reservation)
    aliases, champion = open_champion("films", served.folder / "champion")
    assert aliases.champion == "2"
    assert champion is not None
    assert champion.release is not None
    assert champion.origin == f"{NAME}/2"
    import mlflow

    model = mlflow.pyfunc.load_model(f"models:/{SERVING}@{CHAMPION}")
    assert len(model.predict([{"ratings": [], "n": 3}])["items"][0]) == 3
