"""What a run holds while it pays and publishes, so that the next one can finish what a crash leaves half done.

`.jali/runs/RUN/` is there from before anything is reserved until everything is settled:

    lock         held by the run; the operating system lets go of it however the process dies
    run.json     its reservations, the ledger and the MLflow that know them, and what it was told of the ratings
    pending/ID/  a release that was paid for, until the run has come to its end: as public as it will be anywhere

Each is whole and on the disk before the step that relies on it begins. Who holds the lock owns the folder: the run
itself, and once that is dead whoever takes the lock to finish it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from models.candidate import Candidate
from models.errors import EnvironmentFault, JaliError, Refused
from models.release import Release
from tasks.durable import to_disk, write_whole
from tasks.guard import guarded
from tasks.ledger import Ledger, Reservation
from tasks.ledger_entries import Charge
from tasks.state import State, without_credentials

LOCK, ABOUT, PENDING, BESIDE = "lock", "run.json", "pending", "publication.json"


@dataclass(frozen=True, eq=False)
class Pending:
    """All that publication needs besides the reservation that pays for it."""

    source: str
    release: Release

    @property
    def candidate(self) -> Candidate:
        """What was fitted, as it was offered."""
        return Candidate.of(self.release)

    def save(self, folder: Path) -> None:
        """Write it into `folder`, which exists."""
        self.release.save(folder)
        (folder / BESIDE).write_text(json.dumps({"source": self.source}))

    @classmethod
    def load(cls, folder: Path) -> Pending:
        """Read it. Raises ReleaseError, OSError, ValueError or KeyError where a file is missing or damaged."""
        return cls(json.loads((folder / BESIDE).read_text())["source"], Release.load(folder))


class RunFolder:
    """The folder of a run, held by this process until `close`."""

    def __init__(self, folder: Path, lock: int, state: State) -> None:
        self._folder, self._lock, self._places = folder, lock, _places(state)

    @property
    def reservation_ids(self) -> list[str]:
        """Those that were going to be made; the ledger may know none of them yet."""
        return [str(name) for name in _about(self._folder)["reservations"]]

    @property
    def data(self) -> str:
        """What it was told of the ratings."""
        return str(_about(self._folder)["data"])

    @property
    def is_of_these_places(self) -> bool:
        """Whether the ledger and the MLflow in use are those that know its reservations."""
        return _about(self._folder)["places"] in (self._places, None)

    @guarded("Reserving")
    def reserve(
        self, ledger: Ledger, bills: Sequence[Sequence[Charge]], *, require_budget: bool = False, data: str = ""
    ) -> list[Reservation]:
        """Write down what is going to be reserved, then reserve it: a reservation always has an owner who can die.

        Args:
          data: see `paying`.

        Raises:
          As `Ledger.reserve`.
        """
        ids = [uuid4().hex for _ in bills]
        about = {"reservations": ids, "places": self._places, "data": data}
        write_whole(self._folder / ABOUT, json.dumps(about).encode())
        to_disk(self._folder.parent)
        return ledger.reserve(bills, ids=ids, require_budget=require_budget)

    @guarded("Keeping what was fitted")
    def keep(self, reservation_id: str, pending: Pending) -> None:
        """Put a release that was paid for on the disk, whole or not at all, before anybody sees it."""
        place = self._pending(reservation_id)
        part = place.with_name(f".{place.name}")
        part.mkdir(parents=True)
        pending.save(part)
        to_disk(*part.iterdir(), part)
        part.rename(place)
        to_disk(place.parent, self._folder)

    def keeps(self, reservation_id: str) -> bool:
        return self._pending(reservation_id).is_dir()

    def kept(self, reservation_id: str) -> Pending:
        return Pending.load(self._pending(reservation_id))

    def drop(self, reservation_id: str) -> None:
        """Forget what was kept, if it was, for a reservation that was given up."""
        if self.keeps(reservation_id):
            shutil.rmtree(self._pending(reservation_id))

    def remove(self) -> None:
        """Remove the folder, once all its reservations are settled: at one stroke, however long the deleting takes."""
        gone = self._folder.with_name(f".{self._folder.name}")
        with suppress(OSError):  # what is left of it is for the next run
            self._folder.rename(gone)
            shutil.rmtree(gone)

    def close(self) -> None:
        """Let go of it: what is still there is for the next run to finish."""
        os.close(self._lock)

    def _pending(self, reservation_id: str) -> Path:
        return self._folder / PENDING / reservation_id


@contextmanager
def paying(
    state: State,
    ledger: Ledger,
    bills: Sequence[Sequence[Charge]],
    *,
    require_budget: bool = False,
    data: str = "",
) -> Iterator[tuple[RunFolder, list[Reservation]]]:
    """Reserve what a run is going to release; settle it at the end.

    Args:
      data: what the run was told of the ratings, without secrets; a later run takes as its own only what was made of
        the same.

    Raises:
      As `own_run` and `Ledger.reserve`.
    """
    with own_run(state) as own:
        try:
            reservations = own.reserve(ledger, bills, require_budget=require_budget, data=data)
        except Refused:  # and nothing is in the ledger; where that is not sure the folder stays
            own.remove()
            raise
        with settled(own, reservations):
            yield own, reservations


def _is_given_up(reservation: Reservation) -> bool:
    """Whether somebody voided it since; no, where the ledger does not say."""
    with suppress(JaliError):
        return reservation.ledger.reservation(reservation.id).state == "void"
    return False


@contextmanager
def own_run(state: State) -> Iterator[RunFolder]:
    """A folder of this run's own.

    Raises:
      EnvironmentFault: the disk is full, or the file system knows no locks.
    """
    own = _new_run(state)
    try:
        yield own
    finally:
        own.close()


@contextmanager
def settled(own: RunFolder, reservations: Sequence[Reservation]) -> Iterator[None]:
    """At the end, however it comes, give back what was not spent, and mark as failed what was spent for nothing.

    A run that does not come to its end leaves what it fitted to the next one: that publishes what is not published,
    and takes for its own what it would have fitted alike. What somebody voided meanwhile is not kept.
    """
    came_to_its_end = False
    try:
        yield
        came_to_its_end = True
    except JaliError as error:
        if any(r.state == "commit" and own.keeps(r.id) and not _is_given_up(r) for r in reservations):
            error.args = (f"{error} What was fitted is kept: the next run publishes it and charges nothing for it.",)
        raise
    finally:
        given_up = [reservation for reservation in reservations if _is_given_up(reservation)]
        for reservation in given_up:
            own.drop(reservation.id)
        kept = [
            reservation
            for reservation in reservations
            if own.keeps(reservation.id) and (reservation.state == "commit" or not came_to_its_end)
        ]
        for reservation in reservations:
            if reservation not in [*kept, *given_up]:
                reservation.close()
        if not kept:
            own.remove()


def abandoned_runs(state: State) -> Generator[RunFolder, None, None]:
    """The folders of runs that did not come to their end, each held until the next one is asked for.

    Those whose reservations are in another ledger, or whose versions in another MLflow, wait for a run that uses them.

    Raises:
      EnvironmentFault: a folder is damaged.
    """
    for removed in _runs(state).glob(".*"):
        shutil.rmtree(removed, ignore_errors=True)
    for folder in _folders(state):
        lock = _take(folder)
        if lock is None:
            continue
        run = RunFolder(folder, lock, state)
        try:
            if run.is_of_these_places:
                yield run
        finally:
            run.close()


@contextmanager
def run_of(state: State, reservation_id: str) -> Iterator[RunFolder | None]:
    """The folder of the dead run that made the reservation, held by us; None where no run here did.

    Raises:
      Refused: the run is alive, or used another ledger or MLflow.
    """
    folder = next((folder for folder in _folders(state) if _is_of(folder, reservation_id)), None)
    if folder is None:
        yield None
        return
    lock = _take(folder)
    if lock is None:
        raise Refused("the run that made this charge is still at work. Wait for its end, or stop it. Nothing was done.")
    run = RunFolder(folder, lock, state)
    try:
        if _is_elsewhere(run):
            raise Refused(
                "the run that made this charge used another ledger or another MLflow. Set JALI_LEDGER_URL and "
                "MLFLOW_TRACKING_URI as they were then. Nothing was done."
            )
        yield run
    finally:
        run.close()


@guarded("Beginning the run")
def _new_run(state: State) -> RunFolder:
    while True:
        folder = _runs(state) / uuid4().hex
        folder.mkdir(parents=True)
        lock = _take(folder)
        if lock is not None:  # otherwise somebody who was clearing up was quicker
            return RunFolder(folder, lock, state)


def _take(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where another process holds it or the folder is gone."""
    path = folder / LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), path.stat()):  # and not one that was removed while we opened it
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _runs(state: State) -> Path:
    return state.folder / "runs"


def _folders(state: State) -> list[Path]:
    return sorted(folder for folder in _runs(state).glob("[!.]*") if folder.is_dir())


def _is_of(folder: Path, reservation_id: str) -> bool:
    """Whether the folder's run made the reservation. A damaged one is known by what it keeps, or not at all."""
    with suppress(EnvironmentFault):
        return reservation_id in _about(folder)["reservations"]
    return (folder / PENDING / reservation_id).is_dir()


def _is_elsewhere(run: RunFolder) -> bool:
    """Whether its ledger or MLflow is known to be another."""
    with suppress(EnvironmentFault):
        return not run.is_of_these_places
    return False


def _about(folder: Path) -> dict[str, Any]:
    """What the folder says of itself; nothing, where its run ended before it reserved."""
    try:
        about = json.loads((folder / ABOUT).read_text())
        return {"reservations": list(about["reservations"]), "places": about["places"], "data": about.get("data", "")}
    except FileNotFoundError:
        return {"reservations": [], "places": None, "data": ""}
    except (OSError, ValueError, TypeError, KeyError):
        fault = EnvironmentFault(
            f"{folder / ABOUT}, which a run left when it was interrupted, cannot be read. Look at `jali ledger show` "
            "for what it reserved or spent; `jali ledger void ID --gone --reason ...` ends that, and then remove the "
            "folder."
        )
    raise fault


def _places(state: State) -> dict[str, str | None]:
    """Which ledger and MLflow are in use; None for those in the state folder, which may be moved with it."""
    own_ledger = state.ledger_url == f"sqlite:///{state.folder / 'ledger.db'}"
    return {
        "ledger": None if own_ledger else without_credentials(state.ledger_url),
        "mlflow": None if state.tracks_locally else without_credentials(state.tracking_uri),
    }
