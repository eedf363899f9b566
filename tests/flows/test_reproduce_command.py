"""`jali reproduce` in processes of its own: cut off in the middle, and going on where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.command import JALI, clean, environment, jali, write_ratings
from tests.made_up import made_up_ratings

pytestmark = pytest.mark.slow


def kept(folder: Path) -> dict[str, int]:
    """The stored cells, with the time at which each was written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / ".jali" / "prefect" / "storage").glob("*")}


def test_an_experiment_that_was_killed_goes_on_where_it_was(tmp_path: Path, shared_prefect: str) -> None:
    arguments = ["zhang-fig2", *write_ratings(tmp_path, made_up_ratings(n_users=60)), "--folds", "2"]
    process = subprocess.Popen(
        [JALI, "reproduce", *arguments],
        cwd=tmp_path,
        env=environment(PREFECT_API_URL=shared_prefect),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(kept(tmp_path)) < 5:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = kept(tmp_path)

    outcome = clean(jali(tmp_path, "reproduce", *arguments, "--page", "page.md", PREFECT_API_URL=shared_prefect))
    assert outcome.returncode == 0, outcome.stderr
    assert "Computing zhang-fig2: 42 of 42" in outcome.stderr
    after = kept(tmp_path)
    assert len(after) == 42
    complete = [name for name in before if after[name] == before[name]]
    assert len(complete) >= len(before) - 2  # those that were being written when the process was killed
    assert "PDP-PMF's RMSE" in outcome.stdout
    assert "## Figure 2" in (tmp_path / "page.md").read_text()
    assert not (tmp_path / ".jali" / "ledger.db").exists()

    (tmp_path / "data.csv").write_text("precious")
    refused = clean(jali(tmp_path, "reproduce", *arguments, "--page", "data.csv", PREFECT_API_URL=shared_prefect))
    assert refused.returncode == 2
    assert (tmp_path / "data.csv").read_text() == "precious"
