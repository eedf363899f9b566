"""What a version remembers of its audits, and which of them stand: one tag, of which all others are derived.

An audit that exceeded stands until one of the same relation stays within that tried as hard: with as many runs, and
with no more confidence to reach. Only what stands counts; the rest is kept as long as there is room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from models.errors import Refused

HISTORY = "audit.history"

RESULT, WITHIN, EXCEEDED = "audit.result", "within", "exceeded"
UNCLAIMED = "unclaimed"
"""Result of a run, and never of a version: more was shown than a claim that nobody made."""
CLAIMED, SHOWN, CONFIDENCE, RUNS = "audit.epsilon_claimed", "audit.epsilon_shown", "audit.confidence", "audit.runs"
RELATION = "audit.relation"
RUN, AT, TIMES, TIMES_EXCEEDED = "audit.run", "audit.at", "audit.times", "audit.times_exceeded"
"""Tags of a version for people. The first line is the verdict, the second what it rests on, the third where it is and
what was before; MLflow's run holds the rest."""

LONGEST = 5000
"""Characters that every MLflow keeps in a version's tag."""

MOST_DIGITS = 17


def told(value: float, limit: float, exceeded: bool) -> str:
    """`value` in as few digits, three at the least, as say on which side of `limit` it is."""
    for digits in range(3, MOST_DIGITS):
        text = f"{value:.{digits}g}"
        if (float(text) > limit) == exceeded:
            return text
    return f"{value:.{MOST_DIGITS}g}"


def told_share(share: float) -> str:
    """In percent; of what exceeds always above 100, and of what does not never."""
    for digits in range(MOST_DIGITS):
        text = f"{100 * share:.{digits}f}"
        if (float(text) > 100) == (share > 1):
            break
    return f"{text}%"


class Entry(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """One audit.

    Attributes:
      run: MLflow's id of the run that holds the rest; "" where it could not be logged.
      at: UTC.
      pair: a checksum of the neighbours.
    """

    relation: Literal["add_or_remove", "replace_value"]
    runs: Annotated[int, Field(ge=1)]
    confidence: Annotated[float, Field(gt=0.5, lt=1)]
    claimed: Annotated[float, Field(gt=0)]
    shown: Annotated[float, Field(ge=0)]
    exceeded: bool
    run: str
    at: str
    pair: str

    def tried_as_hard_as(self, other: Entry) -> bool:
        return self.relation == other.relation and self.runs >= other.runs and self.confidence <= other.confidence

    @property
    def shown_in_words(self) -> str:
        return told(self.shown, self.claimed, self.exceeded)


class History(BaseModel, frozen=True, extra="forbid"):
    """All audits of a version.

    Attributes:
      times, times_exceeded: also of those that are no longer listed.
      standing: those that exceeded and were not taken back, oldest first.
      past: all others, oldest first.
    """

    times: int = 0
    times_exceeded: int = 0
    standing: tuple[Entry, ...] = ()
    past: tuple[Entry, ...] = ()

    @model_validator(mode="after")
    def _agrees(self) -> History:
        exceeded = [entry for entry in (*self.standing, *self.past) if entry.exceeded]
        if not (
            all(entry.exceeded for entry in self.standing)
            and self.times >= max(self.times_exceeded, len(self.standing) + len(self.past))
            and self.times_exceeded >= len(exceeded)
            and (self.leading is not None or self.times == 0)
        ):
            raise ValueError("the numbers contradict each other")
        return self

    @property
    def leading(self) -> Entry | None:
        """What the version's result rests on: the hardest to take back, else the most thorough; None without audits."""
        return _hardest(self.standing) or self._most_thorough

    @property
    def _most_thorough(self) -> Entry | None:
        return _hardest([entry for entry in self.past if not entry.exceeded])

    @property
    def text(self) -> str:
        return self.model_dump_json()

    @property
    def tags(self) -> dict[str, str]:
        """Those for people; none without audits."""
        entry = self.leading
        if entry is None:
            return {}
        return {
            RESULT: EXCEEDED if entry.exceeded else WITHIN,
            CLAIMED: f"{entry.claimed:.4g}",
            SHOWN: entry.shown_in_words,
            CONFIDENCE: repr(entry.confidence),
            RUNS: str(entry.runs),
            RUN: entry.run,
            AT: entry.at,
            RELATION: entry.relation,
            TIMES: str(self.times),
            TIMES_EXCEEDED: str(self.times_exceeded),
        }

    def after(self, entry: Entry) -> History:
        """With one more audit, shortened to what a tag holds.

        Raises:
          Refused: what stands alone would not fit.
        """
        taken_back = () if entry.exceeded else tuple(old for old in self.standing if entry.tried_as_hard_as(old))
        standing = tuple(old for old in self.standing if old not in taken_back)
        longer = History(
            times=self.times + 1,
            times_exceeded=self.times_exceeded + entry.exceeded,
            standing=(*standing, entry) if entry.exceeded else standing,
            past=(*self.past, *taken_back) if entry.exceeded else (*self.past, *taken_back, entry),
        )
        while len(longer.text) > LONGEST:
            longer = longer._shorter()
        return longer

    def _shorter(self) -> History:
        """Without what the result depends on least: the oldest that is past, or what a harder one stands for."""
        spare = [entry for entry in self.past if entry is not self._most_thorough]
        if spare:
            return self.model_copy(update={"past": tuple(entry for entry in self.past if entry is not spare[0])})
        spare = [
            entry
            for at, entry in enumerate(self.standing)
            if any(other.tried_as_hard_as(entry) for other in (*self.standing[:at], *self.standing[at + 1 :]))
        ]
        if not spare:
            raise Refused("so many audits of this version exceeded its claim that its tag holds no more of them.")
        return self.model_copy(update={"standing": tuple(entry for entry in self.standing if entry is not spare[0])})


def _hardest(entries: Sequence[Entry]) -> Entry | None:
    """To take back; the newest of those that are alike."""
    return max(reversed(entries), key=lambda entry: (entry.runs, -entry.confidence), default=None)


def history_of(tags: Mapping[str, str]) -> History:
    """What a version's tags say.

    Raises:
      Refused: no audit wrote them so.
    """
    text = tags.get(HISTORY)
    if text is None:
        return History()
    try:
        return History.model_validate_json(text, strict=True)
    except (ValidationError, RecursionError):
        pass
    raise Refused(
        f"the version's tag {HISTORY} is not as an audit wrote it, so nobody knows whether its claim was exceeded. "
        "Restore it from a backup of MLflow, or release anew."
    )
