"""The command as a person types it, in a process of its own, for whatever test wants to see it run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.ratings import Ratings
from tasks.ledger import Ledger
from tasks.servers import prefect_server
from tasks.state import State

JALI = str(Path(sys.executable).with_name("jali"))
SECRET = "unmistakable-user"


def environment(**more: str) -> dict[str, str]:
    ours = ("MLFLOW_", "PREFECT_", "JALI_", "COLUMNS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def jali(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [JALI, *arguments],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def write_ratings(folder: Path, ratings: Ratings) -> list[str]:
    """A ratings file and an items file in `folder`; returns the arguments that name them."""
    lines = [
        f"{SECRET}-{user},{ratings.catalogue.items[item]},{value:g}"
        for user, item, value in zip(ratings.users, ratings.items, ratings.values, strict=True)
    ]
    (folder / "films.csv").write_text("\n".join(["user,item,rating", *lines, ""]))
    items = [
        f"{item},{title},a|b" for item, title in zip(ratings.catalogue.items, ratings.catalogue.titles, strict=True)
    ]
    (folder / "items.csv").write_text("\n".join(["item,title,genres", *items, ""]))
    return ["--ratings", "films.csv", "--items", "items.csv", "--scale", "1:5:1"]


def outcomes(folder: Path) -> list[str]:
    """What became of every reservation in the folder's ledger."""
    return [entry.outcome for entry in Ledger(f"sqlite:///{folder}/.jali/ledger.db").entries()]


def clean(outcome: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert "Traceback" not in outcome.stdout + outcome.stderr
    assert SECRET not in outcome.stdout + outcome.stderr
    return outcome


@pytest.fixture(scope="session")
def shared_prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server for the runs of which the server is not what is tested."""
    state = State(tmp_path_factory.mktemp("prefect"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(state.folder))
        patch.delenv("PREFECT_API_URL", raising=False)
        with prefect_server(state) as wait:
            url = os.environ["PREFECT_API_URL"]
            wait()
            yield url
