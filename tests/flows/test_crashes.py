"""The real command, terminated in the middle and killed while it clears up, and run again."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.command import clean, jali, jali_as_installed, outcomes, write_ratings
from tests.made_up import made_up_ratings

pytestmark = pytest.mark.slow

DEADLY = """
import os, sys
from importlib.abc import MetaPathFinder


def deadly(client, name, signal):
    function = getattr(client, name)

    def dying(*arguments, **named):
        function(*arguments, **named)
        os.kill(os.getpid(), signal)

    setattr(client, name, dying)


class WhenItIsThere(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "tasks.figures":
            import mlflow
            deadly(mlflow.MlflowClient, "create_registered_model", {terminated:d})
            deadly(mlflow.MlflowClient, "delete_run", {killed:d})


sys.meta_path.insert(0, WhenItIsThere())
"""
"""The process is terminated once its model is logged, and killed once it has taken that back."""


def test_a_run_that_is_terminated_and_killed_is_finished_by_the_next_and_charged_once(
    tmp_path: Path, shared_prefect: str
) -> None:
    arguments = ["run", *write_ratings(tmp_path, made_up_ratings(n_users=30)), "--folds", "2"]
    arguments += ["--recommenders", "pdp-histogram", "--report", "r.json"]
    deadly = tmp_path / "deadly"
    deadly.mkdir()
    (deadly / "sitecustomize.py").write_text(DEADLY.format(terminated=signal.SIGTERM, killed=signal.SIGKILL))
    first = clean(jali_as_installed(tmp_path, *arguments, PREFECT_API_URL=shared_prefect, PYTHONPATH=str(deadly)))
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert outcomes(tmp_path) == ["spent"]

    second = clean(jali(tmp_path, *arguments, PREFECT_API_URL=shared_prefect))
    assert second.returncode == 0, second.stderr
    assert "Finishing what an interrupted run had paid for" in second.stderr
    assert outcomes(tmp_path) == ["version 1"]
    said = " ".join(second.stdout.split())
    assert "films.csv.pdp-histogram v1 is published from the run that was interrupted on" in said
    assert "This run spent nothing." in said
    told = json.loads((tmp_path / "r.json").read_text())["recommenders"][0]
    assert (told["version"], told["epsilon_spent"]) == ("1", 0)
    with closing(sqlite3.connect(tmp_path / ".jali" / "mlflow.db")) as tracked:
        tags = tracked.execute("SELECT value FROM tags WHERE key = 'release'").fetchall()
    assert tags == [("films.csv.pdp-histogram v1",)]
    assert list((tmp_path / ".jali" / "runs").iterdir()) == []
