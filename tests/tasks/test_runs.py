"""The folder of a run: who holds it, what it says, and what it keeps. Without MLflow."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from models.candidate import Candidate
from models.errors import BudgetExceeded, EnvironmentFault, JaliError, Refused, SpecError
from models.index import RECOMMENDERS, make_recommender
from models.privacy.budget import Budget
from models.privacy.noise import ExactNoise
from models.privacy.specification import Policy, Preferences, PrivacySpecification
from models.ratings import Ratings
from models.release import ItemFactors, Release
from tasks.ledger import Ledger
from tasks.ledger_entries import Charge
from tasks.runs import Pending, abandoned_runs, own_run, paying, run_of, settled
from tasks.state import State
from tasks.voiding import void

HISTOGRAM = make_recommender("pdp-histogram", {})


ONE = PrivacySpecification(epsilon=1)
BILL = [Charge("films", HISTOGRAM.name, HISTOGRAM.promise(ONE), HISTOGRAM.cost(ONE))]
PAID = HISTOGRAM.name, HISTOGRAM.cost(ONE)


def pending(ratings: Ratings) -> Pending:
    return Pending("films", HISTOGRAM.fit(ratings, ONE, ExactNoise()).release)


def n_abandoned(state: State) -> int:
    with closing(abandoned_runs(state)) as runs:
        return len(list(runs))


def folders(state: State) -> list[Path]:
    return list((state.folder / "runs").iterdir())


def test_a_run_that_comes_to_its_end_leaves_nothing(state: State) -> None:
    with own_run(state) as own:
        with settled(own, own.reserve(Ledger(state), [BILL])):
            (folder,) = folders(state)
            assert folder.stat().st_mode & 0o77 == 0
        assert folders(state) == []


def test_a_run_that_is_refused_leaves_nothing_and_one_that_may_have_reserved_its_folder(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(state)
    ledger.set_budget("films", Budget(epsilon=0.5))
    with pytest.raises(BudgetExceeded), paying(state, ledger, [BILL]):
        pass
    assert folders(state) == []
    ledger.set_budget("films", Budget(epsilon=2))

    def lost(*_: object, **__: object) -> None:
        raise EnvironmentFault("The server was lost, and nobody knows when.")

    monkeypatch.setattr(ledger, "reserve", lost)
    with pytest.raises(EnvironmentFault), paying(state, ledger, [BILL]):
        pass
    assert n_abandoned(state) == 1


def test_a_living_run_is_left_alone_and_a_dead_one_is_not(state: State) -> None:
    with own_run(state) as own:
        (reservation,) = own.reserve(Ledger(state), [BILL])
        assert n_abandoned(state) == 0
        with pytest.raises(Refused, match="still at work"), run_of(state, reservation.id):
            pass
    assert n_abandoned(state) == 1
    with run_of(state, reservation.id) as dead, run_of(state, "nobody's") as nobodys:
        assert dead is not None
        assert nobodys is None


def test_a_dead_run_is_finished_by_one_and_not_by_two(state: State) -> None:
    with own_run(state):
        pass
    with closing(abandoned_runs(state)) as first:
        taken = next(first)
        assert n_abandoned(state) == 0
        taken.remove()
    assert n_abandoned(state) == 0


def test_whoever_comes_while_a_folder_is_removed_takes_nothing(state: State) -> None:
    with own_run(state) as own:
        (folder,) = folders(state)
        own.remove()
        folder.mkdir()
        (folder / "lock").touch()  # another file of that name is no lock of ours
        assert n_abandoned(state) == 1


def test_what_was_only_half_removed_is_removed_by_the_next_run(state: State) -> None:
    (state.folder / "runs" / ".gone" / "pending").mkdir(parents=True)
    assert n_abandoned(state) == 0
    assert folders(state) == []


def test_reservations_are_written_down_before_they_are_made(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def look(self: Ledger, bills: object, *, ids: list[str], require_budget: bool) -> None:
        written.append((own.reservation_ids, ids))

    monkeypatch.setattr(Ledger, "reserve", look)
    with own_run(state) as own:
        own.reserve(Ledger(state), [BILL, BILL])
    assert [left == right and len(left) == 2 for left, right in written] == [True]


@pytest.mark.parametrize("variable", ["JALI_LEDGER_URL", "MLFLOW_TRACKING_URI"])
def test_a_run_with_another_ledger_or_mlflow_waits_for_one_that_uses_them(
    state: State, monkeypatch: pytest.MonkeyPatch, variable: str, tmp_path: Path
) -> None:
    with own_run(state) as own:
        own.reserve(Ledger(state), [BILL])
    monkeypatch.setenv(variable, f"sqlite:///{tmp_path}/other.db")
    assert n_abandoned(state) == 0
    with pytest.raises(Refused, match="another ledger or another MLflow"), run_of(state, own.reservation_ids[0]):
        pass
    monkeypatch.delenv(variable)
    assert n_abandoned(state) == 1


def test_a_state_folder_that_was_moved_is_still_its_own(state: State, tmp_path: Path) -> None:
    with own_run(state) as own:
        own.reserve(Ledger(state), [BILL])
    assert n_abandoned(State(state.folder.rename(tmp_path / "moved"))) == 1


def test_passwords_are_not_written_down(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:swordfish@mlflow.example?token=swordfish")
    with own_run(state) as own:
        own.reserve(Ledger(state), [BILL])
        (folder,) = folders(state)
        assert "mlflow.example" in (folder / "run.json").read_text()
        assert "swordfish" not in (folder / "run.json").read_text()


@pytest.mark.parametrize("content", ["", "[]", '{"reservations": 3}'])
def test_a_folder_that_is_damaged_is_one_sentence(state: State, content: str) -> None:
    with own_run(state):
        (folder,) = folders(state)
    (folder / "run.json").write_text(content)
    with pytest.raises(EnvironmentFault, match=r"cannot be read. Look at `jali ledger show`"):
        n_abandoned(state)


EVERYBODYS = [
    {"epsilon": 0.37},
    {"policy": Policy(conservative=0.3, moderate=0.3), "fraction": 1 / 3},
    {"preferences": Preferences(default=0.1, levels={"low": 0.1, "high": 1.5})},
    {"epsilon": 2, "unit": "user", "delta": 1e-7},
]


@pytest.mark.parametrize("privacy", EVERYBODYS)
@pytest.mark.parametrize("name", [name for name in RECOMMENDERS if name != "pmf"])
def test_a_candidate_can_be_told_from_its_release(tmp_path: Path, name: str, privacy: dict) -> None:
    recommender = RECOMMENDERS[name]()
    specification = PrivacySpecification(relation=recommender.relation, **privacy)
    try:
        guarantee = recommender.guarantee(specification, public_catalogue=False)
    except SpecError:
        return  # it cannot keep such a specification
    about = {
        "recommender": name,
        "settings": recommender.model_dump(mode="json"),
        "privacy": specification.model_dump(mode="json"),
        "guarantee": guarantee.model_dump(mode="json"),
    }
    factors = ItemFactors(np.ones((1, 1), np.float32), np.ones(1, np.float32), np.ones(1))
    Pending("films", Release(factors, ("a",), ("A",), 1, 5, 1, about)).save(tmp_path)
    assert Pending.load(tmp_path).candidate == Candidate(recommender, specification, guarantee)


def test_what_is_kept_comes_back_as_it_was_and_is_dropped_on_request(ratings: Ratings, state: State) -> None:
    before = pending(ratings)
    with own_run(state) as own:
        (reservation,) = own.reserve(Ledger(state), [BILL])
        assert not own.keeps(reservation.id)
        own.keep(reservation.id, before)
        after = own.kept(reservation.id)
    assert after.source == "films"
    assert np.array_equal(after.release.factors.V, before.release.factors.V)
    assert after.release.about == before.release.about
    own.drop(reservation.id)
    assert not own.keeps(reservation.id)


def test_what_is_half_written_is_not_kept(ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with own_run(state) as own:
        with pytest.raises(EnvironmentFault, match="Keeping what was fitted failed: Input/output error"):
            own.keep("x", pending(ratings))
        assert not own.keeps("x")


def states_after(state: State, ratings: Ratings, error: type[BaseException] | None) -> tuple[str, ...]:
    """Of three releases: one not begun, one spent and not kept, one kept."""
    ledger = Ledger(state)
    with own_run(state) as own:
        reservations = own.reserve(ledger, [BILL] * 3)
        try:
            with settled(own, reservations):
                for reservation in reservations[1:]:
                    reservation.commit(*PAID)
                own.keep(reservations[2].id, pending(ratings))
                if error:
                    raise error("It broke.")
        except (JaliError, KeyboardInterrupt):
            pass
    return tuple(ledger.reservation(reservation.id).state for reservation in reservations)


@pytest.mark.parametrize("error", [EnvironmentFault, KeyboardInterrupt])
def test_at_a_bad_end_the_unspent_is_given_back_the_lost_is_marked_and_the_kept_is_left(
    ratings: Ratings, state: State, error: type[BaseException]
) -> None:
    assert states_after(state, ratings, error) == ("cancel", "fail", "commit")
    assert n_abandoned(state) == 1


def test_what_was_voided_while_its_run_was_at_work_is_neither_kept_nor_promised(ratings: Ratings, state: State) -> None:
    ledger = Ledger(state)
    with own_run(state) as own:
        (reservation,) = own.reserve(ledger, [BILL])
        reservation.commit(*PAID)
        own.keep(reservation.id, pending(ratings))
        ledger.void(reservation.id, "from another folder")
        with (
            pytest.raises(Refused, match=r"nothing of it is released\. Nothing was recorded\.$"),
            settled(own, [reservation]),
        ):
            reservation.published("version 1")
    assert ledger.reservation(reservation.id).state == "void"
    assert folders(state) == []


def test_a_charge_is_voided_where_its_run_is_or_once_that_can_never_go_on(
    state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JALI_LEDGER_KEY", "k" * 40)
    other = State(tmp_path / "other" / ".jali")
    other.folder.mkdir(parents=True)
    with own_run(state) as own:
        reserved, spent, failed = own.reserve(Ledger(state), [BILL] * 3)
        spent.commit(*PAID)
        failed.commit(*PAID)
        failed.failed("spent; nothing was published")
    monkeypatch.setenv("JALI_LEDGER_URL", state.ledger_url)
    ledger = Ledger(other)
    for reservation in (reserved, failed):
        assert void(other, ledger, reservation.id, "A test.").state == "void"
    with pytest.raises(Refused, match=r"not of this working folder.*--gone"):
        void(other, ledger, spent.id, "A test.")
    assert ledger.reservation(spent.id).state == "commit"
    assert void(other, ledger, spent.id, "A test.", gone=True).state == "void"
    assert not other.tracking_database.exists(), "quick where MLflow was never used"


def test_a_charge_whose_run_left_a_damaged_folder_is_voided_all_the_same(ratings: Ratings, state: State) -> None:
    with own_run(state) as own:
        (reservation,) = own.reserve(Ledger(state), [BILL])
        reservation.commit(*PAID)
        own.keep(reservation.id, pending(ratings))
        (folder,) = folders(state)
    (folder / "run.json").write_text("")
    assert void(state, Ledger(state), reservation.id, "A test.").state == "void"
    assert not own.keeps(reservation.id)
    with own_run(state) as own:
        (other,) = own.reserve(Ledger(state), [BILL])
        other.commit(*PAID)
    for damaged in folders(state):
        (damaged / "run.json").write_text("")
    assert void(state, Ledger(state), other.id, "A test.", gone=True).state == "void"
