"""`jali ledger`: what was spent on which data, what may be, and what of it concerns one user."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flows.exits import exit_codes
from flows.terminal import console, prepared

app = typer.Typer(
    help="What was promised and spent on which data, and what is left.", no_args_is_help=True, rich_markup_mode=None
)

MOST_ROWS = 5

SourceName = Annotated[str, typer.Argument(metavar="SOURCE", help="Name of the data.")]


@app.command("show")
def show(
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only this data.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="What was given back, and changes of budgets, too.")
    ] = False,
    figure: Annotated[
        str | None, typer.Option("--figure", metavar="FILE.png", help="Draw what was spent on one source over time.")
    ] = None,
) -> None:
    """Show what was spent, release by release, and what is left."""
    with exit_codes():
        from flows.ledger_view import budget_changes, ledger_table, totals, write_figure
        from tasks.ledger import Ledger

        ledger = Ledger(prepared())
        out = console(pipe_width=160)  # one line a release, for grep
        entries = [entry for entry in ledger.entries(source) if everything or entry.state != "cancel"]
        if entries:
            out.print(ledger_table(entries))
        for line in [*totals(ledger, source), *(budget_changes(ledger, source) if everything else ())]:
            out.print(line, highlight=False, markup=False)
        if figure:
            typer.echo(f"Drawn: {write_figure(ledger, source, figure)}")


def show_ledger(source: str) -> None:
    """The table of one source, for whoever was refused."""
    from flows.ledger_view import ledger_table
    from tasks.ledger import Ledger
    from tasks.ledger_entries import COUNTED

    entries = [entry for entry in Ledger(prepared()).entries(source) if entry.state in COUNTED]
    if entries:
        console(stderr=True).print(ledger_table(entries[-MOST_ROWS:]))
    if len(entries) > MOST_ROWS:
        typer.echo(f"The last {MOST_ROWS} of {len(entries)}; `jali ledger show --source {source}` has all.", err=True)


@app.command("budget")
def budget(
    source: SourceName,
    epsilon: Annotated[str | None, typer.Option("--epsilon", metavar="E", help="The most, ever.")] = None,
    delta: Annotated[str | None, typer.Option("--delta", metavar="D", help="At which delta; 0.")] = None,
    unit: Annotated[str | None, typer.Option("--unit", metavar="U", help="For each rating, or each user.")] = None,
    relation: Annotated[
        str | None, typer.Option("--relation", metavar="R", help="add_or_remove or replace_value.")
    ] = None,
    fractions: Annotated[
        bool, typer.Option("--fractions", help="Everybody's own epsilon instead, which all releases share.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the ledger.")] = "",
) -> None:
    """Set what may ever be spent on a source; without options, show it.

    Releases beyond it are refused before a rating is read. For example: jali ledger budget films --epsilon 3
    --delta 1e-6
    """
    with exit_codes():
        from flows.ledger_view import budget_from, budget_line
        from flows.names import require_source_name
        from tasks.ledger import Ledger

        told = {"epsilon": epsilon, "delta": delta, "unit": unit, "relation": relation}
        new = budget_from({name: value for name, value in told.items() if value is not None}, fractions=fractions)
        ledger = Ledger(prepared())
        name = require_source_name(source)
        if new is not None and not ledger.set_budget(name, new, reason):
            typer.echo(
                "This account has no folder to remember it in (~/.local/state/jali, or what XDG_STATE_HOME says), and "
                "nothing is released under the budget until it has one.",
                err=True,
            )
        console().print(budget_line(ledger, name), highlight=False, markup=False)


@app.command("void")
def void(
    charge: Annotated[str, typer.Argument(metavar="ID", help="The charge, as `jali ledger show` names it.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why nothing of it can have left.")] = "",
    gone: Annotated[
        bool, typer.Option("--gone", help="The run's working folder is gone for good: it can never go on.")
    ] = False,
) -> None:
    """Take back a charge whose release never left."""
    with exit_codes():
        from tasks.ledger import Ledger
        from tasks.voiding import void as void_charge

        state = prepared()
        voided = void_charge(state, Ledger(state), charge, reason, gone=gone)
        typer.echo(f"{voided.source}: the charge of {voided.recommender} is void. `jali ledger show` has what is left.")


@app.command("user")
def user(
    user_id: Annotated[str, typer.Argument(metavar="ID", help="As in the ratings; - reads it from standard input.")],
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only this data.")] = None,
    ratings: Annotated[
        str | None, typer.Option("--ratings", metavar="PATH", help="Count the user's ratings in this file or database.")
    ] = None,
    format_name: Annotated[str | None, typer.Option("--format", metavar="NAME", help="As for `jali run`.")] = None,
    columns: Annotated[str | None, typer.Option("--columns", metavar="user=A,...", help="As for `jali run`.")] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="NAME", help="As for `jali run`.")] = None,
) -> None:
    """Say what was spent at most on one user's ratings.

    On this terminal and nowhere else. What was spent on a user altogether depends on how many ratings were used:
    name them with --ratings.
    """
    with exit_codes():
        from flows.ledger_view import user_lines
        from flows.options import job_from
        from tasks.ledger import Ledger

        asked = sys.stdin.readline().strip() if user_id == "-" else user_id
        ledger = Ledger(prepared())
        job = None
        if ratings:
            where = {"path": ratings, "format": format_name, "columns": columns, "table": table}
            other = {"scale": "1:5:1", "source": source}  # no rating is looked at, so any scale will do
            job = job_from(None, ratings=where, privacy={}, assignments=[], other=other)
        for line in user_lines(ledger, asked, source, job.ratings if job else None):
            console().print(line, highlight=False, markup=False)
