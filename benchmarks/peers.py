"""How fast Jali's recommenders fit on MovieLens 1M beside their peers, and how well they do.

    python benchmarks/peers.py FOLDER [--repeat 5]

FOLDER holds ratings.csv.gz. A tenth of the ratings is held out. In one process and turn by turn, each program
fits the rest: the seconds are the median over so many turns, after one that compiles. Then each predicts the
tenth. benchmarks/requirements.txt makes the environment, which is not Jali's.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pandas as pd
from speed import arguments_of, fresh, read, timed

from models.evaluation import client_scores, deal_ratings
from models.factorization.dp_pmf import DPPMF
from models.factorization.pdp_pmf import PDPPMF
from models.factorization.pmf import PMF
from models.histogram.pdp_histogram import PDPHistogram
from models.privacy.noise import SeededNoise
from models.privacy.specification import PrivacySpecification
from models.ratings import Ratings
from models.recommender import Recommender

Predictions = np.ndarray
Program = tuple[Callable[[], object], Callable[[object], float]]
"""Fits, and makes an RMSE of what was fitted."""
THREADS = os.cpu_count() or 1


def ours(train: Ratings, test: Ratings) -> dict[str, Program]:
    def program(recommender: Recommender) -> Program:
        specification = PrivacySpecification(epsilon=1, relation=recommender.relation)

        def fit() -> object:
            return recommender.fit(fresh(train), specification, SeededNoise(), n_threads=THREADS)

        return fit, lambda fitted: client_scores(fitted, train, test).rmse  # type: ignore[arg-type, union-attr]

    return {
        "`pmf` (als), 15 sweeps": program(PMF()),
        "`pmf` (sm08), 50 epochs": program(PMF(solver="sm08")),
        "`dp-pmf` (exact), 50 epochs": program(DPPMF()),
        "`dp-pmf` (alg2), 50 + 50 epochs": program(DPPMF(solver="alg2")),
        "`pdp-pmf` (exact), 50 epochs": program(PDPPMF()),
        "`pdp-histogram`": program(PDPHistogram()),
    }


def peers(train: Ratings, test: Ratings) -> dict[str, Program]:
    """Each with 20 factors, its own defaults elsewhere, and its data prepared before the clock starts."""
    return cornacs(train, test) | surprises(train, test) | lenskits(train, test)


def cornacs(train: Ratings, test: Ratings) -> dict[str, Program]:
    import cornac

    rows = zip(train.users.tolist(), train.items.tolist(), train.values.tolist(), strict=True)
    data = cornac.data.Dataset.from_uir(list(rows))

    def rmse(model: object) -> float:
        pairs = zip(test.users.tolist(), test.items.tolist(), strict=True)
        known = [(data.uid_map.get(user), data.iid_map.get(item)) for user, item in pairs]
        mean = data.global_mean
        predicted = [mean if None in pair else float(model.score(*pair)) for pair in known]  # type: ignore[attr-defined]
        return error(predicted, test)

    return {
        "cornac MF, 20 epochs": (
            lambda: cornac.models.MF(k=20, max_iter=20, lambda_reg=0.02, num_threads=THREADS).fit(data),
            rmse,
        ),
        "cornac PMF (linear), 100 epochs": (lambda: cornac.models.PMF(k=20, variant="linear").fit(data), rmse),
    }


def surprises(train: Ratings, test: Ratings) -> dict[str, Program]:
    import surprise

    def frame(ratings: Ratings) -> pd.DataFrame:
        return pd.DataFrame({"user": ratings.users, "item": ratings.items, "rating": ratings.values.astype(float)})

    data = surprise.Dataset.load_from_df(frame(train), surprise.Reader(rating_scale=(1, 5))).build_full_trainset()
    held_out = list(frame(test).itertuples(index=False, name=None))

    def rmse(model: object) -> float:
        return error([prediction.est for prediction in model.test(held_out)], test)  # type: ignore[attr-defined]

    return {"scikit-surprise SVD, 20 epochs": (lambda: surprise.SVD(n_factors=20, n_epochs=20).fit(data), rmse)}


def lenskits(train: Ratings, test: Ratings) -> dict[str, Program]:
    from lenskit.als import BiasedMFScorer
    from lenskit.data import ItemList, RecQuery, from_interactions_df

    frame = pd.DataFrame({"user_id": train.users, "item_id": train.items, "rating": train.values})
    data = from_interactions_df(frame)

    def fit() -> object:
        scorer = BiasedMFScorer(features=20, epochs=10)
        scorer.train(data)
        return scorer

    def rmse(model: object) -> float:
        predicted = np.empty(len(test))
        for user in np.unique(test.users):
            own = np.flatnonzero(test.users == user)
            scored = model(query=RecQuery(user_id=user), items=ItemList(item_ids=test.items[own]))  # type: ignore[operator]
            predicted[own] = scored.scores()
        return error(np.where(np.isfinite(predicted), predicted, float(train.values.mean())), test)

    return {"lenskit BiasedMF, 10 sweeps": (fit, rmse)}


def error(predicted: object, test: Ratings) -> float:
    clipped = np.clip(np.asarray(predicted, dtype=float), test.scale.low, test.scale.high)
    return float(np.sqrt(np.mean((clipped - test.values) ** 2)))


def main() -> None:
    arguments = arguments_of(__doc__ or "")
    ratings = read(arguments.folder)
    is_test = deal_ratings(ratings, 10) == 0
    train, test = ratings.where(~is_test), ratings.where(is_test)
    programs = ours(train, test) | peers(train, test)

    last: dict[str, object] = {}

    def noted(name: str, fit: Callable[[], object]) -> Callable[[], None]:
        def work() -> None:
            last[name] = fit()

        return work

    seconds = timed({name: noted(name, fit) for name, (fit, _) in programs.items()}, arguments.repeat)
    base = seconds["cornac MF, 20 epochs"]
    print(f"{len(os.sched_getaffinity(0))} cores, d = 20, median of {arguments.repeat}\n")
    print("| program | fit | times cornac MF | RMSE |\n| --- | --- | --- | --- |")
    for name, (_, rmse) in programs.items():
        print(f"| {name} | {seconds[name]:.2f} s | {seconds[name] / base:.2f} | {rmse(last[name]):.4f} |")


if __name__ == "__main__":
    main()
