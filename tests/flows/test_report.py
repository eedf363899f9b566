from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.exits import remember_termination
from flows.job import candidates, make_job
from flows.report import closing_lines, report, write_report
from flows.run import Done, Result, bill, paid_before
from models.candidate import Candidate
from models.errors import EnvironmentFault, SpecError
from models.release import ItemFactors, Release
from tasks import progress
from tasks.paths import require_writable
from tasks.recovery import Finished, Receipt, receipt
from tasks.runs import Pending
from tasks.training import Evaluation, FoldScores


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


def test_a_termination_that_prefect_lost_is_raised_at_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    class Termination(BaseException):
        """As Prefect's, which is no Exception either."""

    def prefects(number: int, frame: object) -> None:
        raise Termination

    monkeypatch.setattr(progress, "_interrupted", False)
    before = signal.signal(signal.SIGTERM, prefects)
    try:
        remember_termination()
        with suppress(Termination):  # as a destructor would
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(KeyboardInterrupt):
        progress.go_on()


JOB = make_job({"source": "films", "recommenders": "pdp-histogram"})
(CANDIDATE,) = candidates(JOB)
EVALUATION = Evaluation((FoldScores(0, None, None, None, 0.1, 0.2),))
RECEIPT = receipt(bill(JOB, CANDIDATE))


def left_behind(
    paid: Receipt = RECEIPT,
    source: str = "films",
    version: str | None = "3",
    data: str = JOB.data,
    of: Candidate = CANDIDATE,
) -> Finished:
    about = {
        "recommender": of.name,
        "settings": of.recommender.model_dump(mode="json"),
        "privacy": of.specification.model_dump(mode="json"),
        "guarantee": of.guarantee.model_dump(mode="json"),
    }
    kept = Pending(source, Release(ItemFactors(*np.ones((3, 1))), ("a",), ("A",), 1, 5, 1, about))
    return Finished("abc123", source, "pdp-histogram", "2026-11-20T17:05:09+00:00", paid, False, version, kept, data)


def test_what_an_interrupted_run_paid_for_is_taken_where_it_is_the_same_and_nowhere_else() -> None:
    same = left_behind()
    assert paid_before(JOB, [CANDIDATE], [same]) == {"pdp-histogram": same}
    dearer = make_job({"source": "films", "recommenders": "pdp-histogram", "privacy": {"epsilon": 2}})
    finer = make_job({**JOB.model_dump(exclude_unset=True), "settings": {"pdp-histogram": {"threshold": 0.5}}})
    scaled = make_job({**JOB.model_dump(exclude_unset=True), "scale": "1:5:1"})
    for other in (dearer, finer, scaled):
        assert paid_before(other, candidates(other), [left_behind()]) == {}
    more = receipt([*bill(JOB, CANDIDATE), replace(*bill(JOB, CANDIDATE), purpose="private metrics")])
    batch = receipt([replace(*bill(JOB, CANDIDATE), series="pdp-histogram batches")])
    unalike = [left_behind(more), left_behind(batch), left_behind(source="books"), left_behind(version=None)]
    for unlike in (*unalike, left_behind(data="")):
        assert paid_before(JOB, [CANDIDATE], [unlike]) == {}


def test_a_batch_is_never_taken_for_the_next_one() -> None:
    nightly = make_job({"source": "films", "recommenders": "pdp-histogram", "batch": True})
    (candidate,) = candidates(nightly)
    last_night = left_behind(receipt(bill(nightly, candidate)), of=candidate)
    assert last_night.candidate == candidate
    assert paid_before(nightly, [candidate], [last_night]) == {}


def test_what_a_run_was_told_of_the_ratings_is_written_down_without_secrets(tmp_path: Path) -> None:
    (file := tmp_path / "films.csv").touch()
    told = {"path": str(file), "checksum": f"md5:{'a1' * 16}"}
    job = make_job({"ratings": told, "recommenders": "pdp-histogram", "scale": "1:5:1"})
    assert str(file) in job.data
    assert "a1a1" not in job.data
    assert job.data == make_job({**job.model_dump(exclude_unset=True), "folds": 3}).data
    assert job.data != job.model_copy(update={"items": "items.csv"}).data


def test_a_release_that_was_paid_before_is_shown_and_costs_nothing_again() -> None:
    done = Done([Result(CANDIDATE, EVALUATION, "3")], [left_behind()])
    assert report(JOB, done.results, 1.0)["privacy"]["epsilon_spent"] == {}
    assert report(JOB, done.results, 1.0)["recommenders"][0]["epsilon_spent"] == 0
    said = closing_lines(JOB, done, 1.0)
    assert (
        "films.pdp-histogram v3 is published from the run that was interrupted on 2026-11-20 at 17:05 UTC; "
        "nothing was charged again." in said
    )
    assert "Run again for a new release." in said
    assert "This run spent nothing." in said


def test_what_was_given_back_or_lost_is_said() -> None:
    gone = replace(left_behind(version=None), kept=None)
    done = Done([Result(CANDIDATE, EVALUATION, "4", bill(JOB, CANDIDATE))], [gone, replace(gone, gave_back=True)])
    said = closing_lines(JOB, done, 1.0)
    assert any("stays charged; `jali ledger void abc123 --reason ...`" in line for line in said)
    assert any(line.endswith("had reserved was given back.") for line in said)
    assert "Run again for a new release." not in said
    assert "This run spent at most ε=1 for any rating of films (add or remove)." in said
