"""Kill `jali run` at random times, run it again each time, and say what ledger and registry hold.

    python benchmarks/crashes.py [--kills 10] [--seed 1]

Made-up ratings, a folder of its own, one Prefect server for all. Half of the kills fall anywhere between the opening
of the ledger and the end, half while the release is fitted and published. Every other one is a SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tasks.ledger import Ledger
from tasks.ledger_entries import SPENT, Entry
from tasks.servers import prefect_server
from tasks.state import State, prepare

JALI = str(Path(sys.executable).with_name("jali"))
COMMAND = [JALI, "run", "--ratings", "films.csv", "--items", "items.csv", "--scale", "1:5:1", "--folds", "2"]
COMMAND += ["--recommenders", "pdp-histogram", "--epsilon", "0.1"]
WORKING = 0.3
"""Of the time from the fit to the end of the process; the rest it takes to print the table and to leave."""
OPENING, PUBLISHING = "Opening MLflow and the ledger", "Fitting with exact noise and publishing"


@dataclass(frozen=True)
class Found:
    """What ledger, registry and disk hold after a run, however that ended."""

    entries: list[Entry]
    versions: dict[str, str]
    n_matrices: int
    n_runs_left: int

    @property
    def problems(self) -> list[str]:
        """What must not be, whenever one looks."""
        spent = {entry.reservation for entry in self.entries if entry.state in SPENT}
        published = {entry.reservation: entry.note for entry in self.entries if entry.state == "publish"}
        return [
            *(["a version nobody paid for"] if not set(self.versions) <= spent else []),
            *(["published and not there"] if not set(published) <= set(self.versions) else []),
            *(["more noise than was paid for"] if self.n_matrices > len(spent) else []),
        ]

    @property
    def settled_problems(self) -> list[str]:
        """What must not be after a run that came to its end."""
        published = {entry.reservation: entry.note for entry in self.entries if entry.state == "publish"}
        return [
            *self.problems,
            *(["the ledger's versions are not the registry's"] if published != self.versions else []),
            *(["something is left in .jali/runs"] if self.n_runs_left else []),
        ]


def found_in(folder: Path) -> Found:
    state = State(folder / ".jali")
    versions = {}
    if (state.folder / "mlflow.db").exists():
        with closing(sqlite3.connect(state.folder / "mlflow.db")) as tracked:
            rows = tracked.execute(
                "SELECT t.value, v.version FROM model_versions v JOIN model_version_tags t USING (name, version) "
                "WHERE t.key = 'ledger.reservation' AND v.current_stage != 'Deleted_Internal'"
            ).fetchall()
        assert len(rows) == len(dict(rows)), "two versions of one reservation"
        versions = {reservation: f"version {number}" for reservation, number in rows}
    matrices = {file.read_bytes() for file in state.folder.rglob("items.safetensors")}
    left = list((state.folder / "runs").glob("*"))
    return Found(Ledger(state).entries(), versions, len(matrices), len(left))


def write_ratings(folder: Path) -> None:
    rng = random.Random(1)  # noqa: S311 - made-up ratings
    rows = [f"u{user},i{item},{rng.randint(1, 5)}" for user in range(60) for item in rng.sample(range(40), 20)]
    (folder / "films.csv").write_text("\n".join(["user,item,rating", *rows, ""]))
    items = [f"i{item},Film {item},drama" for item in range(40)]
    (folder / "items.csv").write_text("\n".join(["item,title,genres", *items, ""]))


def run(folder: Path, kill_after: tuple[str, float, signal.Signals] | None = None) -> tuple[int, dict[str, float], str]:
    """Run the command; returns its exit code, when each stage began, and the last that was said.

    Args:
      kill_after: the stage, the seconds from its beginning, and the signal.
    """
    with subprocess.Popen(  # noqa: S603 - our own command
        COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        began, said = {}, ""
        for line in process.stderr:
            said = line.strip().partition("s  ")[2] or line.strip()
            began[said] = time.monotonic()
            if kill_after and said == kill_after[0]:
                time.sleep(kill_after[1])
                process.send_signal(kill_after[2])
        code = process.wait()
    return code, {**began, "end": time.monotonic()}, said


def short(entries: list[Entry], before: int) -> str:
    """What became of the newest charges."""
    return ", ".join(entry.outcome for entry in entries[before:]) or "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)  # noqa: S311 - times at which to kill
    with TemporaryDirectory(prefix="crashes-") as name:
        os.chdir(name)
        os.environ["XDG_STATE_HOME"] = f"{name}/account"
        folder = Path(name)
        write_ratings(folder)
        with prefect_server(prepare()) as wait:
            wait()
            kill_again_and_again(folder, arguments.kills, rng)


def kill_again_and_again(folder: Path, n_kills: int, rng: random.Random) -> None:
    _, began, _ = run(folder)  # compiles; the second one tells how long it takes
    _, began, _ = run(folder)
    whole, publishing = (began["end"] - began[stage] for stage in (OPENING, PUBLISHING))
    publishing *= WORKING
    print(f"undisturbed: {whole:.1f} s from opening the ledger to the end, {publishing:.1f} s to fit and publish")
    print("| kill | at | ledger then | registry then | ledger after the next run | registry | ε charged | noises | |")
    print("|-|-|-|-|-|-|-|-|-|")
    for number in range(n_kills):
        before = len(found_in(folder).entries)
        how = signal.SIGTERM if number % 2 else signal.SIGKILL
        stage, seconds = (OPENING, whole) if number < n_kills // 2 else (PUBLISHING, publishing)
        at = rng.uniform(0, seconds)
        code, _, said = run(folder, (stage, at, how))
        then = found_in(folder)
        again, _, _ = run(folder)
        after = found_in(folder)
        problems = [*then.problems, *after.settled_problems, *([f"exit code {again}"] if again else [])]
        charged = sum(entry.claimed_epsilon or 0 for entry in after.entries if entry.state in SPENT)
        ended = how.name if code < 0 else f"{how.name}, ended with {code}"
        print(
            f"| {ended} | {said}, {at:.2f} s after {'the opening' if stage == OPENING else 'the fit began'} "
            f"| {short(then.entries, before)} | {len(then.versions)} | {short(after.entries, before)} "
            f"| {len(after.versions)} | {charged:.1f} | {after.n_matrices} | {', '.join(problems) or 'consistent'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
