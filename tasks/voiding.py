"""Giving up a release that was paid for: its charge, and what was kept or half published of it."""

from __future__ import annotations

from models.errors import Refused
from tasks.guard import guarded
from tasks.ledger import Ledger, Reservation, require_reason
from tasks.runs import run_of
from tasks.state import State


@guarded("Voiding the charge")
def void(state: State, ledger: Ledger, name: str, reason: str) -> Reservation:
    """Void a charge, and delete what was kept or half published of its release.

    Raises:
      Refused: its run is alive, or a version of it is registered; and as `Ledger.void`.
    """
    require_reason(reason)
    reservation = ledger.reservation(name)
    with run_of(state, reservation.id) as run:
        if run is None or not run.keeps(reservation.id):  # nothing is published that was not kept before
            return ledger.void(name, reason)
        from tasks.publishing import published_version, take_back  # seconds to import, and seldom needed
        from tasks.tracking import open_tracking

        client, about = open_tracking(state), (reservation.source, reservation.recommender, reservation.id)
        if reservation.state == "commit" and (version := published_version(client, *about)):
            raise Refused(
                f"version {version} of {reservation.source}.{reservation.recommender} was made of this charge, and "
                "what was released cannot be taken back. Nothing was changed; the next run puts it into the ledger."
            )
        voided = ledger.void(name, reason)
        take_back(client, *about)
        run.drop(reservation.id)
    return voided
