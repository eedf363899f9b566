"""How fast the kernels are on MovieLens 1M.

    python benchmarks/speed.py FOLDER [--repeat 5]

FOLDER holds ratings.csv.gz and movies.dat. Every figure is the median of so many runs, after one that
compiles. benchmarks/peers.py sets the fits beside those of other programs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from models.evaluation import client_scores, deal_ratings
from models.factorization.als import solve_factors
from models.factorization.dp_pmf import DPPMF, perturbed
from models.factorization.pmf import PMF, initial_factors
from models.histogram.pdp_histogram import PDPHistogram
from models.privacy.noise import ExactNoise, SeededNoise
from models.privacy.specification import PrivacySpecification
from models.ratings import Catalogue, Ratings, RatingScale

SPECIFICATION = PrivacySpecification(epsilon=1)
CHANGED = PrivacySpecification(epsilon=1, relation="replace_value")
THREADS = os.cpu_count() or 1


def read(folder: Path) -> Ratings:
    """ML-1M without the rest of Jali, so that any environment with numpy can run this."""
    table = np.loadtxt(folder / "ratings.csv.gz", dtype=np.int64, delimiter=",", skiprows=1)
    users, user_rows = np.unique(table[:, 0], return_inverse=True)
    items, item_rows = np.unique(table[:, 1], return_inverse=True)
    return Ratings(
        user_rows.astype(np.int32),
        item_rows.astype(np.int32),
        table[:, 2].astype(np.float32),
        tuple(map(str, users)),
        Catalogue.of_items([str(item) for item in items], public=True),
        RatingScale(low=1, high=5),
    )


def fresh(ratings: Ratings) -> Ratings:
    """The same ratings without cached views."""
    return ratings.where(np.ones(len(ratings), np.bool_))


def timed(
    work: dict[str, Callable[[], object]], repeat: int, clock: Callable[[], float] = perf_counter
) -> dict[str, float]:
    """Median seconds of each, taken turn by turn so that whatever else the machine does meets all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeat + 1):
        for name, do in work.items():
            began = clock()
            do()
            if turn:
                seconds[name].append(clock() - began)
    return {name: median(values) for name, values in seconds.items()}


def own_work(ratings: Ratings) -> dict[str, Callable[[], object]]:
    V = initial_factors(ratings.n_items, 20)
    by_user, by_item = ratings.by_user, ratings.by_item
    factors = PDPHistogram().fit(ratings, SPECIFICATION, SeededNoise()).factors

    def sweep() -> None:
        U = solve_factors(by_user, V, centre=3.58, precision=0.06, n_threads=THREADS)
        solve_factors(by_item, U, centre=3.58, precision=0.06, n_threads=THREADS)

    return {
        "ALS sweep, both halves, d=20": sweep,
        "pmf fit, 15 sweeps, d=20": lambda: PMF().fit(fresh(ratings), SPECIFICATION, SeededNoise(), n_threads=THREADS),
        "pdp-histogram fit, fast noise": lambda: PDPHistogram().fit(fresh(ratings), SPECIFICATION, SeededNoise()),
        "pdp-histogram fit, exact noise": lambda: PDPHistogram().fit(fresh(ratings), SPECIFICATION, ExactNoise()),
        "dp-pmf fit (exact), 50 epochs, d=20": lambda: DPPMF().fit(fresh(ratings), CHANGED, SeededNoise()),
        "K-norm noise on V from the cryptographic generator": lambda: perturbed(V, 4.0, ExactNoise()),
        "fold-in of all users": lambda: factors.fold_in(by_user.start, by_user.other, by_user.values),
    }


def arguments_of(description: str) -> argparse.Namespace:
    """The folder of the ratings, and how often to repeat."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    arguments = arguments_of(__doc__ or "")
    ratings = read(arguments.folder)

    seconds = timed(own_work(ratings), arguments.repeat)
    print(f"{len(os.sched_getaffinity(0))} cores, median of {arguments.repeat}")
    for name, value in seconds.items():
        print(f"| {name} | {value * 1000:.0f} ms |")
    folds = deal_ratings(ratings, 5)
    rmse = []
    for fold in range(5):
        train, test = ratings.where(folds != fold), ratings.where(folds == fold)
        scores = client_scores(PMF().fit(train, SPECIFICATION, SeededNoise(), n_threads=THREADS), train, test)
        assert scores is not None
        rmse.append(scores.rmse)
    print(f"| pmf, client RMSE, 5 folds | {np.mean(rmse):.4f} |")


if __name__ == "__main__":
    main()
