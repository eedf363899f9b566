"""Audits nobody ran, for whatever follows one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from models.audit.audit import Audited, Shown
from models.audit.claim import Claim
from models.audit.neighbours import Neighbours
from models.candidate import Candidate
from models.index import make_recommender
from models.privacy.noise import ExactNoise
from models.privacy.specification import PrivacySpecification, Relation
from models.ratings import RatingScale
from tasks.auditing import Subject, Trial, Version
from tasks.state import State, prepare
from tasks.tracking import open_tracking
from tests.made_up import made_up_ratings

if TYPE_CHECKING:
    from mlflow import MlflowClient

RATES = np.linspace(0, 1, 11)


def subject(
    name: str = "pdp-histogram", relation: Relation | None = None, version: Version | None = None, **privacy: object
) -> Subject:
    recommender = make_recommender(name, {})
    told = {"epsilon": 1, "relation": recommender.relation, **privacy}
    specification = PrivacySpecification(**told)
    guarantee = recommender.guarantee(specification, public_catalogue=True)
    return Subject(
        Candidate(recommender, specification, guarantee),
        RatingScale(low=1, high=5),
        relation or recommender.relation,
        version,
    )


def trial(
    epsilon_shown: float,
    of: Subject | None = None,
    claim: Claim | None = None,
    mu: float | None = None,
    n_runs: int = 40_000,
    confidence: float = 0.95,
) -> Trial:
    of = of or subject()
    pair = Neighbours("a rating of an item nobody else rated", (), ((0, 0, 4),))
    shown = Shown(epsilon_shown, mu, "one number of the release", 5, RATES, (1 - RATES) ** 2)
    audited = Audited(claim or Claim(1.0), of.relation, pair, shown, confidence, n_runs, 29, 20_000)
    return Trial(of, audited, seconds=30.0)


@pytest.fixture(scope="module")
def made_up_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[State]:
    """films has two versions of pdp-histogram and one of dp-pmf, books and spoilt have one of pdp-histogram.

    What films serves is a copy of one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("registry"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        state = prepare()
        client = open_tracking(state)
        for source, name in (("films", "dp-pmf"), *((source, "pdp-histogram") for source in SOURCES)):
            _register(client, source, f"{source}.{name}", name)
        _register(client, "films", "films.serving", "pdp-histogram")
        yield state


SOURCES = ("films", "films", "books", "spoilt")


def _register(client: MlflowClient, source: str, model: str, name: str) -> None:
    """A version as publication leaves it, but for what serves it. Its files are in the folder of the model's name."""
    files = Path(model, "artifacts", "release")
    if not files.is_dir():
        client.create_registered_model(model)
        files.mkdir(parents=True)
    chosen = subject(name, epsilon=0.5).candidate
    chosen.recommender.fit(made_up_ratings(9, 8, 4), chosen.specification, ExactNoise()).release.save(files)
    tags = {"source": source, "privacy.epsilon": chosen.guarantee.epsilon_summary}
    client.create_model_version(model, Path(model).absolute().as_uri(), tags=tags)
