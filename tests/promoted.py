"""Releases that nobody waits for twice: published once, and copied into every test's own registry."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.job import Job
from flows.run import bill
from models.candidate import Candidate
from models.index import make_recommender
from models.privacy.specification import PrivacySpecification
from tasks import promotion
from tasks.decisions import Who
from tasks.gates import Finding, Offered
from tasks.lease import lease
from tasks.ledger import Ledger
from tasks.ledger_entries import Charge
from tasks.promotion import Aliases, open_offered, serve
from tasks.publishing import publish
from tasks.state import State, prepare
from tasks.tracking import open_tracking
from tasks.training import fit_private
from tests.made_up import made_up_ratings

NAME = "films.pdp-histogram"
SERVING = "films.serving"
N_RELEASED = 3
WHO = Who("me", "2026-11-21 12:00:00 UTC", "because")
FINDINGS = (Finding("verdict", "pass", "proven"), Finding("audit", "waived", "x" * 5000, "it was chance"))


def candidate() -> Candidate:
    recommender = make_recommender("pdp-histogram", {})
    specification = PrivacySpecification(epsilon=1)
    return Candidate(recommender, specification, recommender.guarantee(specification, public_catalogue=True))


def bill_of(chosen: Candidate) -> tuple[Charge, ...]:
    return bill(Job(source="films"), chosen)


@pytest.fixture(scope="session")
def published_films(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three versions of films.pdp-histogram, as publication leaves them; their files stay here."""
    folder = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("XDG_STATE_HOME", str(folder / "account"))
        state = prepare()
        ledger, chosen = Ledger(state), candidate()
        for seed in range(N_RELEASED):
            (reservation,) = ledger.reserve([bill_of(chosen)])
            ratings = made_up_ratings(9, 8, 4, seed=seed)
            release = fit_private(chosen.recommender, ratings, chosen.specification, reservation)
            publish("films", chosen, release, reservation)
        yield state.folder


@pytest.fixture(scope="session")
def served_films(published_films: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same; of films.serving version 2 is the champion, and 1 was before: copies of those of the same number."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        state = prepare()
        copy_databases(published_films, state.folder)
        for number in ("1", "2"):
            promote(state, number)
        yield state.folder


def copy_databases(folder: Path, to: Path) -> None:
    for name in ("mlflow.db", "ledger.db", "ledger.key"):
        shutil.copyfile(folder / name, to / name)


@pytest.fixture
def films(published_films: Path, state: State) -> State:
    """A registry and a ledger of the test's own, with these versions; their files are everybody's."""
    copy_databases(published_films, state.folder)
    return state


@pytest.fixture
def served(served_films: Path, state: State) -> State:
    """The same with a champion, and one before."""
    copy_databases(served_films, state.folder)
    return state


def aliases_of(state: State) -> Aliases:
    """What films.serving serves."""
    return promotion.aliases_of(open_tracking(state), "films")


def promote(state: State, number: str, who: Who = WHO, findings: tuple[Finding, ...] = FINDINGS) -> str:
    """What `jali promote` does once all gates were passed; returns the number of the copy."""
    folder = state.folder.parent / "files"
    shutil.rmtree(folder, ignore_errors=True)
    with lease(state, "changing what films serves", who.name) as held:
        return serve(offered(number, folder), findings, aliases_of(state), who, held)


def offered(number: str, folder: Path) -> Offered:
    """The version with its files in a folder of the test's own."""
    return open_offered("pdp-histogram", "films", number, folder / f"offered-{number}")
