"""Who decides what is served, and what a version of SOURCE.serving remembers of it."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

HISTORY = "promotion.history"
"""Tag of a version of SOURCE.serving: every decision about it, oldest first, as long as there is room."""
WAS_CHAMPION = "promotion.was_champion_until"
"""Tag of a version that was champion and was followed by another: when it was last. A rollback leads to no other."""

Gate = Literal["verdict", "budget", "metric", "audit", "code", "load", "schema"]
"""What has to let a version pass before it is served."""
GATES: tuple[Gate, ...] = get_args(Gate)

LONGEST = 5000
"""Characters that every MLflow keeps in a version's tag."""
LONGEST_WORDS = 400
"""Of each of them in the history."""

What = Literal["promoted", "replaced", "taken back", "brought back"]


@dataclass(frozen=True)
class Who:
    """Whose decision it is, when, and why; all three are stored and shown."""

    name: str
    at: str
    why: str

    @classmethod
    def now(cls, why: str | None) -> Who:
        """As this account, and the name that MLflow knows it by, where that is another."""
        names = dict.fromkeys((_account(), os.environ.get("MLFLOW_TRACKING_USERNAME", "")))
        return cls(" as ".join(filter(None, names)), f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", why or "")


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


def history_with(tags: Mapping[str, str], what: What, who: Who, although: str = "") -> dict[str, str]:
    """The tag of a version with these tags after one more decision; the oldest are left out where it is too long.

    Args:
      although: what spoke against it.
    """
    told = {"what": what, "by": who.name, "at": who.at, "why": who.why, "although": although}
    decisions = [*_decisions(tags), {name: text[:LONGEST_WORDS] for name, text in told.items() if text}]
    while len(text := json.dumps(decisions, ensure_ascii=False)) > LONGEST:
        decisions = decisions[1:]
    return {HISTORY: text}


def _decisions(tags: Mapping[str, str]) -> list[Any]:
    try:
        return list(json.loads(tags.get(HISTORY, "[]")))
    except (ValueError, TypeError, RecursionError):  # edited by hand: what is decided now is kept all the same
        return []
