"""Which versions the ledger has to answer for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tasks.registry import HEAD, LEDGER, RESERVATION, released_versions


def test_only_versions_that_a_ledger_paid_for_are_asked_about() -> None:
    paid = {"source": "films", LEDGER: "1", HEAD: "1:a", RESERVATION: "x"}
    by_hand = {"source": "films"}
    of_others = {**paid, "source": "films.old"}
    versions = [SimpleNamespace(tags=tags) for tags in (paid, by_hand, of_others)]
    client: Any = SimpleNamespace(search_model_versions=lambda *_, **__: versions)
    assert released_versions(client, "films") == versions[:1]
