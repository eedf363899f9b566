"""`jali run --batch`, night after night, and `jali withdraw`: the command's own code, in one process to save time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.errors import Refused
from models.histogram.pdp_histogram import PDPHistogram
from models.ratings import Ratings
from tasks.batches import open_batch, release_before
from tasks.ledger import Ledger
from tasks.state import State
from tasks.tracking import open_tracking
from tests.command import SECRET, clean, environment, write_ratings
from tests.made_up import made_up_ratings

pytestmark = pytest.mark.slow

NIGHTS = """
import os, sys, shutil
from flows.cli import app
from tasks.ledger import Ledger
from tasks.state import current_state
command, user = sys.argv[1:-1], sys.argv[-1]
def tell():
    spent = Ledger(current_state()).spent("films", unit="rating", relation="add_or_remove")
    print(f"spent {spent.epsilon:g} {spent.is_proven}", flush=True)
for night in ("1", "2", "3"):
    shutil.copy(f"night-{night}.csv", "films.csv")
    app(command, standalone_mode=False)
    tell()
for line in (user, "nobody", user):
    with open("asked", "w") as asked:
        asked.write(line + "\\n")
    sys.stdin = open("asked")
    app(["withdraw", "-"], standalone_mode=False)
    os.remove("asked")
    tell()
"""


def write_nights(folder: Path, ratings: Ratings) -> list[str]:
    """What the table holds on three nights, each night more of it."""
    arguments = write_ratings(folder, ratings)
    header, *rows = (folder / "films.csv").read_text().splitlines()
    for night, n_rows in enumerate((1000, 2000, 2000), start=1):  # nothing is new on the third
        (folder / f"night-{night}.csv").write_text("\n".join([header, *rows[:n_rows], ""]))
    return arguments


@pytest.fixture
def three_nights(tmp_path: Path, shared_prefect: str, monkeypatch: pytest.MonkeyPatch) -> tuple[State, str]:
    """A folder in which batches were released and a user has withdrawn; and what was said."""
    command = ["run", *write_nights(tmp_path, made_up_ratings()), "--batch", "--folds", "2", "--source", "films"]
    process = subprocess.run(
        [sys.executable, "-c", NIGHTS, *command, f"{SECRET}-3"],
        cwd=tmp_path,
        env=environment(PREFECT_API_URL=shared_prefect),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert clean(process).returncode == 0, process.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return State(tmp_path / ".jali"), process.stdout


def test_three_nights_cost_what_one_does_and_a_withdrawal_one_more(three_nights: tuple[State, str]) -> None:
    state, said = three_nights
    assert [line for line in said.splitlines() if line.startswith("spent")] == ["spent 1 True"] * 3 + [
        "spent 2 True"
    ] * 3
    said = " ".join(said.split())
    assert said.count("stay as they were; --corrections would correct them") == 3
    assert "films.pdp-histogram v4 is without this user's ratings" in said
    assert said.count("No batch of films holds ratings of this user") == 2  # a stranger, and who has withdrawn
    entries = Ledger(state).entries()
    assert [entry.outcome for entry in entries] == ["version 1", "version 2", "version 3", "version 4"]
    assert [entry.purpose for entry in entries] == ["release"] * 3 + ["withdrawal"]
    stored = b"".join(path.read_bytes() for path in state.folder.rglob("*") if path.is_file())
    assert SECRET.encode() not in stored

    ratings = made_up_ratings()
    before = release_before("films", "pdp-histogram")
    assert before is not None
    n_cells = before.statistics["histogram"].size
    assert before.statistics["cell_variance"].tolist() == [8] * ratings.n_items
    held = before.statistics["histogram"].sum() / 1024
    assert held == pytest.approx((ratings.users[:2000] != 3).sum(), abs=6 * np.sqrt(8 * n_cells))
    batch = open_batch("films", PDPHistogram(), as_named(ratings), "fresh")
    assert 3 not in batch.users
    assert batch.batch is not None
    assert batch.batch.enters.sum() == (ratings.users[2000:] != 3).sum()

    open_tracking(state).delete_model_version("films.pdp-histogram", "4")
    with pytest.raises(Refused, match="the registry has no version"):
        open_batch("films", PDPHistogram(), as_named(ratings), "fresh")


def as_named(ratings: Ratings) -> Ratings:
    """With the user labels that `write_ratings` gives."""
    return replace(ratings, user_labels=tuple(f"{SECRET}-{user}" for user in range(ratings.n_users)))
