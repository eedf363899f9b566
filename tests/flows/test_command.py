"""The command as a person types it, in processes of its own: with Prefect, MLflow and the ledger for real."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import httpx
import numpy as np
import pandas as pd
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from models.ratings import Ratings
from tests.command import (
    JALI,
    PRIVATE,
    SECRET,
    TWO,
    clean,
    environment,
    jali,
    jali_as_installed,
    outcomes,
    privacy_of,
    processes_of,
    servers_of,
    signalled,
    write_ratings,
)
from tests.made_up import made_up_ratings

pytestmark = pytest.mark.slow


def everything_stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (folder / ".jali").rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], subprocess.CompletedProcess[str]]:
    """One whole run that several tests look at."""
    folder = tmp_path_factory.mktemp("finished")
    arguments = write_ratings(folder, made_up_ratings())
    checked = [*arguments, "--checksum", f"sha256:{digest(folder)}"]
    return folder, arguments, clean(jali_as_installed(folder, "run", *checked, "--folds", "3", "--report", "r.json"))


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "films.csv").read_bytes()).hexdigest()


def test_a_run_prints_a_table_that_fits_and_says_where_to_look(finished) -> None:
    _, _, outcome = finished
    assert outcome.returncode == 0, outcome.stderr
    assert "\x1b" not in outcome.stdout + outcome.stderr
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    rows = [line.split() for line in outcome.stdout.splitlines()]
    (pmf,) = [row for row in rows if row[:1] == ["pmf"]]
    (histogram,) = [row for row in rows if row[:1] == ["pdp-histogram"]]
    assert pmf[1:4] == ["nothing", "-", "none"]
    assert pmf[-1] == "-"
    assert histogram[1:5] == ["one", "rating,", "1", "proven"]
    assert histogram[-1] == "v1"
    said = " ".join(outcome.stdout.split())
    assert (
        "dp-pmf, pdp-pmf, pdp-histogram: ε=4 (a changed rating pays twice what is private for one that comes or goes) "
        "claimed for any rating of films.csv (replace value), and not" in said
    )
    assert (
        "pdp-histogram: ε=1 claimed for any rating of films.csv (add or remove); dp-pmf, pdp-pmf, published too, "
        "promised nothing of it." in said
    )
    assert "dp-pmf, pdp-pmf: conditional; the proof holds U constant" in said
    assert "--recommenders pdp-histogram publishes only what is proven" in said
    assert "jali ui" in outcome.stdout
    stages = [line.split("s  ")[1] for line in outcome.stderr.splitlines()]
    assert stages[0] == "Starting Prefect"
    assert "Cross-validating: 12 of 12" in stages


def test_the_report_says_the_same_and_more(finished) -> None:
    folder, _, outcome = finished
    report = json.loads((folder / "r.json").read_text())
    pmf, dp_pmf, pdp_pmf, histogram = report["recommenders"]
    assert (dp_pmf["guarantee"]["verdict"], pdp_pmf["guarantee"]["verdict"]) == ("conditional", "conditional")
    assert report["dataset"]["source"] == "films.csv"
    assert histogram["epsilon_spent"] == 1
    assert report["privacy"]["epsilon_spent"] == {
        "replace_value": {"claimed": 4, "proven": None},
        "add_or_remove": {"claimed": None, "proven": None},
    }
    assert (pmf["version"], histogram["version"]) == (None, "1")
    assert histogram["guarantee"]["verdict"] == "proven"
    assert histogram["paper"] is None
    assert pmf["paper"]["rmse"] > 0
    assert {"rmse", "rmse_sd", "mae", "within_1", "ndcg_10"} <= set(histogram["client"]) & set(histogram["visitor"])
    assert f"{histogram['client']['rmse']:.4f}" in outcome.stdout
    assert report["seconds"] > histogram["cv_seconds"] > histogram["fit_seconds"] > 0


def test_the_ledger_shows_what_was_spent(finished) -> None:
    folder, _, _ = finished
    outcome = clean(jali(folder, "ledger", "show"))
    assert outcome.returncode == 0
    assert "version 1" in outcome.stdout.replace("\n", " ")
    said = " ".join(outcome.stdout.split())
    assert "films.csv: ε=1, δ=0 claimed, and not proven as a whole, for each rating (add or remove)" in said
    assert "dp-pmf, pdp-pmf promised nothing of it, so that nothing bounds the whole." in said
    assert "films.csv: ε=4, δ=0 claimed, and not proven as a whole, for each rating (replace value)" in said
    other = jali(folder, "ledger", "show", "--source", "other")
    assert (other.returncode, other.stderr) == (2, "jali: the ledger has nothing of other. It has films.csv.\n")


def test_prefect_knows_paths_and_settings_and_no_user_and_no_rating(finished) -> None:
    folder, _, _ = finished
    database = sqlite3.connect(folder / ".jali" / "prefect" / "prefect.db")
    ((parameters,),) = database.execute("SELECT parameters FROM flow_run").fetchall()
    ((name, state),) = database.execute("SELECT name, state_type FROM flow_run").fetchall()
    tasks = {row[0] for row in database.execute("SELECT name FROM task_run").fetchall()}
    database.close()
    assert json.loads(parameters)["job"]["ratings"]["path"] == "films.csv"
    assert (name, state) == ("films.csv", "COMPLETED")
    assert {"pdp-histogram fold 2", "fit pdp-histogram for release"} <= tasks
    assert SECRET.encode() not in everything_stored(folder)
    assert digest(folder).encode() not in everything_stored(folder)


def test_state_is_private_to_its_owner(finished) -> None:
    folder, _, _ = finished
    for path in [folder / ".jali", *(folder / ".jali").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_no_publish_reserves_and_publishes_nothing(tmp_path: Path, shared_prefect: str) -> None:
    arguments = write_ratings(tmp_path, made_up_ratings(n_users=30))
    (forgotten := tmp_path / ".jali" / "folds" / "books").mkdir(parents=True)
    (forgotten / "fold.json").touch()
    os.utime(forgotten / "fold.json", times=(0, 0))
    outcome = clean(jali(tmp_path, "run", *arguments, *TWO, "--no-publish", PREFECT_API_URL=shared_prefect))
    assert outcome.returncode == 0, outcome.stderr
    assert not forgotten.exists(), "what a run of another source left in 1970"
    assert "Nothing was published and nothing spent" in outcome.stdout
    assert outcomes(tmp_path) == []


def damaged(ratings: Ratings, **columns: np.ndarray) -> Ratings:
    values = {"users": ratings.users, "items": ratings.items, "values": ratings.values, **columns}
    return Ratings(
        values["users"], values["items"], values["values"], ratings.user_labels, ratings.catalogue, ratings.scale
    )


def test_bad_ratings_stop_the_run_with_a_sentence_per_rule_and_the_next_run_works(
    tmp_path: Path, shared_prefect: str
) -> None:
    good = made_up_ratings(n_users=30)
    values, items = good.values.copy(), good.items.copy()
    values[5], items[7] = 17.25, items[8]
    arguments = [*write_ratings(tmp_path, damaged(good, values=values, items=items)), *TWO]
    outcome = clean(jali(tmp_path, "run", *arguments, PREFECT_API_URL=shared_prefect))
    assert outcome.returncode == 1
    sentences = re.findall(r"\[([a-z-]+)\]", outcome.stderr)
    assert set(sentences) == {"rating-range", "rating-step", "one-rating-per-pair"}
    assert "17.25" not in outcome.stdout + outcome.stderr
    assert b"17.25" not in everything_stored(tmp_path)
    assert set(outcomes(tmp_path)) == {"given back"}

    closer = clean(jali(tmp_path, "validate", *arguments[:-2]))
    assert closer.returncode == 1
    assert "Data rows: 6." in closer.stdout

    write_ratings(tmp_path, good)
    again = clean(jali(tmp_path, "run", *arguments, PREFECT_API_URL=shared_prefect))
    assert again.returncode == 0, again.stderr
    assert " v1\n" in again.stdout


def test_a_run_from_a_database_stores_its_address_as_written_and_nothing_of_the_environment(
    tmp_path: Path, shared_prefect: str
) -> None:
    write_ratings(tmp_path, made_up_ratings(n_users=30))
    (tmp_path / "expanded-4711").mkdir()
    with sqlite3.connect(tmp_path / "expanded-4711" / "x.db") as database:
        pd.read_csv(tmp_path / "films.csv").to_sql("films", database)
    database.close()
    arguments = [
        "--ratings",
        "sqlite:///${FOLDER}/x.db",
        "--table",
        "films",
        "--items",
        "items.csv",
        "--scale",
        "1:5:1",
    ]
    more = {"FOLDER": "expanded-4711", "PREFECT_API_URL": shared_prefect}
    outcome = clean(jali(tmp_path, "run", *arguments, *TWO, "--report", "r.json", **more))
    assert outcome.returncode == 0, outcome.stderr
    assert "any rating of films (add or remove)" in " ".join(outcome.stdout.split())
    assert json.loads((tmp_path / "r.json").read_text())["dataset"]["ratings"] == "sqlite:///${FOLDER}/x.db"
    assert b"expanded-4711" not in everything_stored(tmp_path)
    assert jali(tmp_path, "validate", *arguments, **more).stdout == "films: every rule holds.\n"
    refused = clean(jali(tmp_path, "run", "--ratings", f"postgresql://me:{SECRET}@h/d", "--table", "t", **more))
    assert refused.returncode == 2
    unreachable = clean(
        jali(tmp_path, "validate", "--ratings", "postgresql://127.0.0.1:1/d", "--table", "t", *arguments[4:])
    )
    assert unreachable.returncode == 3


def test_what_people_asked_for_shapes_the_release_and_is_stored_nowhere(tmp_path: Path, shared_prefect: str) -> None:
    arguments = [*write_ratings(tmp_path, made_up_ratings(n_users=30)), "--default-epsilon", "0.5", "--cap", "2"]
    lines = [f"{SECRET}-{user},{0.123456 + user / 20}" for user in range(25)]
    (tmp_path / "asked.csv").write_text("\n".join(["user,epsilon", *lines, ""]))
    arguments += ["--preferences", "asked.csv", "--unit", "user"]
    outcome = clean(jali(tmp_path, "run", *arguments, "--folds", "2", PREFECT_API_URL=shared_prefect))
    assert outcome.returncode == 0, outcome.stderr
    assert "≤2 proven" in " ".join(outcome.stdout.split())
    assert "spent at most ε=2 at δ=1e-06 for any user of films.csv" in outcome.stdout
    stored = everything_stored(tmp_path)
    assert SECRET.encode() not in stored
    assert b"0.123456" not in stored
    assert b"privacy.preferences.cap" in stored

    (tmp_path / "asked.csv").write_text("\n".join(["user,epsilon", *lines, lines[0], f"{SECRET},-7.125", ""]))
    refused = clean(jali(tmp_path, "run", *arguments, "--folds", "2", PREFECT_API_URL=shared_prefect))
    assert refused.returncode == 1
    assert set(re.findall(r"\[([a-z-]+)\]", refused.stderr)) == {"preference-range", "one-preference-each"}
    assert b"7.125" not in everything_stored(tmp_path)
    closer = clean(jali(tmp_path, "validate", *arguments[:-2]))
    assert "Data rows of the preferences: 27." in closer.stdout


def test_fetch_without_a_network_ends_with_three(tmp_path: Path) -> None:
    outcome = clean(jali(tmp_path, "fetch", "ml-100k", JALI_MOVIELENS_URL="http://127.0.0.1:1"))
    assert outcome.returncode == 3
    assert outcome.stderr.startswith("jali: http://127.0.0.1:1/ml-100k.zip cannot be fetched")
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments_end_with_two_and_one_sentence(tmp_path: Path, shared_prefect: str) -> None:
    for arguments in (["--epsilon", "0"], ["--set", "x"]):
        outcome = clean(jali(tmp_path, "run", *arguments, PREFECT_API_URL=shared_prefect))
        assert outcome.returncode == 2
        (sentence,) = [line for line in outcome.stderr.splitlines() if line.startswith("jali: ")]
        assert sentence.endswith(".")
    assert jali(tmp_path, "run", "--no-such-option").returncode == 2


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PREFECT_API_URL", "http://127.0.0.1:1/api"),
        ("MLFLOW_TRACKING_URI", "http://127.0.0.1:1"),
        ("JALI_LEDGER_URL", "sqlite:////nowhere/ledger.db"),
    ],
)
def test_a_server_that_does_not_answer_ends_with_three_before_a_rating_is_read(
    tmp_path: Path, variable: str, value: str, shared_prefect: str
) -> None:
    arguments = write_ratings(tmp_path, made_up_ratings(n_users=30))
    servers = {"PREFECT_API_URL": shared_prefect, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", variable: value}
    outcome = clean(jali(tmp_path, "run", *arguments, **servers))
    assert outcome.returncode == 3, outcome.stderr
    assert "Reading the ratings" not in outcome.stderr
    assert "Check" in outcome.stderr or "Start it" in outcome.stderr


def test_a_folder_that_cannot_be_written_ends_with_three() -> None:
    outcome = clean(jali(Path("/proc"), "run"))
    assert outcome.returncode == 3
    assert "cannot write there" in outcome.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_publishes_nothing_and_leaves_no_server_and_the_next_one_works(
    tmp_path: Path, how: signal.Signals
) -> None:
    arguments = [*write_ratings(tmp_path, made_up_ratings()), *TWO]
    slow_run = ["run", *arguments, "--set", "pmf.n_iterations=20000"]
    outcome, seconds = signalled(slow_run, tmp_path, "Cross-validating", how)
    if how == signal.SIGINT:
        assert outcome.returncode == 130
        assert outcome.stderr.splitlines()[-1].startswith("jali: interrupted.")
        assert "Exception ignored" not in outcome.stderr
        assert "Traceback" not in outcome.stderr
        assert set(outcomes(tmp_path)) == {"given back"}
        assert seconds < 15
    deadline = time.monotonic() + 20
    while servers_of(tmp_path):
        assert time.monotonic() < deadline, servers_of(tmp_path)
        time.sleep(0.2)
    again = clean(jali(tmp_path, "run", *arguments))
    assert again.returncode == 0, again.stderr
    assert " v1\n" in again.stdout
    assert outcomes(tmp_path) == ["given back", "version 1"]


def test_both_user_interfaces_answer_on_free_ports_to_who_has_the_password_and_stop(finished, tmp_path: Path) -> None:
    folder, _, _ = finished
    process = subprocess.Popen(
        [JALI, "ui"], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout as lines:
        said = [next(lines) for _ in range(4)]
        addresses = dict(line.split() for line in said[1:3])
        assert set(addresses) == {"MLflow", "Prefect"}
        for address in addresses.values():
            with urlopen(address, timeout=10) as response:
                assert response.status == 200
        assert_asks_for_a_password(addresses["Prefect"], said[3].split()[-1])
        for command in (["run", *write_ratings(tmp_path, made_up_ratings(n_users=30))], ["schedule", "--list"]):
            stranger = clean(jali(tmp_path, *command, PREFECT_API_URL=f"{addresses['Prefect']}/api"))
            assert stranger.returncode == 3
            assert "does not know us. Set PREFECT_API_AUTH_STRING" in stranger.stderr
            assert "Reading the ratings" not in stranger.stderr
        assert len(processes_of(folder)) > 2
        assert {privacy_of(process) for process in [Path(f"/proc/{process.pid}"), *processes_of(folder)]} == {PRIVATE}
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    assert servers_of(folder) == []


def assert_asks_for_a_password(prefect: str, password: str) -> None:
    """Whoever may plant a run may have any command run, so neither another account nor a web page may."""

    def answer(method: str, origin: str, **more: str) -> httpx.Response:
        return httpx.request(method, f"{prefect}/api/flow_runs/count", headers={"Origin": origin, **more})

    assert answer("POST", prefect).status_code == 401
    known = {"Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"}
    wrong = {"Authorization": f"Basic {base64.b64encode(password[:-1].encode()).decode()}"}
    assert answer("POST", prefect, **wrong).status_code == 401
    allowed = {
        origin: [
            reply.headers.get("Access-Control-Allow-Origin")
            for reply in (
                answer("POST", origin, **known),
                answer("OPTIONS", origin, **{"Access-Control-Request-Method": "POST"}),
            )
        ]
        for origin in (prefect, "https://evil.example", "null")
    }
    assert allowed == {prefect: [prefect] * 2, "https://evil.example": [None] * 2, "null": [None] * 2}
    assert answer("POST", prefect, **known).status_code == 200
    with pytest.raises(InvalidStatus), connect(f"{prefect.replace('http', 'ws')}/api/events/in"):
        pass


def test_help_answers_at_once_and_every_command_has_some(tmp_path: Path) -> None:
    for command in ([], ["run"], ["validate"], ["recommenders"], ["ledger"], ["ledger", "show"], ["ui"], ["fetch"]):
        outcome = jali_as_installed(tmp_path, *command, "--help")
        assert outcome.returncode == 0
        assert "Usage" in outcome.stdout
    program = (
        "import sys; import flows.cli; print([m for m in ('prefect', 'mlflow', 'numpy', 'pandas') if m in sys.modules])"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert outcome.stdout == "[]\n"


def test_recommenders_are_listed_with_their_settings(tmp_path: Path) -> None:
    outcome = jali(tmp_path, "recommenders")
    assert outcome.returncode == 0
    text = " ".join(outcome.stdout.split())
    assert "--set pdp-histogram .threshold=max" in text
    assert "Nothing is promised" in text
