"""Fifty bad inputs through the real command, in processes of their own that share one folder's state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.command import environment
from tests.fuzz.case import SECRET_RATING, SECRET_USER, Case
from tests.fuzz.command_lines import command_cases
from tests.fuzz.oracle import Outcome, counted, judge
from tests.fuzz.ratings_files import items_cases, ratings_cases
from tests.fuzz.settings_files import beside_good_ratings, policy_cases, settings_cases
from tests.fuzz.tables import database_cases, preferences_cases
from tests.warm import run_warm

pytestmark = pytest.mark.slow

SECONDS = 120
DRAWN = {"ratings": (ratings_cases, 2), "items": (items_cases, 1), "settings": (settings_cases, 3),
         "policy": (policy_cases, 1), "command": (command_cases, 6),
         "preferences": (preferences_cases, 1), "database": (database_cases, 1)}  # fmt: skip
"""Few, because a process takes seconds: tests/fuzz/test_in_process.py has the many."""
ROWS = "".join(f"{SECRET_USER}{user},{item},{item}\n" for user in range(6) for item in range(1, 5))


def own(kind: str, ratings: str | bytes, *arguments: str, **variables: str) -> Case:
    raw = ratings if isinstance(ratings, bytes) else f"user,item,rating\n{ratings}".encode()
    return Case(kind, ("run", "--ratings", "films.csv", "--scale", "1:5:1", *arguments), {"films.csv": raw}, variables)


NASTIEST = (
    own("nastiest", f"{ROWS}{SECRET_USER},1,{SECRET_RATING}\n"),
    own("nastiest", f"{ROWS}{SECRET_USER},1,good{SECRET_RATING}\n"),
    own("nastiest", ROWS.encode("utf-16")),
    own("nastiest", f"{ROWS}{SECRET_USER}\n"),
    own("nastiest", ROWS, "--report", "films.csv"),
    own("nastiest", ROWS, "--report", "/dev/stdout"),
    own("nastiest", ROWS, "--delimiter", "é"),
    own("nastiest", ROWS, "--set", "pmf.precision=.inf"),
    own("nastiest", ROWS, PREFECT_API_URL="http://127.0.0.1:port/api"),
    own("nastiest", ROWS, JALI_LEDGER_URL="postgresql://h:port/x"),
    own("nastiest", ROWS, MLFLOW_TRACKING_URI="nonsense://x"),
    own("nastiest", ROWS, MLFLOW_TRACKING_URI="http://[::1"),
    Case("nastiest", ("validate", "--ratings", "/dev/zero")),
    beside_good_ratings("nastiest", ("run", "c.yaml"), c_yaml=b"x: !!python/object/apply:os.system ['touch pwned']\n"),
)


def drawn(strategy: st.SearchStrategy[Case], n: int) -> list[Case]:
    """The same cases in every run."""
    cases: list[Case] = []

    @settings(max_examples=4 * n, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def collect(case: Case) -> None:
        cases.append(case)

    collect()
    runs = [case for case in cases[1:] if case.arguments[:1] == ("run",)]  # the first is the simplest there is
    quick = [case for case in cases[1:] if case.arguments[:1] != ("run",)]
    return (runs[: max(n // 4, n - len(quick))] + quick)[:n]


@pytest.fixture
def tried(tmp_path: Path, shared_prefect: str, request: pytest.FixtureRequest) -> Callable[[Case], Outcome]:
    def run(case: Case) -> Outcome:
        quick = ("--no-publish", "--folds", "2", "--recommenders", "pmf") if case.arguments[:1] == ("run",) else ()
        variables = environment(**{"PREFECT_API_URL": shared_prefect, **case.variables})
        done = run_warm([*case.arguments[:1], *quick, *case.arguments[1:]], tmp_path, variables, SECONDS)
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    def try_one(case: Case) -> Outcome:
        outcome = judge(replace(case, kind=f"{case.kind}, real command"), tmp_path, run)
        for file in tmp_path.iterdir():
            if file.name != ".jali":
                file.unlink()
        return outcome

    yield try_one
    request.node.user_properties.append(("cases", counted()))
    assert try_one(Case("afterwards", ("ledger", "show"))).code == 0


@pytest.mark.parametrize("kind", DRAWN)
def test_drawn_cases(kind: str, tried: Callable[[Case], Outcome]) -> None:
    cases, n = DRAWN[kind]
    for case in drawn(cases(), n):
        tried(case)


@pytest.mark.parametrize("half", [0, 1])
def test_the_nastiest_cases_are_refused(half: int, tried: Callable[[Case], Outcome]) -> None:
    for case in NASTIEST[half::2]:
        assert tried(case).code, case
