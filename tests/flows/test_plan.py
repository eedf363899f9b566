"""`jali plan` in this process: what it says, what it refuses, and that it opens no ratings."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.plan import MOST_EPSILONS  # here, not in the command: Prefect keeps the stderr that it is imported under
from tasks.state import State

DECLARED = ("--users", "60", "--items", "40", "--scale", "1:5:1")


def plan(*arguments: str):
    return CliRunner().invoke(app, ["plan", *arguments])


def test_a_plan_is_a_table_that_fits_and_a_figure(state: State) -> None:
    outcome = plan("films", "--epsilon", "3,.1,1,1", *DECLARED)
    assert outcome.exit_code == 0, outcome.output
    lines = outcome.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    rows = [line.split("  ")[0].strip() for line in lines[1:7]]
    assert rows == ["ε", "alone", "0.1", "1", "3", "no noise"]
    assert "by 60 users" in outcome.stdout
    assert (state.folder / "plan-films.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in state.folder.iterdir()} == {"artifacts", "prefect", "plan-films.png"}


def test_the_figure_goes_where_it_is_told_to(state: State) -> None:
    assert plan("films", "--epsilon", "1", *DECLARED, "--figure", "p.png").exit_code == 0
    assert Path("p.png").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("films", "--epsilon", "1"), 2, "films has no release to plan from; declare"),
        (("a/b", "--epsilon", "1"), 2, "a source is called by"),
        (("a'b", "--epsilon", "1"), 2, "a source is called by"),
        (("films", "--epsilon", "1,b"), 2, "unable to parse string as a number; found 'b'"),
        (("films", "--epsilon", ""), 2, "unable to parse"),
        (("films", "--epsilon", "nan"), 2, "finite number"),
        (("films", "--epsilon", "inf"), 2, "finite number"),
        (("films", "--epsilon", "0"), 2, "greater than or equal to 0.000001"),
        (("films", "--epsilon", "1,-1"), 2, "greater than or equal to 0.000001"),
        (("films", "--epsilon", "1001"), 2, "less than or equal to 1000"),
        (("films", "--epsilon", ",".join(["1"] * (MOST_EPSILONS + 1))), 2, "at most 20"),
        (("films", "--epsilon", "1", "--items", "5"), 2, "--items without --users"),
        (("films", "--epsilon", "1", "--users", "5", "--scale", "1:5:1"), 2, "--scale is for planning from the sample"),
        (("films", "--epsilon", "1", "--users", "0", "--items", "5"), 2, "greater than or equal to 1"),
        (("films", "--epsilon", "1", "--users", "5", "--items", "-5"), 2, "greater than or equal to 1"),
        (("films", "--epsilon", "1", "--users", "9" * 30, "--items", "5"), 2, "less than or equal to 1000000000"),
        (("films", "--epsilon", "1", "--users", "5", "--items", "2.5"), 2, "integer"),
        (("films", "--epsilon", "1", "--users", "5", "--items", "1000000"), 2, "Plan for fewer items"),
        (("films", "--epsilon", "1", "--users", "5", "--items", "5", "--scale", "5:1"), 2, "LOW:HIGH:STEP"),
        (("films", "--epsilon", "1", *DECLARED, "--figure", "p.pdf"), 2, "must be a .png file"),
        (("films", "--epsilon", "1", *DECLARED, "--figure", "nowhere/p.png"), 3, "cannot be written"),
        (("films", "--epsilon", "1", "--ratings", "r.csv"), 2, "No such option"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    arguments: tuple[str, ...], code: int, sentence: str, state: State
) -> None:
    outcome = plan(*arguments)
    assert (outcome.exit_code, sentence in outcome.stderr) == (code, True), outcome.output
    assert not list(Path().glob("*.p*"))
    assert not list(state.folder.glob("plan*"))
