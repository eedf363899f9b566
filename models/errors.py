"""What can go wrong, and the exit code each kind ends with.

JaliError
├── SpecError          2  an argument or a setting contradicts itself or the rules
├── Refused            1  the rules were understood and the answer is no
│   ├── ValidationFailed   the ratings broke an expectation
│   ├── BudgetExceeded     there is not enough privacy budget left
│   ├── AnotherRun         another process is at work on the same data
│   ├── NotReleasable      something unpaid or private was offered for release
│   ├── NotPromoted        a version that a gate refused
│   └── LedgerDoubted      the ledger is not what it was, or not the one that earlier releases were paid from
├── EnvironmentFault   3  a disk, a server or a permission
└── InternalFault      4  our own mistake; its text names the stage and the kind, never a value

Every message says what rule, what was found and what to do next. None quotes a rating or a user.
"""

from __future__ import annotations

import reprlib

_short = reprlib.Repr()
_short.maxstring = _short.maxlong = _short.maxother = 100


def quoted(found: object) -> str:
    """What was found, as a sentence may quote it: in quotes, on one line, the middle left out of what is long."""
    return _short.repr(found)


def shown(path: object) -> str:
    """A path or a name as a sentence may show it: as it stands, if it is short and can be printed."""
    text = str(path)
    return text if text.isprintable() and len(text) <= 250 else quoted(text)


class JaliError(Exception):
    """Base of everything Jali raises on purpose; `exit_code` is what the command ends with."""

    exit_code = 4


class SpecError(JaliError):
    exit_code = 2


class Refused(JaliError):
    exit_code = 1


class ValidationFailed(Refused):
    """`rules` holds one sentence per expectation that failed."""

    def __init__(self, rules: list[str]) -> None:
        super().__init__("\n".join(rules))
        self.rules = rules

    def __reduce__(self) -> tuple[type[ValidationFailed], tuple[list[str]]]:
        return (type(self), (self.rules,))


class BudgetExceeded(Refused):
    pass


class AnotherRun(Refused):
    pass


class NotReleasable(Refused):
    pass


class NotPromoted(Refused):
    """`decision` says what each gate found."""

    def __init__(self, sentence: str, decision: object = None) -> None:
        super().__init__(sentence)
        self.decision = decision

    def __reduce__(self) -> tuple[type[NotPromoted], tuple[str]]:
        return (type(self), (str(self),))


class LedgerDoubted(Refused):
    pass


class EnvironmentFault(JaliError):
    exit_code = 3


class InternalFault(JaliError):
    exit_code = 4
