"""The ledger as a person reads it."""

from __future__ import annotations

from rich.table import Table

from tasks.ledger import SPENT, Entry, Ledger

HEADINGS = ("when (UTC)", "source", "recommender", "protects", "ε\nclaimed", "ε\nproven", "δ", "state")
NEVER_BROKEN = ("source", "recommender", "δ")


def ledger_table(entries: list[Entry]) -> Table:
    """One line per reservation, in its latest state."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for heading in HEADINGS:
        is_number = heading[0] in "εδ"
        table.add_column(heading, no_wrap=heading in NEVER_BROKEN, justify="right" if is_number else "left")
    for entry in entries:
        table.add_row(
            entry.at[:16].replace("T", " "),
            entry.source,
            entry.recommender,
            f"{entry.unit}, {entry.relation.replace('_', ' ')}",
            f"{entry.claimed_epsilon or 0:g}",
            "-" if entry.proven_epsilon is None else f"{entry.proven_epsilon:g}",
            f"{entry.delta:g}",
            entry.outcome,
        )
    return table


def totals(ledger: Ledger, source: str | None) -> list[str]:
    """What was spent on each source so far, or on the one named, in a sentence per unit and relation."""
    spent = {(e.source, e.unit, e.relation) for e in ledger.entries() if e.state in SPENT}
    lines = []
    for name, unit, relation in sorted(spent):
        if source in (None, name):
            total = ledger.spent(name, unit=unit, relation=relation)
            also = "releases with unit user included" if unit == "rating" else "besides what each rating pays"
            how = "spent" if total.is_proven else "claimed, and not proven,"
            whom = f"for each {unit} ({relation.replace('_', ' ')})"
            line = f"{name}: ε={total.epsilon:g}, δ={total.delta:g} {how} {whom}, by addition, {also}"
            if total.without_promise:
                line += f"; {', '.join(total.without_promise)} promised nothing of it, so that nothing bounds the whole"
            lines.append(f"{line}.")
    if not lines:
        others = ", ".join(sorted({name for name, _, _ in spent}))
        of = f" of {source}" if source else ""
        lines.append(f"Nothing{of} was spent yet.{f' There are entries of {others}.' if others else ''}")
    return lines
