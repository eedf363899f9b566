"""A thousand bad inputs, in this process: whatever is typed or written, one sentence and the right exit code.

The cases are the same in every run (`derandomize`); a failing one is printed with the way to repeat it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.case import Case
from tests.fuzz.command_lines import GOOD, audit_cases, command_cases
from tests.fuzz.oracle import counted, in_an_empty_folder, in_process, judge, tally
from tests.fuzz.ratings_files import FORMATS_AS_WRITTEN, items_cases, ratings_cases
from tests.fuzz.settings_files import beside_good_ratings, policy_cases, settings_cases
from tests.fuzz.tables import database_cases, parquet_cases, preferences_cases

pytestmark = pytest.mark.slow


TIMES = int(os.environ.get("JALI_CAMPAIGN", "1"))
"""How much longer than in every test run the campaign is."""


def campaign(cases: int) -> settings:
    return settings(
        max_examples=TIMES * cases,
        derandomize=True,
        print_blob=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def tried(case: Case) -> None:
    with in_an_empty_folder() as folder:
        judge(case, folder, in_process)


@campaign(120)
@given(ratings_cases())
def test_ratings_files(case: Case) -> None:
    tried(case)


@campaign(50)
@given(parquet_cases())
def test_parquet_of_all_types(case: Case) -> None:
    tried(case)


@campaign(60)
@given(database_cases())
def test_databases(case: Case) -> None:
    tried(case)


@campaign(50)
@given(preferences_cases())
def test_preferences(case: Case) -> None:
    tried(case)


@campaign(50)
@given(items_cases())
def test_items_files(case: Case) -> None:
    tried(case)


@campaign(120)
@given(settings_cases())
def test_configurations(case: Case) -> None:
    tried(case)


@campaign(30)
@given(policy_cases())
def test_policies(case: Case) -> None:
    tried(case)


@campaign(150)
@given(command_cases())
def test_command_lines(case: Case) -> None:
    tried(case)


@campaign(60)
@given(audit_cases())
def test_audits(case: Case) -> None:
    tried(case)


@pytest.fixture(autouse=True)
def _a_good_run_still_works(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing that a bad case did may stay behind in the process."""
    yield
    request.node.user_properties.append(("cases", counted()))
    for command in ("validate", "run"):
        case = beside_good_ratings("good", (command, *GOOD))
        with in_an_empty_folder() as folder:
            assert judge(case, folder, in_process).code == 0
    tally.clear()


def test_every_format_is_among_the_cases() -> None:
    from tasks.rating_files import FORMATS

    assert set(FORMATS_AS_WRITTEN) == set(FORMATS), "a format is one entry of FORMATS_AS_WRITTEN"
