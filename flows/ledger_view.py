"""The ledger as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table

from models.errors import SpecError, shown
from models.index import first_problem
from models.privacy.accounting import Spent, spending
from models.privacy.budget import Budget
from tasks.ledger import LEAST_ID, Ledger
from tasks.ledger_entries import COUNTED, SPENT, Entry
from tasks.paths import home_path, require_writable
from tasks.rating_files import RatingsSource, read_ratings

HEADINGS = ("id", "when (UTC)", "source", "recommender", "protects", "ε\nclaimed", "ε\nproven", "δ", "state")
NEVER_BROKEN = ("id", "source", "recommender", "δ")
ID_SHOWN = LEAST_ID + 2


def ledger_table(entries: list[Entry]) -> Table:
    """One line per charge, in its latest state."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for heading in HEADINGS:
        is_number = heading[0] in "εδ"
        table.add_column(heading, no_wrap=heading in NEVER_BROKEN, justify="right" if is_number else "left")
    for row in rows_of(entries):
        table.add_row(*row)
    return table


def rows_of(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """The cells under HEADINGS."""
    return [
        (
            entry.reservation[:ID_SHOWN],
            entry.at[:16].replace("T", " "),
            entry.source,
            "\n".join([entry.recommender, *_what_for(entry)]),
            f"{entry.unit}, {entry.relation.replace('_', ' ')}",
            f"{entry.claimed_epsilon:g}",
            "-" if entry.proven_epsilon is None else f"{entry.proven_epsilon:g}",
            f"{entry.delta:g}",
            entry.outcome + (f" (accepted: {entry.accepted})" if entry.accepted else ""),
        )
        for entry in entries
    ]


def _what_for(entry: Entry) -> list[str]:
    if entry.purpose != "release":
        return [entry.purpose]
    return ["batch"] if entry.series else []


def budget_changes(ledger: Ledger, source: str | None) -> list[str]:
    """Every budget that was ever set, and why, as far as somebody said."""
    return [
        f"{entry.source}: on {entry.at[:16].replace('T', ' ')} the budget became {entry.budget}"
        + (f" ({entry.note})." if entry.note else ".")
        for entry in ledger.history(source)
        if entry.state == "budget"
    ]


def totals(ledger: Ledger, source: str | None) -> list[str]:
    """What was spent on each source so far, or on the one named, in a sentence per unit and relation, and what is left.

    Raises:
      SpecError: the ledger knows no such source.
    """
    history = ledger.history()
    names = sorted({entry.source for entry in history})
    if source is not None and source not in names:
        known = f"It has {', '.join(names)}." if names else "It is empty."
        raise SpecError(f"the ledger has nothing of {shown(source)}. {known}")
    if source is not None:
        ledger.require_remembered(source)
    shown_names = [name for name in names if source == name or (source is None and _has_something(history, name))]
    return [line for name in shown_names for line in _totals_of(ledger, name)] or ["Nothing was spent yet."]


def _has_something(history: Sequence[Entry], name: str) -> bool:
    return any(entry.source == name and entry.state in (*SPENT, "budget") for entry in history)


def _totals_of(ledger: Ledger, name: str) -> list[str]:
    spent = {(e.unit, e.relation) for e in ledger.entries(name) if e.state in SPENT}
    lines = []
    for unit, relation in sorted(spent):
        counted = [entry for entry in ledger.entries(name) if entry.state in SPENT and entry.unit in (unit, "user")]
        also = _besides(unit, counted)
        whom = f"for each {unit} ({relation.replace('_', ' ')})"
        lines.append(f"{name}: {_in_words(ledger.spent(name, unit=unit, relation=relation), whom, also)}.")
    return [*(lines or [f"Nothing of {name} was spent yet."]), *(line for line in [_budget_line(ledger, name)] if line)]


def _besides(unit: str, counted: Sequence[Entry]) -> str:
    """What a reader of a sum should know."""
    also = ", besides what each rating pays" if unit == "user" else ""
    if unit == "rating" and any(entry.unit == "user" for entry in counted):
        also = ", releases with unit user included"
    if any(entry.series for entry in counted):
        also += "; of a series of batches, or of withdrawals, a rating pays the dearest alone"
    return also


def _in_words(total: Spent, whom: str, also: str) -> str:
    how = "spent" if total.is_proven else "claimed, and not proven as a whole,"
    line = f"ε={total.epsilon:g}, δ={total.delta:g} {how} {whom}, by {total.by}{also}"
    if total.without_promise:
        line += f"; {', '.join(total.without_promise)} promised nothing of it, so that nothing bounds the whole"
    return line


def budget_line(ledger: Ledger, source: str) -> str:
    """The budget of a source, what of it is spent and what is left, or that it has none."""
    ledger.require_remembered(source)
    line = _budget_line(ledger, source)
    if not line:
        return f"{source} has no budget. Set one, for example with `jali ledger budget {source} --epsilon 1`."
    if not ledger.entries(source):
        line += (
            f" Nothing was released as {source} yet: a run is counted here if its source is called so "
            f"(--source {source}; by default it is called as its file, with the ending)."
        )
    return line


def _budget_line(ledger: Ledger, source: str) -> str:
    budget = ledger.budget(source)
    if budget is None:
        return ""
    entries = [entry for entry in ledger.entries(source) if entry.state in COUNTED]
    amounts = [entry.amount for entry in entries]
    spent, left = budget.spent(amounts), budget.left(amounts)
    reserved = " or reserved" if any(entry.state == "reserve" for entry in entries) else ""
    sign = "" if budget.epsilon is None else "ε="
    line = f"{source}: the budget is {budget}; {sign}{spent:.4g} spent{reserved}, {sign}{left:.4g} left."
    uncounted = [e.recommender for e in entries if e.unit not in (budget.unit, "user")]
    if budget.epsilon is None:
        uncounted += [entry.recommender for entry in entries if entry.fraction is None]
    else:
        uncounted += spending(budget.counted(amounts), budget.relation).without_promise
    if uncounted:
        names = ", ".join(dict.fromkeys(uncounted))
        line += f" It counts nothing of what was released before it of {names}."
    return line


def budget_from(told: dict[str, Any], *, fractions: bool) -> Budget | None:
    """The budget that the options say; None where they say nothing.

    Raises:
      SpecError: they contradict each other, or are no amounts.
    """
    if not told and not fractions:
        return None
    if fractions == ("epsilon" in told):
        raise SpecError(
            "a source has one budget: give either --epsilon, the most that may ever be spent, or --fractions, "
            "everybody's own epsilon."
        )
    if fractions and "delta" in told:
        raise SpecError("with --fractions everybody's own epsilon is the budget: leave --delta out.")
    try:
        return Budget.model_validate({"epsilon": None, **told})
    except ValidationError as error:
        raise SpecError(first_problem(error)) from None


def user_lines(ledger: Ledger, user: str, source: str | None, ratings: RatingsSource | None) -> list[str]:
    """An upper bound of what was spent on the ratings of one user, for a terminal and nowhere else.

    Args:
      ratings: where to count the user's ratings, if anywhere.

    Raises:
      SpecError: the ledger knows no such source, or there are several and none is named.
    """
    names = sorted({entry.source for entry in ledger.entries() if entry.state in SPENT})
    if source is None and len(names) > 1:
        raise SpecError(f"the ledger has several sources ({', '.join(names)}). Name one with --source.")
    if source not in (None, *names):
        raise SpecError(f"nothing was spent on {shown(source)}. The ledger has {', '.join(names) or 'no source'}.")
    if not names:
        return ["Nothing was spent yet, on nobody."]
    name = source or names[0]
    n_ratings = None if ratings is None else _count(ratings, user)
    lines = []
    for unit, relation in sorted({(e.unit, e.relation) for e in ledger.entries(name) if e.state in SPENT}):
        total = ledger.spent(name, unit=unit, relation=relation)
        whom = "on each rating of this user" if unit == "rating" else "on all ratings of this user together"
        lines.append(f"{name}: at most {_in_words(total, whom, f', under {relation}')}.")
        if unit == "rating" and n_ratings is not None:
            together = f"at most ε={n_ratings * total.epsilon:g}" if n_ratings else "nothing"
            lines.append(
                f"  The user has {n_ratings} ratings there now: {together} on all of them together, by addition, "
                "unless the user ever had more."
            )
    if n_ratings is None and any("on each rating" in line for line in lines):
        lines.append(
            "  On all of the user's ratings together: as many times that as there are; count them with --ratings."
        )
    return lines


def _count(ratings: RatingsSource, user: str) -> int:
    _, table = read_ratings(ratings)
    row = {label: at for at, label in enumerate(table.user_labels)}.get(user)
    return 0 if row is None else int((table.users == row).sum())


def write_figure(ledger: Ledger, source: str | None, path: str) -> Path:
    """Draw what was spent on one source over time; returns where.

    Raises:
      SpecError: there are several sources and none is named, or the file is no picture's.
      EnvironmentFault: it cannot be written.
    """
    from tasks.ledger_figure import ledger_figure  # seconds of matplotlib

    names = sorted({entry.source for entry in ledger.entries() if entry.state in SPENT})
    if (source is None and len(names) != 1) or source not in (None, *names):
        raise SpecError(
            f"a figure is of one source on which something was spent ({', '.join(names)}): name it with --source."
        )
    require_writable(path, "figure", ".png")
    target = home_path(path).with_suffix(".png")
    name = source or names[0]
    ledger_figure(name, ledger.history(name), ledger.budget(name)).savefig(target, dpi=120)
    return target
