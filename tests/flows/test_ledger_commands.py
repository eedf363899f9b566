"""`jali ledger`, in this process, and what a budget does to a run, with the real command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from dp_accounting import NonPrivateDpEvent
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from typer.testing import CliRunner

from flows.cli import app
from flows.ledger_view import write_figure
from models.errors import SpecError
from models.privacy.guarantee import Guarantee
from tasks.ledger import Ledger, Reservation
from tasks.ledger_entries import Charge
from tasks.ledger_figure import amounts_spent
from tasks.state import State
from tests.command import clean, jali, outcomes, write_ratings
from tests.made_up import made_up_ratings


def ledger(*arguments: str, **more: str) -> Result:
    return CliRunner().invoke(app, ["ledger", *arguments], env={"COLUMNS": "200"}, **more)  # type: ignore[arg-type]


def words(outcome: Result) -> str:
    """What was said, however it was broken into lines."""
    assert outcome.exit_code == 0, outcome.stderr
    return " ".join(outcome.stdout.split())


def spend(state: State, epsilon: float = 0.4, name: str = "pdp-histogram", **more: object) -> Reservation:
    promise = Guarantee(
        unit="rating", relation="add_or_remove", epsilon=epsilon, verdict="proven", sentence="", reference=""
    )
    event = DiscreteLaplaceDpEvent(epsilon, 1)
    (reservation,) = Ledger(state).reserve([[Charge("films", name, promise, event, **more)]])  # type: ignore[arg-type]
    reservation.commit(name, event)
    return reservation


def test_a_budget_is_set_shown_and_counted_down(state: State) -> None:
    assert "films has no budget" in ledger("budget", "films").stdout
    told = ledger("budget", "films", "--epsilon", "3", "--delta", "1e-6")
    said = "films: the budget is ε=3 at δ=1e-06 for each rating (add or remove); ε=0 spent, ε=3 left. "
    assert words(told).startswith(said + "Nothing was released as films yet: a run is counted here if")
    spend(state).published("version 1")
    assert "ε=0.4 spent, ε=2.6 left." in words(ledger("budget", "films"))
    shown = words(ledger("show"))
    assert "ε=0.4 spent, ε=2.6 left." in shown
    assert "version 1" in shown
    raised = words(ledger("budget", "films", "--epsilon", "5", "--delta", "1e-6", "--reason", "the board agreed"))
    assert raised.endswith("ε=0.4 spent, ε=4.6 left.")
    changes = words(ledger("show", "--all"))
    assert "the budget became ε=5 at δ=1e-06 for each rating (add or remove) (the board agreed)." in changes
    assert changes.count("the budget became") == 2


def test_what_was_released_before_a_budget_and_promises_nothing_of_it_is_named(state: State) -> None:
    changed = Guarantee(
        unit="rating", relation="replace_value", epsilon=1, verdict="conditional", sentence="", reference=""
    )
    (before,) = Ledger(state).reserve([[Charge("films", "dp-pmf", changed, NonPrivateDpEvent())]])
    before.commit("dp-pmf", NonPrivateDpEvent())
    spend(state, 0.5)
    told = words(ledger("budget", "films", "--epsilon", "1"))
    assert "ε=0.5 spent, ε=0.5 left. It counts nothing of what was released before it of dp-pmf." in told
    assert "dp-pmf promised nothing of it, so that nothing bounds the whole" in words(ledger("show"))
    assert ledger("show", "--figure", "l.png").exit_code == 0


def test_a_ledger_that_is_not_the_one_that_keeps_the_budget_does_not_say_that_there_is_none(state: State) -> None:
    spend(state)
    ledger("budget", "films", "--epsilon", "1")
    (state.folder / "ledger.db").unlink()
    outcome = ledger("budget", "films")
    assert outcome.exit_code == 1
    assert "has a budget, kept in the ledger at" in outcome.stderr


def test_everybodys_own_epsilon_is_a_budget_too(state: State) -> None:
    assert "the budget is everybody's own epsilon; 0 spent, 1 left." in words(ledger("budget", "films", "--fractions"))
    spend(state, fraction=0.25)
    assert "0.25 spent, 0.75 left." in words(ledger("show"))


WRONG = {
    ("budget", "films", "--epsilon", "0"): "greater than or equal to",
    ("budget", "films", "--epsilon", "-1"): "found '-1'",
    ("budget", "films", "--epsilon", "nan"): "finite number",
    ("budget", "films", "--epsilon", "inf"): "finite number",
    ("budget", "films", "--epsilon", "much"): "found 'much'",
    ("budget", "films", "--epsilon", "1", "--delta", "1"): "delta",
    ("budget", "films", "--epsilon", "1", "--delta", "-1e-9"): "delta",
    ("budget", "films", "--epsilon", "1", "--unit", "film"): "'rating' or 'user'",
    ("budget", "films", "--epsilon", "1", "--relation", "local"): "relation",
    ("budget", "films", "--fractions", "--epsilon", "1"): "one budget",
    ("budget", "films", "--fractions", "--delta", "1e-6"): "leave --delta out",
    ("budget", "films", "--delta", "1e-6"): "one budget",
    ("budget", "films", "--fractions", "--relation", "replace_value"): "leave --relation out",
    ("budget", ""): "a source is called by letters",
    ("budget", "../films", "--epsilon", "1"): "a source is called by letters",
    ("budget", "films.serving", "--epsilon", "1"): "Jali's own",
    ("void", "000000"): "--reason",
    ("void", "000000", "--reason", "x"): "no charge begins",
    ("show", "--source", "books"): "nothing of books. It has films.",
    ("show", "--source", "[/red]"): "nothing of [/red]. It has films.",
    ("show", "--figure", "films.csv"): "no .png file",
    ("user", "7", "--source", "books"): "nothing was spent on books",
    ("user", "7", "--ratings", "nosuch.csv"): "nosuch.csv",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_what_makes_no_sense_is_one_sentence_and_changes_nothing(state: State, arguments: tuple[str, ...]) -> None:
    spend(state)
    Path("films.csv").write_text("user,item,rating\n")
    before = Ledger(state).head
    outcome = ledger(*arguments)
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stderr.startswith("jali: ")
    assert WRONG[arguments] in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert Ledger(state).head == before


def test_a_budget_below_what_is_spent_is_refused(state: State) -> None:
    spend(state)
    outcome = ledger("budget", "films", "--epsilon", "0.3")
    assert (outcome.exit_code, "less than the 0.4" in outcome.stderr) == (1, True)
    assert Ledger(state).budget("films") is None


def test_a_failed_charge_is_voided_by_the_name_that_is_shown(state: State) -> None:
    reservation = spend(state)
    reservation.failed("spent; nothing was published")
    name = ledger("show").stdout.splitlines()[2].split()[0]
    assert reservation.id.startswith(name)
    outcome = ledger("void", name, "--reason", "the disk was never written")
    assert outcome.exit_code == 0, outcome.stderr
    shown = words(ledger("show"))
    assert "void: the disk was never written" in shown
    assert "Nothing of films was spent yet." in shown
    assert ledger("void", name, "--reason", "again").exit_code == 1


def test_what_a_run_of_another_folder_may_yet_publish_is_voided_once_it_is_said_that_it_cannot(state: State) -> None:
    name = spend(state).id
    refused = ledger("void", name, "--reason", "the folder burnt")
    assert (refused.exit_code, "say so with --gone" in refused.stderr) == (1, True)
    assert ledger("void", name, "--reason", "the folder burnt", "--gone").exit_code == 0
    assert "void: the folder burnt" in words(ledger("show"))


def test_one_user_is_told_an_upper_bound_and_nothing_is_kept_of_it(state: State) -> None:
    assert "Nothing was spent yet" in ledger("user", "7").stdout
    spend(state, 0.4)
    spend(state, 0.5, series="batches")
    spend(state, 0.5, series="batches")
    Path("films.csv").write_text("user,item,rating\n7,1,3\n7,2,4\n8,1,5\n")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    alone = words(ledger("user", "7"))
    assert "films: at most ε=0.9, δ=0 spent on each rating of this user" in alone
    assert "as many times that" in alone
    for given in (("7",), ("-",)):
        counted = words(ledger("user", *given, "--ratings", "films.csv", input="7\n"))
        assert "has 2 ratings there now: at most ε=1.8" in counted
    assert "has 0 ratings there now: nothing" in words(ledger("user", "9", "--ratings", "films.csv"))
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_the_figure_is_drawn_for_every_kind_of_budget(state: State) -> None:
    with pytest.raises(SpecError, match="name it with --source"):
        write_figure(Ledger(state), None, "l.png")
    spend(state, fraction=0.5)
    spend(state, 0.2, "other", fraction=0.25).failed("spent")
    for arguments in ((), ("--fractions",)):
        ledger("budget", "films", *arguments)
        assert ledger("show", "--figure", "l.png").exit_code == 0
        assert Path("l.png").read_bytes().startswith(b"\x89PNG")
        Path("l.png").unlink()


def test_what_people_wrote_does_not_leave_with_the_amounts(state: State) -> None:
    spend(state, accepted="because of Ann").failed("Ben pulled the plug")
    (amount,) = amounts_spent(Ledger(state).history("films"))
    assert not {"Ann", "Ben"} & set(json.dumps(amount).replace(".", " ").split())
    assert amount["claimed_epsilon"] == 0.4


@pytest.mark.slow
def test_a_run_is_refused_beyond_its_budget_and_with_a_ledger_that_did_not_pay(
    tmp_path: Path, shared_prefect: str
) -> None:
    account = {"PREFECT_API_URL": shared_prefect, "XDG_STATE_HOME": str(tmp_path / "account")}
    ratings = write_ratings(tmp_path, made_up_ratings(n_users=30))
    quick = ["run", *ratings, "--folds", "2", "--require-budget"]

    refused = clean(jali(tmp_path, *quick, **account))
    assert (refused.returncode, "has no budget" in refused.stderr) == (1, True), refused.stderr
    assert jali(tmp_path, "ledger", "budget", "films.csv", "--epsilon", "1", **account).returncode == 0

    done = clean(jali(tmp_path, *quick, "--epsilon", "0.7", "--recommenders", "pdp-histogram", **account))
    assert done.returncode == 0, done.stderr
    (tmp_path / "films.csv").rename(tmp_path / "away.csv")
    renamed = clean(jali(tmp_path, "run", "--ratings", "away.csv", *ratings[2:], "--folds", "2", **account))
    assert (renamed.returncode, "--source films.csv" in renamed.stderr) == (1, True), renamed.stderr
    (tmp_path / "films.csv").write_text("not a rating in it\n")
    refused = clean(jali(tmp_path, *quick, "--epsilon", "0.7", **account))
    assert refused.returncode == 1, "refused before a rating is read"
    assert "version 1" in refused.stderr
    assert "ε=0.7 is spent or reserved and ε=0.3 is left" in refused.stderr
    named = clean(jali(tmp_path, *quick, "--recommenders", "dp-pmf", **account))
    assert (named.returncode, "promises nothing under add_or_remove" in named.stderr) == (1, True)
    assert set(outcomes(tmp_path)) == {"version 1", "given back"}

    elsewhere = {**account, "XDG_STATE_HOME": str(tmp_path / "stranger"), "JALI_LEDGER_URL": f"sqlite:///{tmp_path}/l"}
    refused = clean(jali(tmp_path, *quick[:-1], **elsewhere))
    assert (refused.returncode, "the registry has releases" in refused.stderr) == (1, True), refused.stderr
