"""Giving up a release that was paid for: its charge, and what was kept or half published of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.errors import Refused
from tasks.guard import guarded
from tasks.ledger import Ledger, Reservation, require_reason
from tasks.runs import run_of
from tasks.state import State

if TYPE_CHECKING:
    from mlflow import MlflowClient


@guarded("Voiding the charge")
def void(state: State, ledger: Ledger, name: str, reason: str, *, gone: bool = False) -> Reservation:
    """Void a charge, and delete what was kept or half published of its release.

    Args:
      gone: whether somebody says that the run can never go on, where its folder is not here to show it.

    Raises:
      Refused: its run is alive or of another working folder, or a version of it is registered; and as `Ledger.void`.
      EnvironmentFault: MLflow, which would know of a version, does not answer.
    """
    require_reason(reason)
    reservation = ledger.reservation(name)
    with run_of(state, reservation.id) as run:
        if reservation.state not in ("commit", "fail"):  # nothing was fitted, or the ledger refuses
            return ledger.void(name, reason)
        if run is None and reservation.state == "commit" and not gone:
            raise Refused(
                "the run that made this charge is not of this working folder, and may yet publish what it fitted. Void "
                "it there; or, if that folder is gone for good and the run can never go on, say so with --gone. "
                "Nothing was changed."
            )
        client = _registry(state)
        if client is not None:
            _require_unregistered(client, reservation)
        voided = ledger.void(name, reason)
        if run is not None:
            if client is not None and run.keeps(reservation.id):
                from tasks.publishing import take_back

                take_back(client, reservation.source, reservation.recommender, reservation.id)
            run.drop(reservation.id)
    return voided


def _registry(state: State) -> MlflowClient | None:
    """Where a version would be; None where MLflow was never used, and would take seconds to make its tables."""
    if state.tracks_locally and not state.tracking_database.exists():
        return None
    from tasks.tracking import open_tracking  # seconds to import

    return open_tracking(state)


def _require_unregistered(client: MlflowClient, reservation: Reservation) -> None:
    from tasks.publishing import versions_paid_by

    for version in versions_paid_by(client, reservation.id):
        what_next = (
            "The next run in its working folder puts it into the ledger."
            if reservation.state == "commit"
            else "If nobody can have seen it, delete that version first."
        )
        raise Refused(
            f"version {version.version} of {version.name} was made of this charge, and what was released cannot be "
            f"taken back. Nothing was changed. {what_next}"
        )
