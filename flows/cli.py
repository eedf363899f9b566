"""The `jali` command. Everything heavy is imported inside the commands: `jali --help` must answer at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from flows.exits import exit_codes
from flows.ledger_commands import app as ledger_app
from flows.terminal import console, prepared

if TYPE_CHECKING:
    from rich.console import Console

    from flows.job import Job
    from flows.run import Done

HOW_MANY_RUNS = "Of the worst pair: 40000, about a minute; 1,000,000 at most."

app = typer.Typer(
    help="Train recommenders on private ratings; release only the item matrix, under a stated privacy guarantee.",
    invoke_without_command=True,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(ledger_app, name="ledger")

RARELY = (10_000, 50, 100)
"""When Python looks for garbage. Libraries make a million objects as they are imported, none of them garbage: looking
through these as often as Python would takes a seventh of a small run."""

ConfigFile = Annotated[
    str | None, typer.Argument(metavar="CONFIG.yaml", help="Settings; docs/jali.example.yaml has all.")
]
RatingsPath = Annotated[
    str | None,
    typer.Option("--ratings", metavar="PATH|URL|SQL", help="File, web address or database; the sample if left out."),
]
TableName = Annotated[str | None, typer.Option("--table", metavar="NAME", help="The database's table of ratings.")]
QueryText = Annotated[
    str | None, typer.Option("--query", metavar="SELECT", help="A query instead; stored with the run, so no secrets.")
]
Checksum = Annotated[
    str | None,
    typer.Option("--checksum", metavar="sha256:HEX", help="Of the ratings file; md5: and sha1: too."),
]
ItemsPath = Annotated[
    str | None, typer.Option("--items", metavar="PATH", help="Public catalogue with titles and genres.")
]
ScaleText = Annotated[str | None, typer.Option("--scale", metavar="LOW:HIGH:STEP", help="Rating scale, such as 1:5:1.")]
FormatText = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="NAME", help="auto, ml-100k, ml-dat, ml-csv, netflix, yahoo-r3, parquet, tsv or csv."
    ),
]
ColumnsText = Annotated[
    str | None, typer.Option("--columns", metavar="user=A,item=B,rating=C", help="Column names, where there are any.")
]
DelimiterText = Annotated[str | None, typer.Option("--delimiter", metavar="CHAR", help="Delimiter of a CSV file.")]
PreferencesPath = Annotated[
    str | None,
    typer.Option("--preferences", metavar="PATH|URL|SQL", help="Private table of what each person asked for."),
]
PreferencesTableName = Annotated[
    str | None, typer.Option("--preferences-table", metavar="NAME", help="Its table, in a database.")
]
PreferencesQueryText = Annotated[
    str | None, typer.Option("--preferences-query", metavar="SELECT", help="A query instead.")
]
DefaultEpsilon = Annotated[
    str | None, typer.Option("--default-epsilon", metavar="E", help="For those who are not in the preferences.")
]
CapEpsilon = Annotated[
    str | None, typer.Option("--cap", metavar="E", help="Larger epsilons in the preferences count as this.")
]
LevelPairs = Annotated[
    str | None, typer.Option("--levels", metavar="low=0.1,high=1", help="What the preferences' levels stand for.")
]
SourceName = Annotated[
    str | None, typer.Option("--source", metavar="NAME", help="Name of the data; the file's if left out.")
]
OfSource = Annotated[
    str | None, typer.Option("--source", metavar="NAME", help="Of which data; the only one if left out.")
]
Because = Annotated[str | None, typer.Option("--because", metavar="TEXT", help="Why; recorded.")]
UnitText = Annotated[str | None, typer.Option("--unit", metavar="U", help="What is protected: rating or user.")]
FoldsText = Annotated[str | None, typer.Option("--folds", metavar="K", help="Folds of the cross-validation; 10.")]


@app.callback()
def main_options(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if show_version:
        from importlib.metadata import version

        typer.echo(f"jali {version('jali')}")
        raise typer.Exit


@app.command("run")
def run_command(
    config: ConfigFile = None,
    ratings: RatingsPath = None,
    items: ItemsPath = None,
    scale: ScaleText = None,
    format_name: FormatText = None,
    columns: ColumnsText = None,
    delimiter: DelimiterText = None,
    table: TableName = None,
    query: QueryText = None,
    checksum: Checksum = None,
    recommenders: Annotated[
        str | None, typer.Option("--recommenders", metavar="A,B", help="Which ones; see `jali recommenders`.")
    ] = None,
    folds: FoldsText = None,
    epsilon: Annotated[str | None, typer.Option("--epsilon", metavar="E", help="What each release costs; 1.")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="FILE", help="Own epsilon for every rating: a file, or `default`.")
    ] = None,
    preferences: PreferencesPath = None,
    preferences_table: PreferencesTableName = None,
    preferences_query: PreferencesQueryText = None,
    default_epsilon: DefaultEpsilon = None,
    cap: CapEpsilon = None,
    levels: LevelPairs = None,
    unit: UnitText = None,
    delta: Annotated[str | None, typer.Option("--delta", metavar="D", help="For Gaussian noise alone; 1e-6.")] = None,
    fraction: Annotated[
        str | None, typer.Option("--fraction", metavar="F", help="Share of everybody's epsilon per release.")
    ] = None,
    private_metrics: Annotated[
        str | None,
        typer.Option("--private-metrics", metavar="E", help="Pay this for an RMSE that each release states."),
    ] = None,
    source: SourceName = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME.KEY=VALUE", help="A recommender's setting; repeatable.")
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Release what is new alone, added to the batches before.")
    ] = False,
    corrections: Annotated[
        bool, typer.Option("--corrections", help="In a batch, correct changed ratings too; costs 2 epsilon more.")
    ] = False,
    no_publish: Annotated[bool, typer.Option("--no-publish", help="Evaluate only; nothing is reserved.")] = False,
    require_budget: Annotated[
        bool, typer.Option("--require-budget", help="Refuse where the source has no budget (jali ledger budget).")
    ] = False,
    accept_unproven: Annotated[
        str | None, typer.Option("--accept-unproven", metavar="REASON", help="Release it under a budget; recorded.")
    ] = None,
    report: Annotated[str | None, typer.Option("--report", metavar="FILE.json", help="Write the results here.")] = None,
) -> None:
    """Evaluate recommenders, pay, and publish V.

    Validates the ratings, cross-validates every recommender, charges the ledger, fits with exact noise and
    publishes. For example: jali run --ratings ratings.csv --items items.csv --scale 1:5:1 --epsilon 0.5
    """
    with exit_codes():
        screen = console(stderr=True)
        began = perf_counter()
        with _progress(screen, "Starting Prefect"), _prefect() as wait_for_prefect:
            from flows.options import job_from

            job = job_from(
                config,
                ratings=_table(ratings, format_name, columns, delimiter, table, query, checksum),
                privacy={
                    "epsilon": epsilon,
                    "policy": policy,
                    "unit": unit,
                    "delta": delta,
                    "fraction": fraction,
                    "metrics": private_metrics,
                },
                preferences=_asked(preferences, preferences_table, preferences_query, default_epsilon, cap, levels),
                assignments=set_ or [],
                batch={"batch": batch, "corrections": corrections},
                other={
                    "items": items,
                    "scale": scale,
                    "recommenders": recommenders,
                    "folds": folds,
                    "source": source,
                    "publish": False if no_publish else None,
                    "require_budget": True if require_budget else None,
                    "accept_unproven": accept_unproven,
                    "report": report,
                },
            )
            done = _run(job, wait_for_prefect)
        _show(job, done, perf_counter() - began)


@app.command("validate")
def validate_command(
    config: ConfigFile = None,
    ratings: RatingsPath = None,
    items: ItemsPath = None,
    scale: ScaleText = None,
    format_name: FormatText = None,
    columns: ColumnsText = None,
    delimiter: DelimiterText = None,
    table: TableName = None,
    query: QueryText = None,
    checksum: Checksum = None,
    preferences: PreferencesPath = None,
    preferences_table: PreferencesTableName = None,
    preferences_query: PreferencesQueryText = None,
    default_epsilon: DefaultEpsilon = None,
    cap: CapEpsilon = None,
    levels: LevelPairs = None,
    unit: UnitText = None,
    folds: FoldsText = None,
    source: SourceName = None,
) -> None:
    """Say which rows of the ratings, and of the preferences, are bad.

    On this terminal and nowhere else: row numbers, and no values. Rows are counted as they are read, from 1,
    without header lines and without Netflix' MOVIE: lines.
    """
    with exit_codes():
        prepared()
        from flows.options import job_from

        job = job_from(
            config,
            ratings=_table(ratings, format_name, columns, delimiter, table, query, checksum),
            privacy={"unit": unit},
            preferences=_asked(preferences, preferences_table, preferences_query, default_epsilon, cap, levels),
            assignments=[],
            other={"items": items, "scale": scale, "folds": folds, "source": source},
        )
        from tasks.loading import load  # after the arguments: it brings Prefect along, and pandas
        from tasks.validation import explain

        told = job.privacy
        loaded = load(job.ratings, job.items, job.scale, told.preferences, told.unit)
        problems = explain(loaded, job.minimums)
        for problem in problems:
            typer.echo(problem)
        if problems:
            raise typer.Exit(1)
        typer.echo(f"{job.source}: every rule holds.")


@app.command("reproduce")
def reproduce_command(
    experiments: Annotated[list[str], typer.Argument(metavar="EXPERIMENT...", help="zhang-fig2 to zhang-fig5.")],
    ratings: RatingsPath = None,
    items: ItemsPath = None,
    scale: ScaleText = None,
    format_name: FormatText = None,
    columns: ColumnsText = None,
    delimiter: DelimiterText = None,
    table: TableName = None,
    query: QueryText = None,
    checksum: Checksum = None,
    folds: FoldsText = None,
    source: SourceName = None,
    page: Annotated[
        str | None, typer.Option("--page", metavar="FILE.md", help="Write figures and tables there as well.")
    ] = None,
) -> None:
    """Run a paper's experiments again.

    Nothing is released and nothing is spent. What was computed before is kept, so that a run that was cut off goes
    on where it was. For example: jali reproduce zhang-fig2 --ratings u.data --source ml-100k
    """
    with exit_codes():
        screen = console(stderr=True)
        began = perf_counter()
        with _progress(screen, "Starting Prefect"), _prefect() as wait_for_prefect:
            from flows.options import job_from
            from flows.reproduce import experiment_named, reproduce
            from flows.reproduction_report import require_page, statements_table, write_page

            for name in experiments:
                experiment_named(name)
            job = job_from(
                None,
                ratings=_table(ratings, format_name, columns, delimiter, table, query, checksum),
                privacy={},
                assignments=[],
                other={"items": items, "scale": scale, "folds": folds, "source": source, "publish": False},
            )
            if page:
                require_page(page)
            wait_for_prefect()
            done = reproduce(experiments, job)
            if page:
                write_page(page, done)
        out = console()
        for reproduction in done:
            out.print(statements_table(reproduction))
        out.print(f"It took {perf_counter() - began:.0f} s. Next:", highlight=False)
        out.print(f"  jali ui            the figures are in the experiment {job.source}.papers", highlight=False)


@app.command("plan")
def plan_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The data to be released.")],
    epsilon: Annotated[str, typer.Option("--epsilon", metavar="E,E,...", help="What each rating would pay.")],
    users: Annotated[str | None, typer.Option("--users", metavar="N", help="How many users there are.")] = None,
    items: Annotated[
        str | None, typer.Option("--items", metavar="M", help="How many items; the plan is then made from the sample.")
    ] = None,
    scale: ScaleText = None,
    figure: Annotated[str | None, typer.Option("--figure", metavar="FILE.png", help="Draw it here.")] = None,
) -> None:
    """Foretell RMSE against epsilon, before anything is spent.

    From the last release's noisy histogram or, with --users and --items, from the sample; no ratings are read.
    For example: jali plan r.csv --epsilon .1,.3,1,3 --users 5000 --items 2000 --scale 1:5:1
    """
    with exit_codes():
        prepared()
        with _progress(console(stderr=True), "Planning"):
            from flows.plan import closing_lines, make_request, plan_table, planned, write_figure
            from tasks.planning import left_of_budget

            told = {"epsilon": epsilon, "users": users, "items": items, "scale": scale, "figure": figure}
            request = make_request({"source": source, **told})
            made = planned(request)
            left = left_of_budget(source, made.plan.epsilons)
            path = write_figure(request, made)
        out = console()
        out.print(plan_table(made, left))
        for line in closing_lines(made, path):
            out.print(line, highlight=False, markup=False)


@app.command("audit")
def audit_command(
    recommender: Annotated[str, typer.Argument(metavar="RECOMMENDER", help="See `jali recommenders`.")],
    epsilon: Annotated[str | None, typer.Option("--epsilon", metavar="E", help="What a release costs; 1.")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="FILE", help="Own epsilon for every rating: a file, or `default`.")
    ] = None,
    unit: UnitText = None,
    delta: Annotated[str | None, typer.Option("--delta", metavar="D", help="For Gaussian noise alone; 1e-6.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME.KEY=VALUE", help="A setting; repeatable.")
    ] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Whose version.")] = None,
    version: Annotated[str | None, typer.Option("--version", metavar="N", help="Which one; the newest.")] = None,
    relation: Annotated[
        str | None, typer.Option("--relation", metavar="R", help="add_or_remove or replace_value; the promise's own.")
    ] = None,
    runs: Annotated[str | None, typer.Option("--runs", metavar="N", help=HOW_MANY_RUNS)] = None,
    confidence: Annotated[
        str | None, typer.Option("--confidence", metavar="C", help="Between 0.5 and 1; 0.95.")
    ] = None,
) -> None:
    """Try to show more privacy loss than is claimed.

    A version as it was released, the newest where none is named; or, with --epsilon and the like, what they describe.
    On made-up ratings: nothing private is read. It ends with 1 where more is shown. For example:
    jali audit pdp-histogram --epsilon 1
    """
    with exit_codes("interrupted. Nothing private was read, and an audit that did not end is not noted."):
        screen = console(stderr=True)
        prepared()
        from flows.audit import audit, make_request

        request = make_request(
            recommender,
            {"epsilon": epsilon, "policy": policy, "unit": unit, "delta": delta},
            set_ or [],
            {"source": source, "version": version, "relation": relation, "runs": runs, "confidence": confidence},
        )
        with _progress(screen, "Starting Prefect"), _prefect() as wait_for_prefect:
            wait_for_prefect()
            done = audit(request)
        from flows.audit_view import require_kept_and_within, show

        show(console(), done)
        require_kept_and_within(done)


@app.command("promote")
def promote_command(
    recommender: Annotated[str, typer.Argument(metavar="RECOMMENDER", help="Which one; see `jali recommenders`.")],
    version: Annotated[str | None, typer.Argument(metavar="VERSION", help="The newest if left out.")] = None,
    source: OfSource = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what the gates find; change nothing.")] = False,
    waive: Annotated[
        list[str] | None, typer.Option("--waive", metavar="GATE=REASON", help="Recorded; repeatable.")
    ] = None,
    accept_unproven: Annotated[
        str | None, typer.Option("--accept-unproven", metavar="REASON", help="Short for --waive verdict=REASON.")
    ] = None,
    max_rmse: Annotated[
        str | None, typer.Option("--max-rmse", metavar="R", help="The most that the paid RMSE may be.")
    ] = None,
    because: Because = None,
) -> None:
    """Make a released version the one that is served, if every gate lets it pass.

    The gates: verdict, budget, metric, audit, code, load, schema. Without a version the newest. For example:
    jali promote pdp-histogram --because "the first one"
    """
    told = {"version": version, "source": source, "max_rmse": max_rmse, "why": because}
    with exit_codes("interrupted. The same `jali promote` again looks first what is served, and goes on."):
        from flows.promotion_commands import promoted

        promoted(recommender, waive or [], accept_unproven, told, dry_run=dry_run)


@app.command("rollback")
def rollback_command(
    source: OfSource = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="N", help="A version of SOURCE.serving; the one before if left out.")
    ] = None,
    because: Because = None,
) -> None:
    """Serve again what was served before.

    Once more, and what is served now is back. If an audit exceeded since, or somebody withdrew, say --because.
    """
    with exit_codes(
        "interrupted, before the champion moved or after: look which version of SOURCE.serving it is (`jali ui`). With "
        "--to N `jali rollback` makes version N the champion, whichever it is; without, it may bring back what was "
        "taken back."
    ):
        from flows.promotion_commands import rolled_back

        rolled_back({"source": source, "to": to, "why": because})


@app.command("recommenders")
def recommenders_command() -> None:
    """List what there is to run: what each promises and to whom, what that is worth, and its settings."""
    with exit_codes():
        from flows.recommenders_view import described
        from models.index import RECOMMENDERS

        out = console()
        for kind in RECOMMENDERS.values():
            for part in described(kind):
                out.print(part, highlight=False)


@app.command("withdraw")
def withdraw_command(
    user: Annotated[str, typer.Argument(metavar="USER", help="As in the ratings; - reads it from standard input.")],
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Of which data.")] = None,
) -> None:
    """Take a user's ratings out of the released batches.

    It says what that undoes and what it cannot. The name goes nowhere but into a keyed hash; read from standard
    input it is in no shell history either. For example: jali withdraw - --source ratings.csv
    """
    with exit_codes():
        prepared()
        from flows.withdraw import withdraw

        for line in withdraw(sys.stdin.readline().strip() if user == "-" else user, source):
            typer.echo(line)


@app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="ml-100k, ml-1m or ml-latest-small.")],
    to: Annotated[str | None, typer.Option("--to", metavar="FOLDER", help="A new folder; NAME if left out.")] = None,
) -> None:
    """Download a MovieLens data set from GroupLens, who publish it for research."""
    with exit_codes():
        from tasks.movielens import fetch

        for line in fetch(name, to or name):
            typer.echo(line)


@app.command("schedule")
def schedule_command(
    config: ConfigFile = None,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="'M H D M W'", help="When, as cron writes it; UTC.")
    ] = None,
    timezone: Annotated[str | None, typer.Option("--timezone", metavar="NAME", help="Such as Europe/Vienna.")] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="Or again and again: 5m, 2h, 1d.")
    ] = None,
    source: SourceName = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="Promote what a run published, if the gates let it.")
    ] = False,
    pause: Annotated[str | None, typer.Option("--pause", metavar="SOURCE", help="Let none begin for now.")] = None,
    resume: Annotated[str | None, typer.Option("--resume", metavar="SOURCE", help="Go on after --pause.")] = None,
    remove: Annotated[str | None, typer.Option("--remove", metavar="SOURCE", help="Forget a schedule.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="What there is, and when it runs next.")] = False,
    work: Annotated[
        bool, typer.Option("--work", help="Run what is due here, also where PREFECT_API_URL is set.")
    ] = False,
) -> None:
    """Run again and again: batches, so that no rating pays twice.

    One schedule for each source. Without PREFECT_API_URL it keeps a Prefect server and a worker until Ctrl-C; alone,
    `jali schedule` does that for the schedules there are. For example: jali schedule jali.yaml --cron "0 3 * * *"
    """
    with exit_codes("the schedules stay; `jali schedule` goes on with them."):
        from flows.schedule_command import Asked, schedule

        schedule(
            Asked(config, cron, timezone, every, source, promote, pause, resume, remove, listing, work), prepared()
        )


@app.command("serve")
def serve_command(
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Of which data.")] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[str, typer.Option("--port", metavar="N", help="0 takes any that is free.")] = "8000",
    allow_origin: Annotated[
        list[str] | None, typer.Option("--allow-origin", metavar="URL", help="A site whose pages may ask; repeatable.")
    ] = None,
) -> None:
    """Serve the promoted version over HTTP, and each next one as soon as it is promoted, until Ctrl-C.

    Own ratings in, recommendations out; nothing of them is kept or logged. For example: jali serve --source films
    """
    with exit_codes("stopped."):
        prepared()
        from flows.serve import serve, serving_of

        serve(serving_of(source, host, port, allow_origin or []))


@app.command("ui")
def ui_command(
    source: Annotated[
        str | None, typer.Option("--source", metavar="NAME", help="Whose pages; of what was run last if left out.")
    ] = None,
) -> None:
    """Open the MLflow and Prefect UIs, until Ctrl-C.

    With the addresses of MLflow's pages on which the runs, charts and versions of a source are laid out.
    """
    with exit_codes():
        state = prepared()
        from flows.ui import open_interfaces

        open_interfaces(state, source)


def _table(
    path: str | None,
    format_name: str | None,
    columns: str | None,
    delimiter: str | None,
    table: str | None,
    query: str | None,
    checksum: str | None,
) -> dict[str, str | None]:
    """Where the ratings are, as job_from takes it."""
    file = {"path": path, "format": format_name, "columns": columns, "delimiter": delimiter, "checksum": checksum}
    return {**file, "table": table, "query": query}


def _asked(
    path: str | None, table: str | None, query: str | None, default: str | None, cap: str | None, levels: str | None
) -> dict[str, str | None]:
    """Where the preferences are and what is declared of them, as job_from takes it."""
    return {"path": path, "table": table, "query": query, "default": default, "cap": cap, "levels": levels}


def _prefect() -> AbstractContextManager[Callable[[], None]]:
    """A Prefect server: where we start our own, it boots while we read the settings."""
    from tasks.servers import prefect_server

    return prefect_server(prepared())


def _run(job: Job, wait_for_prefect: Callable[[], None]) -> Done:
    from flows.ledger_commands import show_ledger
    from flows.run import run
    from models.errors import BudgetExceeded
    from tasks.paths import require_writable

    if job.report:
        require_writable(job.report, "report", ".json")  # found out now, not after the work
    wait_for_prefect()
    try:
        return run(job)
    except BudgetExceeded:
        show_ledger(job.source)
        raise


def _show(job: Job, done: Done, seconds: float) -> None:
    from flows.report import closing_lines, report, result_table, write_report

    out = console()
    out.print()
    out.print(result_table(done.results, out.width))
    if job.report:
        write_report(job.report, report(job, done.results, seconds))
    for line in closing_lines(job, done, seconds):
        out.print(line, highlight=False, markup=False)


@contextmanager
def _progress(screen: Console, first: str) -> Iterator[None]:
    from flows.display import displayed
    from tasks.progress import stage

    with displayed(screen):
        stage(first)
        yield


def main() -> None:
    gc.set_threshold(*RARELY)
    app()
