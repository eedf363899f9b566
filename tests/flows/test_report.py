from __future__ import annotations

from pathlib import Path

import pytest

from flows.report import write_report
from models.errors import EnvironmentFault, SpecError
from tasks import progress
from tasks.paths import require_writable


def test_a_report_that_cannot_be_written_is_found_out_before_the_work(tmp_path: Path) -> None:
    require_writable(str(tmp_path / "r.json"), "report", ".json")
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        require_writable(str(tmp_path / "no" / "such" / "r.json"), "report", ".json")


def test_a_report_named_like_a_folder_is_found_out_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="that is a folder"):
        require_writable(str(tmp_path), "report", ".json")


def test_a_report_does_not_overwrite_the_ratings(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").touch()
    (tmp_path / "r.json").touch()
    require_writable(str(tmp_path / "r.json"), "report", ".json")
    for precious in (tmp_path / "ratings.csv", Path("/dev/stdout")):
        with pytest.raises(SpecError, match="would overwrite"):
            require_writable(str(precious), "report", ".json")


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000, "y/" * 3000, "~no-such-user/r.json"])
def test_a_report_whose_name_is_none_is_found_out_in_a_short_sentence(name: str) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be written") as fault:
        require_writable(name, "report", ".json")
    assert len(str(fault.value)) < 900


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_report(str(tmp_path / "r.json"), {"seconds": 1.5})
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        write_report("/proc/r.json", {})


def test_an_interrupt_that_python_lost_is_raised_at_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_interrupted", False)
    progress.stage("Reading")
    progress.interrupt()
    for do in (progress.step, progress.go_on, lambda: progress.stage("Paying")):
        with pytest.raises(KeyboardInterrupt):
            do()
