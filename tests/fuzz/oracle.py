"""Run a case and judge how it ended: the same oracle for the command in this process and in one of its own."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import typer
from typer.testing import CliRunner

import flows.audit
import flows.cli
import flows.reproduce
import flows.run
import tasks.loading
from flows.audit import Request
from flows.job import Job, candidates
from flows.run import Done, Result, releasable, reserved
from models.candidate import Candidate
from tasks.batches import open_batch
from tasks.item_files import catalogue_of
from tasks.ledger import Ledger
from tasks.rating_files import HALF
from tasks.state import current_state
from tasks.training import Evaluation, deal, evaluate_fold, fit_private
from tasks.turns import one_at_a_time
from tasks.validation import validate
from tests.fuzz.case import SECRETS, Case

ENDINGS = {0: "done", 1: "refused", 2: "bad arguments", 3: "environment"}
LONGEST_SENTENCE = 600
MOST_ITEMS = 2000
"""Beyond, as in the Netflix Prize, a case ends before the fits: they take seconds."""

tally: Counter[tuple[str, str]] = Counter()
"""How many cases of which kind ended how; printed at the end of the tests."""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def judge(case: Case, folder: Path, run: Callable[[Case], Outcome]) -> Outcome:
    """Run the case in `folder` and check everything that must hold of every ending."""
    case.written_to(folder)
    before = contents(folder)
    outcome = run(case)
    said = outcome.out + outcome.err
    assert outcome.code in ENDINGS, (outcome.code, said)
    assert "Traceback" not in said, said
    assert "Warning" not in said, said
    for secret in SECRETS:
        assert secret not in said, said
    if outcome.code:
        assert_it_is_said_in_sentences(case, outcome)
    after = contents(folder)
    assert before.items() <= after.items(), "a file that was there before is not as it was"
    for name in after.keys() - before.keys():
        assert outcome.code == 0, f"{name} was left behind"
        assert "recommenders" in json.loads(after[name]), f"{name} is no report"
    tally[case.kind, ENDINGS[outcome.code]] += 1
    return outcome


def contents(folder: Path) -> dict[str, bytes]:
    """What is in the folder besides Jali's own state."""
    files = (path for path in folder.rglob("*") if ".jali" not in path.parts and path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_it_is_said_in_sentences(case: Case, outcome: Outcome) -> None:
    rules_are_the_answer = case.arguments[:1] == ("validate",) and outcome.code == 1
    text = outcome.out if rules_are_the_answer else outcome.err
    assert any(line.rstrip().endswith(".") for line in text.splitlines()), text
    if text.startswith("Usage:"):  # typer's own words, which repeat an unknown command or option as it was typed
        return
    for sentence in re.split(r"(?<=[.:!?])\s+", text):
        assert len(sentence) <= LONGEST_SENTENCE, sentence


def counted() -> str:
    """What was tallied, in a line; the tally begins anew."""
    kinds = sorted({kind for kind, _ in tally})
    lines = []
    for kind in kinds:
        ends = {ending: tally[kind, ending] for ending in ENDINGS.values() if tally[kind, ending]}
        lines.append(f"{kind}: {sum(ends.values())} cases ({', '.join(f'{n} {ending}' for ending, n in ends.items())})")
    tally.clear()
    return "; ".join(lines)


@contextmanager
def in_an_empty_folder() -> Iterator[Path]:
    here = Path.cwd()
    with TemporaryDirectory(prefix="fuzz-") as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(here)


def in_process(case: Case) -> Outcome:
    """The real typer application, with `rehearse` in the place of the Prefect flow."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in case.variables.items():
            patch.setenv(name, value)
        patch.setattr(flows.cli, "_prefect", no_prefect)
        patch.setattr(flows.run, "run", rehearse)
        patch.setattr(flows.reproduce, "reproduce", read_only)
        patch.setattr(flows.audit, "audit", understood_only)
        patch.setenv("JALI_MOVIELENS_URL", "http://127.0.0.1:1")
        patch.setattr(tasks.loading, "read_sample", small_sample)
        result = CliRunner().invoke(flows.cli.app, list(case.arguments))
    unexpected = result.exception if not isinstance(result.exception, SystemExit) else None
    assert unexpected is None, repr(unexpected)
    return Outcome(result.exit_code, result.stdout, result.stderr)


@contextmanager
def no_prefect() -> Iterator[Callable[[], None]]:
    flows.cli.prepared()
    yield lambda: None


def rehearse(job: Job) -> Done:
    """What the flow does, in its order, without servers: one fold, the final fit, nothing published."""
    ledger = Ledger(current_state())
    chosen = candidates(job, releases := releasable(job, ledger.budget(job.source)))
    to_release = [candidate for candidate in chosen if releases(candidate.guarantee)]
    with one_at_a_time(job.source), reserved(ledger, job, to_release) as (_, reservations):
        told = job.privacy
        loaded = tasks.loading.load(job.ratings, job.items, job.scale, told.preferences, told.unit)
        ratings = validate(loaded, job.minimums)
        if len(ratings.catalogue) > MOST_ITEMS or not all(map(is_quick, chosen)):
            raise typer.Exit(0)
        if job.batch:
            ratings = open_batch(job.source, chosen[0].recommender, ratings, job.batch.kind)
        dealt = deal(ratings, job.folds)
        results = []
        for chosen_one in chosen:
            what, promised = chosen_one.recommender, chosen_one.specification
            fold = evaluate_fold(what, ratings, promised, dealt, 0)
            if reservation := reservations.get(chosen_one.name):
                fit_private(what, ratings, promised, reservation, chosen_one.metrics)
            results.append(Result(chosen_one, Evaluation((fold,)), None))
        return Done(results, [])


def read_only(names: list[str], job: Job) -> None:
    """What reproducing does before it computes for hours."""
    validate(tasks.loading.load(job.ratings, job.items, job.scale), job.minimums)
    raise typer.Exit(0)


def understood_only(request: Request) -> None:
    """What auditing does before it opens MLflow."""
    raise typer.Exit(0)


def is_quick(candidate: Candidate) -> bool:
    """Sizes and repetitions that somebody asked for cost what they cost."""
    return all(value <= 100 for value in candidate.recommender.model_dump().values() if isinstance(value, int))


def small_sample():
    import pyarrow as pa

    from tasks.table import RatingTable

    users, items = [f"{n // 4}" for n in range(24)], [f"{n % 4}" for n in range(24)]
    columns = (pa.chunked_array([pa.array(column)]).dictionary_encode() for column in (users, items, ["3.5"] * 24))
    return HALF, RatingTable.of_columns(*columns), catalogue_of(list("0123"), list("abcd"), ["x|y"] * 4, "the sample")
