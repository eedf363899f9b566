"""Nothing of the ratings is left behind, whatever becomes of a run: everything it leaves is searched for it.

A new scenario is one more line in SCENARIOS; what is looked for is in tests/planted.py, and where and how in
tests/leak_search.py, whose own tests show that it finds what is there.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from models.index import RECOMMENDERS
from models.privacy.specification import PrivacySpecification
from tasks.prefect_access import password
from tasks.state import State
from tests import planted_jali
from tests.command import SECONDS, TWO, as_text, environment, open_prefect, signalled
from tests.given_tables import give_tables
from tests.leak_search import Search, Secret
from tests.planted import (
    BAD_VALUE,
    COUNT,
    ID,
    INPUTS,
    N_RATINGS,
    N_USERS,
    NUMERIC_ID,
    PASSWORD,
    PATTERN,
    POPULAR,
    secrets_of,
    write_planted,
)
from tests.planted_jali import LEAKS, STAGES
from tests.warm import run_warm

pytestmark = pytest.mark.slow

BAD_ROWS = (f"{ID}-1,i17,{BAD_VALUE}", f"{ID}-2,i17,5", f"{ID}-3,elsewhere,5", f"{ID}-4,i3,much")


@dataclass(frozen=True)
class Scenario:
    """A command on planted ratings, and how it ends."""

    name: str
    ends_with: int = 0
    command: tuple[str, ...] = ("run", *TWO, "--report", "report.json")
    plants: tuple[str, ...] = ()
    bad_rows: tuple[str, ...] = ()
    sends: signal.Signals | None = None
    own_prefect: bool = False
    more: tuple[tuple[str, str], ...] = ()
    """Of the environment."""


SLOW = ("--set", "pmf.n_iterations=20000")

MEASURED = ("run", *TWO, "--private-metrics", "0.5", "--report", "report.json")
ENVIRONMENT = ("reading", "logging", "publishing")
"""Stages in which the planted exception is one of a disk's or a server's."""
LONG = "JALI_CAMPAIGN" in os.environ
LIKE_OTHERS = ("dealing", "logging", "validating")
"""Stages that are guarded as their neighbours are: looked at in a long campaign."""
PREFERENCES = ("--preferences", "asked.csv", "--default-epsilon", "0.1", "--cap", "1", "--unit", "rating")

SCENARIOS = [
    Scenario("a whole run", command=("run", "--folds", "2", "--report", "report.json"), own_prefect=True),
    *(
        Scenario(f"{stage} fails", 3 if stage in ENVIRONMENT else 4, MEASURED, plants=(stage,))
        for stage in STAGES
        if LONG or stage not in LIKE_OTHERS
    ),
    Scenario("bad rows", 1, bad_rows=BAD_ROWS),
    Scenario("validate bad rows", 1, command=("validate",), bad_rows=BAD_ROWS),
    Scenario("preferences", command=("run", "--folds", "2", "--report", "report.json", *PREFERENCES)),
    Scenario("a batch", command=("run", "--batch", "--corrections", "--folds", "2", "--report", "report.json")),
    Scenario("a paper's figure", command=("reproduce", "zhang-fig3", "--folds", "2", "--page", "page.md")),
    Scenario("interrupted", 130, command=("run", *TWO, *SLOW), sends=signal.SIGINT),
    Scenario("killed", -9, command=("run", *TWO, *SLOW), sends=signal.SIGKILL),
    Scenario(
        "MLflow does not answer",
        3,
        more=(
            ("MLFLOW_TRACKING_URI", f"http://me:{PASSWORD}@127.0.0.1:1?token={PASSWORD}"),
            ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0"),
        ),
    ),
    Scenario("Prefect does not answer", 3, more=(("PREFECT_API_URL", f"http://me:{PASSWORD}@127.0.0.1:1/api"),)),
]


@dataclass(frozen=True)
class Remains:
    """All that a command left: `work` is where it ran, `elsewhere` its temporary folder, its home, what it deleted."""

    work: Path
    elsewhere: Path
    console: str
    exit_code: int

    def search(self) -> Search:
        of_servers = Secret.text("password of our servers", password(State(self.work / ".jali")).partition(":")[2])
        search = Search((*secrets_of(self.work), of_servers))
        search.look("the terminal", self.console.encode())
        search.folder(self.work, but=INPUTS)
        search.folder(self.elsewhere)
        return search


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").glob("*"))


def remains_of(scenario: Scenario, folder: Path, prefect: str | None) -> Remains:
    """Run the scenario in `folder`."""
    work, elsewhere = folder / "work", folder / "elsewhere"
    places = {name: elsewhere / name for name in ("temporary", "home", "deleted", "shared-memory")}
    for place in (work, *places.values()):
        place.mkdir(parents=True)
    arguments = write_planted(work, *scenario.bad_rows)
    arguments = [",".join(scenario.plants), *scenario.command, *arguments]
    settings = {
        "TMPDIR": str(places["temporary"]),
        "HOME": str(places["home"]),
        "XDG_STATE_HOME": str(places["home"] / "state"),
        "MPLCONFIGDIR": str(folder.parent / "matplotlib"),  # a list of fonts, seconds to make
        "KEEP_DELETED": str(places["deleted"]),
        "MLFLOW_TRACKING_PASSWORD": PASSWORD,
        "PREFECT_API_AUTH_STRING": f"me:{PASSWORD}",
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        **({"PREFECT_API_URL": prefect} if prefect else {}),
        **dict(scenario.more),
    }
    give_tables(work)
    before = shared_memory()
    if scenario.sends:
        outcome, _ = signalled(arguments, work, "Cross-validating", scenario.sends, planted_jali.__file__, **settings)
    else:
        outcome = as_text(run_warm(arguments, work, environment(**settings), SECONDS, planted_jali.__file__))
    for path in shared_memory() - before:
        if path.is_file() and path.stat().st_uid == os.getuid():
            (places["shared-memory"] / path.name).write_bytes(path.read_bytes())
    return Remains(work, elsewhere, outcome.stdout + outcome.stderr, outcome.returncode)


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One Prefect server for these tests; what all of them left in it is searched when the last is over."""
    folder = tmp_path_factory.mktemp("prefect")
    with open_prefect(folder) as url:
        yield url
    ratings = tmp_path_factory.mktemp("ratings")
    write_planted(ratings)
    search = Search(secrets_of(ratings))
    search.folder(folder)
    assert told("Prefect, after all these", search) == []


def told(name: str, search: Search) -> list[str]:
    """The findings, after saying what was searched."""
    print(f"\n{name}: searched {search.summary()}: {len(search.findings)} found.")
    assert search.unread == []
    return [str(finding) for finding in search.findings]


def test_the_planted_numbers_are_those_of_the_ratings(tmp_path: Path) -> None:
    write_planted(tmp_path)
    rows = [line.split(",") for line in (tmp_path / "films.csv").read_text().splitlines()[1:]]
    assert len(rows) == len({(user, item) for user, item, _ in rows}) == N_RATINGS
    assert len({user for user, _, _ in rows}) == N_USERS
    assert [item for _, item, _ in rows].count(f"i{POPULAR}") == COUNT
    assert tuple(int(rating) for user, _, rating in rows if user == str(NUMERIC_ID)) == PATTERN


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_of_the_ratings_is_left_behind(scenario: Scenario, tmp_path: Path, request) -> None:
    url = None if scenario.own_prefect else request.getfixturevalue("prefect")
    remains = remains_of(scenario, tmp_path, url)
    assert remains.exit_code == scenario.ends_with, remains.console
    for plant in scenario.plants:
        assert f"{STAGES[plant][0]} failed" in remains.console  # there and not elsewhere
    assert told(scenario.name, remains.search()) == []
    if scenario.own_prefect:
        assert_releases_hold_nothing_unpaid(remains.work)
        assert len(list((remains.elsewhere / "deleted").iterdir())) > 3  # what was there for a moment was searched
    if scenario.sends is None and scenario.command[0] == "run":
        assert "Traceback" not in remains.console


FROM_EXACT_RATINGS = re.compile(r"rmse|mae|within|ndcg|fold|recall|precision|auc|seconds", re.IGNORECASE)


def assert_releases_hold_nothing_unpaid(work: Path) -> None:
    """Metrics, parameters and tags of release runs, versions and logged models; and no data set was ever logged."""
    with closing(sqlite3.connect(work / ".jali" / "mlflow.db")) as database:
        names = {name for (name,) in database.execute("SELECT name FROM experiments").fetchall()}
        assert {"films.csv", "films.csv.releases"} <= names
        experiment = "SELECT experiment_id FROM experiments WHERE name = 'films.csv.releases'"
        released = f"SELECT run_uuid FROM runs WHERE experiment_id IN ({experiment})"
        runs = {run for (run,) in database.execute(released).fetchall()}
        internal = database.execute(f"SELECT key FROM metrics WHERE run_uuid NOT IN ({released})").fetchall()
        assert "cv_rmse" in {key for (key,) in internal}
        for table in ("metrics", "latest_metrics"):
            keys = database.execute(f"SELECT DISTINCT key FROM {table} WHERE run_uuid IN ({released})").fetchall()
            assert keys == [("privacy.epsilon_spent",)], table
        assert {key for (key,) in database.execute("SELECT metric_name FROM logged_model_metrics").fetchall()} <= {
            "privacy.epsilon_spent"
        }
        said = []
        for table in ("params", "tags"):
            said += database.execute(f"SELECT key FROM {table} WHERE run_uuid IN ({released})").fetchall()
        for table, key in (
            ("model_version_tags", "key"),
            ("logged_model_tags", "tag_key"),
            ("logged_model_params", "param_key"),
        ):
            said += database.execute(f"SELECT {key} FROM {table}").fetchall()
        keys = {key for (key,) in said if not key.startswith("setting.")}  # what was declared, such as a precision
        assert {key for key in keys if FROM_EXACT_RATINGS.search(key)} == set()
        promises = [
            kind().promise(PrivacySpecification(epsilon=1, relation=kind.relation)) for kind in RECOMMENDERS.values()
        ]
        assert len(runs) == len([promise for promise in promises if promise.verdict != "none"])
        assert database.execute("SELECT * FROM datasets").fetchall() == []
        cards = [card for (card,) in database.execute("SELECT description FROM model_versions").fetchall()]
    assert len(cards) == len(runs)
    assert all("No accuracy is stated" in card and not re.search("RMSE|MAE|NDCG", card) for card in cards)
    figures = work / ".jali" / "artifacts"
    assert list((figures / "films.csv").rglob("privacy_utility.png"))
    assert not list((figures / "films.csv.releases").rglob("privacy_utility.png"))


def test_a_run_that_leaks_is_found_out(tmp_path: Path) -> None:
    """The positive control of the whole: every planted leak is reported, with the place where it is."""
    remains = remains_of(Scenario("leaks", 4, plants=tuple(LEAKS), own_prefect=True), tmp_path, None)
    assert remains.exit_code == 4, remains.console
    search = remains.search()
    print("\n".join(told("every planted leak", search)))
    found = {(finding.secret, finding.where) for finding in search.findings}
    for leak, where in (
        ("user id", "mlflow.db > sqlite"),
        ("user id", "the name .jali/"),
        ("ratings of an item", "mlflow.db > sqlite"),
        ("somebody's ratings", "deleted/"),
        ("seed", "noise.log"),
        ("numeric user id", "prefect.db"),
    ):
        assert [place for secret, place in found if secret == leak and where in place], leak
