"""What is served, after every decision and after every kill; and that a copy of a version confuses nobody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.errors import EnvironmentFault, Refused, SpecError
from models.release import Release
from tasks import promotion
from tasks.auditing import find_version
from tasks.batches import release_before
from tasks.gates import Finding
from tasks.lease import lease
from tasks.ledger import Ledger
from tasks.promotion import (
    AT,
    BY,
    CHECKSUM,
    CONDITION,
    CONDITION_TAG,
    FROM,
    LAST_REFUSAL,
    LONGEST_FOUND,
    REPLACES,
    RESULTS,
    ROLLED_BACK,
    WAIVED,
    WHY,
    Aliases,
    Way,
    Who,
    copy_that_serves,
    find_offered,
    find_serving,
    note_refusal,
    open_champion,
    require_servable,
    roll_back,
    serve,
    way_back,
)
from tasks.publishing import published_version, take_back, versions_paid_by
from tasks.registry import CHAMPION, PREVIOUS, RESERVATION, require_same_ledger
from tasks.released import newest_release
from tasks.state import State
from tasks.tracking import open_tracking
from tasks.voiding import void
from tests import promoted
from tests.promoted import NAME, SERVING, offered

pytestmark = pytest.mark.slow  # MLflow's tables, and three publications

films, published_films = promoted.films, promoted.published_films

WHO = Who("me", "2026-11-21 12:00:00 UTC", "because")
FINDINGS = (Finding("verdict", "pass", "proven"), Finding("audit", "waived", "x" * 5000, "it was chance"))


def served(state: State) -> Aliases:
    return promotion._aliases(open_tracking(state), "films")


def tags_of(state: State, number: str, name: str = SERVING) -> dict[str, str]:
    return dict(open_tracking(state).get_model_version(name, number).tags)


def promote(state: State, number: str, who: Who = WHO, findings: tuple[Finding, ...] = FINDINGS) -> str:
    folder = state.folder.parent / "files"
    shutil.rmtree(folder, ignore_errors=True)
    with lease(state, "changing what films serves", who.name) as held:
        return serve(offered(number, folder), findings, served(state), who, held)


def rolled_back(state: State, to: str | None = None, who: Who = WHO) -> Way:
    with lease(state, "changing what films serves", who.name) as held:
        way = way_back("films", to)
        roll_back("films", way, who, held)
    return way


def test_the_champion_is_a_copy_that_says_what_it_is_and_who_made_it_so(films: State) -> None:
    assert promote(films, "1") == "1"
    assert served(films) == Aliases("1", None)
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


def test_what_was_champion_becomes_previous_and_a_rollback_changes_the_two(films: State) -> None:
    promote(films, "1")
    promote(films, "3")
    assert served(films) == Aliases("2", "1")
    assert tags_of(films, "2")[REPLACES] == "1"
    later = Who("you", "2026-11-22 12:00:00 UTC", "it was worse")
    assert rolled_back(films, who=later) == Way(Aliases("2", "1"), "1", f"{NAME}/3", f"{NAME}/1")
    assert served(films) == Aliases("1", "2")
    assert [tags_of(films, "2")[tag] for tag in ROLLED_BACK] == ["you", later.at, "it was worse"]
    rolled_back(films)
    assert served(films) == Aliases("2", "1")
    assert not set(ROLLED_BACK) & set(tags_of(films, "2"))


def test_a_version_that_was_served_before_is_not_copied_twice_and_says_what_holds_now(films: State) -> None:
    promote(films, "1")
    promote(films, "2")
    rolled_back(films)
    client = open_tracking(films)
    client.set_model_version_tag(NAME, "2", "audit.note", "noted since")
    client.set_model_version_tag(NAME, "2", LAST_REFUSAL, "{}")
    with_reason = Who("you", "later", "")
    assert promote(films, "2", with_reason, FINDINGS[:1]) == "2"
    assert served(films) == Aliases("2", "1")
    tags = tags_of(films, "2")
    assert (tags["audit.note"], tags[BY], tags[WHY]) == ("noted since", "you", "")
    assert not {f"{WAIVED}audit", LAST_REFUSAL, *ROLLED_BACK} & set(tags)
    assert len(client.search_model_versions(f"name = '{SERVING}'")) == 2


def test_a_number_that_comes_again_is_another_version(films: State, monkeypatch: pytest.MonkeyPatch) -> None:
    promote(films, "1")
    assert copy_that_serves(offered("1", films.folder / "a")) == "1"
    assert copy_that_serves(offered("2", films.folder / "b")) is None
    from mlflow import MlflowClient

    where = MlflowClient.get_model_version_download_uri
    monkeypatch.setattr(
        MlflowClient,
        "get_model_version_download_uri",
        lambda self, name, number: where(self, name, number) + ("" if name == SERVING else "/made/anew"),
    )
    assert copy_that_serves(offered("1", films.folder / "c")) is None


# Cut off anywhere


def copied(films: State, name: str, monkeypatch: pytest.MonkeyPatch) -> State:
    """The same registry and ledger once more, and the working folder there."""
    state = State(films.folder.parent / name / ".jali")
    shutil.copytree(films.folder, state.folder)
    monkeypatch.chdir(state.folder.parent)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return state


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
    champion = served(state).champion
    assert champion is not None
    open_champion("films", state.folder.parent / "looked")[1].release.recommend({}, 3)  # type: ignore[union-attr]
    shutil.rmtree(state.folder.parent / "looked")
    return tags_of(state, champion)[FROM].rpartition("/")[2]


def test_a_promotion_that_is_killed_at_any_write_leaves_what_was_served_and_the_way_back(
    films: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: 2 is champion and 1 previous. However far the promotion of 3 came, a rollback then leads to what
    it should, and the promotion can be done again."""
    promote(films, "1")
    promote(films, "2")
    for after in range(100):
        state = copied(films, f"{after}", monkeypatch)
        with monkeypatch.context() as patch:
            cut_off(patch, after)
            try:
                promote(state, "3")
            except Killed:
                pass
            else:
                break
        assert what_answers(state) == "2"
        assert way_back("films", None).reached == f"{NAME}/1"
        promote(state, "3")
        assert what_answers(state) == "3"
        assert way_back("films", None).reached == f"{NAME}/2"
        assert len(open_tracking(state).search_model_versions(f"name = '{SERVING}'")) == 3
    assert after == 5  # the registered model (it is there), copy, card, previous, champion


def test_a_rollback_that_is_killed_at_any_write_can_be_done_again(
    films: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(films, "1")
    promote(films, "2")
    for after in range(100):
        state = copied(films, f"{after}", monkeypatch)
        with monkeypatch.context() as patch:
            cut_off(patch, after)
            try:
                rolled_back(state)
            except Killed:
                pass
            else:
                break
        if what_answers(state) == "2":
            assert rolled_back(state).reached == f"{NAME}/1"
        assert served(state) == Aliases("1", "2")
    assert after == 6  # replaces, three of who and why, previous, champion


def test_a_second_promotion_that_came_between_is_found_out(films: State) -> None:
    promote(films, "1")
    before = served(films)
    promote(films, "2")
    with lease(films, "changing what films serves", "me") as held, pytest.raises(Refused, match="changed meanwhile"):
        serve(offered("3", films.folder / "files"), FINDINGS, before, WHO, held)
    assert what_answers(films) == "2"


def test_nothing_moves_once_the_lease_was_lost(films: State) -> None:
    promote(films, "1")
    with lease(films, "changing what films serves", "the slow", seconds=0.0) as slow:
        promote(films, "2")
        with pytest.raises(Refused, match="somebody else began it meanwhile"):
            serve(offered("3", films.folder / "files"), FINDINGS, served(films), WHO, slow)
    assert what_answers(films) == "2"


# The way back


def test_without_anything_before_there_is_no_way_back(films: State) -> None:
    with pytest.raises(Refused, match="nothing was champion of films before"):
        way_back("films", None)
    promote(films, "1")
    with pytest.raises(Refused, match="nothing was champion of films before"):
        way_back("films", None)
    with pytest.raises(Refused, match="the champion already"):
        way_back("films", "1")
    with pytest.raises(SpecError, match=r"has no version '7' that was promoted; it has 1\."):
        way_back("films", "7")


def test_a_version_before_that_was_deleted_is_no_way_back_and_an_older_one_can_be_named(films: State) -> None:
    for number in "123":
        promote(films, number)
    open_tracking(films).delete_model_version(SERVING, "2")
    with pytest.raises(Refused, match="or it was deleted"):
        way_back("films", None)
    assert rolled_back(films, "1").reached == f"{NAME}/1"
    assert served(films) == Aliases("1", "3")


def test_a_champion_that_was_deleted_is_no_hindrance(films: State) -> None:
    promote(films, "1")
    promote(films, "2")
    open_tracking(films).delete_model_version(SERVING, "2")
    assert served(films) == Aliases(None, "1")
    rolled_back(films)
    assert what_answers(films) == "1"


@pytest.mark.parametrize("file", ["artifacts/release/items.safetensors", "artifacts/release/release.json", "MLmodel"])
@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_no_rollback_to_files_that_are_gone_or_changed(
    films: State, monkeypatch: pytest.MonkeyPatch, file: str, damage: str
) -> None:
    promote(films, "1")
    promote(films, "2")
    downloaded = promotion._downloaded

    def damaged(name: str, number: str, folder: Path) -> Release:
        downloaded(name, number, folder)
        (folder / file).unlink() if damage == "gone" else (folder / file).write_bytes(b"{}")
        try:
            return Release.load(folder / "artifacts/release")
        except ValueError:
            raise EnvironmentFault("its files are damaged.") from None

    way = way_back("films", None)
    require_servable("films", way, films.folder / "good")
    monkeypatch.setattr(promotion, "_downloaded", damaged)
    with pytest.raises(Refused, match=r"would serve what does not work: .* The champion stays"):
        require_servable("films", way, films.folder / "bad")


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
    monkeypatch.setattr(promotion.getpass, "getuser", lambda: "ann")
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


def test_a_ledger_that_lost_the_charge_of_what_is_served_is_doubted(films: State) -> None:
    promote(films, "1")
    open_tracking(films).delete_model_version(NAME, "1")
    require_same_ledger("films", Ledger(films))
    open_tracking(films).set_model_version_tag(SERVING, "1", RESERVATION, "unknown")
    with pytest.raises(Refused, match="that this ledger does not know"):
        require_same_ledger("films", Ledger(films))


@pytest.mark.parametrize("how", ["version", "taken back"])
def test_what_is_served_still_answers_when_its_original_is_deleted(films: State, how: str) -> None:
    promote(films, "1")
    reservation = tags_of(films, "1", NAME)[RESERVATION]
    client = open_tracking(films)
    if how == "version":
        client.delete_model_version(NAME, "1")
    else:
        take_back(client, "films", "pdp-histogram", reservation)
    aliases, champion = open_champion("films", films.folder / "champion")
    assert aliases.champion == "1"
    assert champion is not None
    assert champion.release is not None
    assert champion.origin == f"{NAME}/1"
    import mlflow

    model = mlflow.pyfunc.load_model(f"models:/{SERVING}@{CHAMPION}")
    assert len(model.predict([{"ratings": [], "n": 3}])["items"][0]) == 3
    assert PREVIOUS not in client.get_registered_model(SERVING).aliases
