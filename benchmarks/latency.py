"""How fast the champion answers: `jali serve` beside MLflow's own scoring server, each on one core.

    python benchmarks/latency.py FOLDER [--rate 200] [--seconds 30] [--mlflow-rate 20]

FOLDER holds MovieLens 1M (ratings.csv.gz, movies.dat). `jali run` releases pdp-histogram at epsilon = 1 and
`jali promote` promotes it. Then each server has the first core and the load generator the second, at
real-time priority where that is allowed: what else the machine does counts for neither. Requests with 20 own
ratings are sent at fixed times, whatever became of those before, and latency counts from the time at which a request
was due: a server that stalls is charged for all that it kept waiting. An error is anything but a 200 within ten
seconds. `promotion.py` changes champions meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

PROGRAMS = Path(sys.executable).parent
SOURCE, RECOMMENDER, N_OWN = "ml-1m", "pdp-histogram", 20
PORT, TIMEOUT = 8421, 10.0
SERVER_CORE, LOAD_CORE = 0, 1


@dataclass
class Measured:
    """Milliseconds from when a request was due to the end of its answer."""

    latencies: list[float] = field(default_factory=list)
    errors: int = 0

    def row(self, *what: object) -> str:
        """Of a table: `what` it is, how many were answered and how many not, and how fast."""
        p50, p99 = np.percentile(self.latencies or [np.nan], [50, 99])
        worst = max(self.latencies, default=np.nan)
        cells = [*what, f"{len(self.latencies):,}", self.errors, f"{p50:.2f}", f"{p99:.2f}", f"{worst:.1f}"]
        return f"| {' | '.join(map(str, cells))} |"


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Whatever is started in the block runs on this core and, where that is allowed, before all other programs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        at_leisure()


def at_leisure() -> None:
    """Run as other programs do."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def released(data: Path) -> None:
    """A release of the ratings, promoted, in the working folder."""
    ratings = ["--ratings", str(data / "ratings.csv.gz"), "--items", str(data / "movies.dat"), "--scale", "1:5:1"]
    jali("run", *ratings, "--source", SOURCE, "--recommenders", RECOMMENDER, "--epsilon", "1", "--folds", "2")
    jali("promote", RECOMMENDER, "--source", SOURCE)


def jali(*arguments: str, ends_with: int = 0, **environment: str) -> str:
    """The command, for which no request has to wait; returns the last line of its answer, or of its complaint."""
    done = subprocess.run(  # noqa: S603 - ourselves
        ["/usr/bin/nice", "-n", "19", str(PROGRAMS / "jali"), *arguments],
        preexec_fn=at_leisure,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != ends_with:
        sys.exit(f"jali {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return (done.stderr if ends_with else done.stdout).strip().splitlines()[-1]


@contextmanager
def serving(command: list[str], ready: str) -> Iterator[float]:
    """The server, from when it is ready; yields the seconds from its start."""
    with pinned(SERVER_CORE), Path("server.log").open("wb") as log:
        began = time.perf_counter()
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: S603 - the two servers
    try:
        while not answers(f"http://127.0.0.1:{PORT}{ready}"):
            if server.poll() is not None:
                sys.exit(Path("server.log").read_text())
            time.sleep(0.02)
        yield time.perf_counter() - began
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=1):  # noqa: S310 - this machine's
            return True
    except (URLError, OSError):
        return False


def requests(path: str, *, for_mlflow: bool) -> list[bytes]:
    """A hundred people with 20 ratings of films that there are."""
    with (
        urlopen(f"http://127.0.0.1:{PORT}/release/release.json")
        if not for_mlflow
        else Path("items.json").open() as file
    ):
        items = json.load(file)["items"]
    if not for_mlflow:
        Path("items.json").write_text(json.dumps({"items": items}))
    rng = np.random.default_rng(1)
    made = []
    for _ in range(100):
        own = [
            {"item": items[item], "rating": int(rng.integers(1, 6))}
            for item in rng.choice(len(items), N_OWN, replace=False)
        ]
        question = {"ratings": own, "n": 10}
        body = json.dumps({"dataframe_records": [question]} if for_mlflow else question).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


async def load(messages: list[bytes], rate: float, meanwhile: Coroutine[Any, Any, None]) -> Measured:
    """Send them in turn, `rate` a second, until `meanwhile` has come to its end."""
    measured, free = Measured(), []

    async def one(at: float, message: bytes) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                connection = free.pop() if free else await asyncio.open_connection("127.0.0.1", PORT)
                status = await answered(connection, message)
        except (OSError, EOFError, TimeoutError):
            measured.errors += 1
            return
        free.append(connection)
        if status == 200:
            measured.latencies.append((time.perf_counter() - at) * 1000)
        else:
            measured.errors += 1

    doing = asyncio.create_task(meanwhile)
    began = time.perf_counter() + 0.1
    tasks: list[asyncio.Task[None]] = []
    while not doing.done():
        number = len(tasks)
        at = began + number / rate
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        tasks.append(asyncio.create_task(one(at, messages[number % len(messages)])))
    await asyncio.gather(*tasks, doing)
    for _, writer in free:
        writer.close()
    return measured


async def answered(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], message: bytes) -> int:
    """The status, once all of the answer is there."""
    reader, writer = connection
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    await reader.readexactly(int(lengths[0]))
    return int(head.split()[1])


def loaded(messages: list[bytes], rate: float, seconds: float) -> Measured:
    with pinned(LOAD_CORE):
        asyncio.run(load(messages, rate, asyncio.sleep(2)))  # everything is imported and connected
        return asyncio.run(load(messages, rate, asyncio.sleep(seconds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--mlflow-rate", type=float, default=20, help="One that MLflow's server keeps up with.")
    arguments = parser.parse_args()
    data = arguments.folder.absolute()
    with tempfile.TemporaryDirectory(prefix="jali-") as folder:
        os.chdir(folder)
        released(data)
        measure(arguments.rate, arguments.seconds, arguments.mlflow_rate)
        os.chdir("/")


def measure(rate: float, seconds: float, mlflow_rate: float) -> None:
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
    print("| server | requests a second | answered | errors | p50 ms | p99 ms | max ms |")
    print("|" + " --- |" * 7)
    own = [str(PROGRAMS / "jali"), "serve", "--source", SOURCE, "--port", str(PORT)]
    with serving(own, "/readyz") as first:
        messages = requests("/recommend", for_mlflow=False)
        print(loaded(messages, rate, seconds).row("`jali serve`", f"{rate:g}"), flush=True)
    with serving(own, "/readyz") as again:
        pass
    theirs = [str(PROGRAMS / "mlflow"), "models", "serve", "-m", f"models:/{SOURCE}.serving@champion", "-p", str(PORT)]
    os.environ["PATH"] = f"{PROGRAMS}:{os.environ['PATH']}"  # there it looks for uvicorn
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{Path.cwd() / '.jali' / 'mlflow.db'}"
    with serving([*theirs, "--env-manager", "local"], "/ping") as mlflow:
        messages = requests("/invocations", for_mlflow=True)
        for each in (rate, mlflow_rate):
            print(loaded(messages, each, seconds).row("`mlflow models serve`", f"{each:g}"), flush=True)
    print(f"\nstart to ready: {first:.1f} s the first time, {again:.1f} s again; mlflow {mlflow:.1f} s")


if __name__ == "__main__":
    main()
