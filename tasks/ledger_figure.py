"""What was spent on a source, release after release, by recommender, and what is left: all of it public."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from models.privacy.accounting import Amount, spending
from models.privacy.budget import Budget
from models.privacy.specification import Relation, Unit
from tasks.ledger_entries import SPENT, Entry, latest

MOST_TICKS = 8


def ledger_figure(source: str, history: Sequence[Entry], budget: Budget | None) -> Figure:
    """Epsilon (or the share of everybody's own) after each release: stacked by recommender, and the total.

    Without a budget the amounts are those of the unit and relation of the first release. `history` is all rows of the
    source, at least one of them a commitment.
    """
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    kept = budget or _unbounded(history)
    paid = _paid(history)
    amounts = [entry.amount for entry in paid]
    unbounded = set(spending(kept.counted(amounts), kept.relation).without_promise)
    unbounded |= {amount.name for amount in amounts if amount not in kept.counted(amounts)}
    names = [name for name in dict.fromkeys(amount.name for amount in amounts) if name not in unbounded]
    at = range(1, len(amounts) + 1)
    total = [_spent(kept, amounts[:n]) for n in at]
    below = [0.0] * len(amounts)
    for name in names:
        part = [_spent(kept, [amount for amount in amounts[:n] if amount.name == name]) for n in at]
        axes.bar(at, part, 0.7, below, label=name, alpha=0.6)
        below = [low + high for low, high in zip(below, part, strict=True)]
    axes.plot(at, total, "kD", markersize=4, label="together")
    if budget is not None:
        axes.axhline(budget.most, color="C3", linestyle="--", linewidth=1.4, label=f"budget: {budget}")
        left = f"{budget.left(amounts):.3g} left"
        axes.annotate(left, (len(amounts) + 0.4, budget.most), (0, 5), textcoords="offset points", ha="right")
    every = max(1, -(-len(paid) // MOST_TICKS))
    axes.set_xticks(at[::every], [entry.at[:16].replace("T", "\n") for entry in paid[::every]], fontsize=8)
    what = "share of everybody's own epsilon" if kept.epsilon is None else f"ε for each {kept.unit}"
    for n, amount in enumerate(amounts, start=1):
        if amount.name in unbounded:
            axes.text(n, 0.03 * axes.get_ylim()[1], f"{amount.name}: no bound", rotation=90, ha="center", color="C3")
    top = max(*total, *below, budget.most if budget else 0.0, 1e-9)
    axes.set(xlim=(0.4, len(amounts) + 0.6), ylim=(0, 1.15 * top))
    axes.set(xlabel="releases, by when they were paid for (UTC)", ylabel=f"{what} ({kept.relation.replace('_', ' ')})")
    axes.set_title(f"What was spent on {source}")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure


def amounts_spent(history: Sequence[Entry]) -> list[dict[str, object]]:
    """The commitments that stand, as numbers and names: no text that somebody wrote."""
    names = ("at", "reservation", "recommender", "purpose", "unit", "relation", "verdict")
    amounts = ("claimed_epsilon", "proven_epsilon", "delta", "rho", "fraction", "series")
    return [{name: getattr(entry, name) for name in (*names, *amounts)} for entry in _paid(history)]


def _spent(kept: Budget, amounts: Sequence[Amount]) -> float:
    """As the budget counts it; where that has no delta for it, at the sum of the deltas."""
    total = kept.spent(amounts)
    return total if total < float("inf") else spending(kept.counted(amounts), kept.relation).epsilon


def _paid(history: Sequence[Entry]) -> list[Entry]:
    """The commitments that were not voided, in their order."""
    stands = {(entry.reservation, entry.purpose) for entry in latest(history) if entry.state in SPENT}
    return [e for e in history if e.state == "commit" and (e.reservation, e.purpose) in stands]


def _unbounded(history: Sequence[Entry]) -> Budget:
    paid = _paid(history)
    unit: Unit = paid[0].unit
    relation: Relation = paid[0].relation
    return Budget(epsilon=1000.0, unit=unit, relation=relation)
