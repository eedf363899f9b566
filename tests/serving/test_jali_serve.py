"""`jali serve` itself, beside a real MLflow: champions change under load, MLflow goes away, a signal comes."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from models.ratings import Ratings
from models.release import Release
from tasks.registered import CHAMPION, serving_name
from tasks.released import release_of
from tasks.state import State, prepare
from tasks.tracking import open_tracking
from tests.command import JALI, clean, environment, jali
from tests.leak_search import Search, Secret
from tests.tasks.test_tracking_and_publishing import candidate, published

pytestmark = pytest.mark.slow

NAME = serving_name("films")
SECRET_ITEM, SECRET_RATING = "unmistakable-film", 4.2518273
OWN = [{"item": f"i{item}", "rating": 1 + item % 5} for item in range(20)]
OWN += [{"item": SECRET_ITEM, "rating": SECRET_RATING}]
AS_READ = {str(own["item"]): float(str(own["rating"])) for own in OWN}
SECONDS = 60


def within(seconds: float, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@dataclass
class Registry:
    """Of one folder: two versions of films.serving, the first of them champion."""

    state: State
    client: Any
    releases: dict[str, Release]

    def promote(self, version: str) -> None:
        self.client.set_registered_model_alias(NAME, CHAMPION, version)


@pytest.fixture(scope="module")
def registry(ratings: Ratings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("serving"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow sets it when a test before tells it where to track
        patch.setenv("XDG_STATE_HOME", str(folder / "account"))
        state = prepare()
        releases = {}
        for number in ("1", "2"):
            version = published(candidate(), ratings, state)
            client = open_tracking(state)
            if number == "1":
                client.create_registered_model(NAME)
            client.copy_model_version(f"models:/films.pdp-histogram/{version}", NAME)
            releases[number] = release_of(NAME, number)
        made = Registry(state, client, releases)
        made.promote("1")
        yield made


@dataclass
class Served:
    process: subprocess.Popen[bytes]
    terminal: Path
    port: int = 0

    @property
    def said(self) -> str:
        return self.terminal.read_text()

    def has_said_where(self) -> bool:
        assert self.process.poll() is None, self.said
        found = re.search(r":(\d+) answers", self.said)
        self.port = int(found[1]) if found else 0
        return found is not None

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            return asked(connection, path, body)
        finally:
            connection.close()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.said
        return self.ask("/readyz")[0] == 200

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=SECONDS)


def asked(connection: http.client.HTTPConnection, path: str, body: object) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def start(folder: Path) -> Served:
    """`jali serve`, once it is ready; what it says is kept."""
    terminal = folder / f"terminal-{time.monotonic_ns()}.txt"
    with terminal.open("wb") as said:
        process = subprocess.Popen(
            [JALI, "serve", "--port", "0"], cwd=folder, env=environment(), stdout=said, stderr=subprocess.STDOUT
        )
    served = Served(process, terminal)
    within(SECONDS, served.has_said_where)
    within(SECONDS, served.is_ready)
    return served


@pytest.fixture(scope="module")
def served(registry: Registry) -> Iterator[Served]:
    made = start(registry.state.folder.parent)
    yield made
    if made.process.poll() is None:
        made.stop()


@dataclass
class Load:
    """Requests one after another, as fast as they are answered, until it is told to stop."""

    port: int
    answers: list[tuple[int, Any]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    over: Event = field(default_factory=Event)

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        while not self.over.is_set():
            try:
                self.answers.append(asked(connection, "/recommend", {"ratings": OWN, "n": 3}))
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(error)
            time.sleep(0.003)
        connection.close()

    def versions(self) -> list[str]:
        """Which answered, in order, each once in a row."""
        numbers = [answer["model"]["version"] for _, answer in self.answers]
        return [number for at, number in enumerate(numbers) if at == 0 or numbers[at - 1] != number]


@contextmanager
def under_load(port: int) -> Iterator[Load]:
    """From the first answer on, because the next champion may come before a thread that has only been started."""
    load = Load(port)
    thread = Thread(target=load.run)
    thread.start()
    try:
        within(SECONDS, lambda: load.answers != [])
        yield load
    finally:
        load.over.set()
        thread.join()


def test_champions_change_forth_and_back_under_load_and_no_request_fails(registry: Registry, served: Served) -> None:
    with under_load(served.port) as load:
        for number in ("2", "1", "2"):
            registry.promote(number)
            within(SECONDS, lambda number=number: load.versions()[-1:] == [number])
    assert load.failures == []
    assert {status for status, _ in load.answers} == {200}
    assert load.versions() == ["1", "2", "1", "2"]
    for _, answer in load.answers:  # each from one release, and from all of it
        best = registry.releases[answer["model"]["version"]].recommend(AS_READ, 3)
        assert [(item["item"], item["title"], item["rating"]) for item in answer["items"]] == best


def test_mlflow_gives_the_same_numbers(registry: Registry, served: Served) -> None:
    import mlflow
    import pandas as pd

    model = mlflow.pyfunc.load_model(f"models:/{NAME}@{CHAMPION}")
    requests = [{"ratings": OWN, "n": 7}, {"ratings": [], "n": 4}, {"ratings": OWN, "items": ["i7", "nowhere", "i55"]}]
    for request in requests:
        theirs = model.predict(pd.DataFrame([request])).to_dict("records")[0]
        status, ours = served.ask("/predict" if "items" in request else "/recommend", request)
        assert status == 200
        assert [item["item"] for item in ours["items"]] == theirs["items"]
        assert [item["title"] for item in ours["items"]] == theirs["titles"]
        assert [item["rating"] for item in ours["items"]] == theirs["ratings"]
        assert (ours["ignored"], ours["unknown"]) == (theirs["ignored"], theirs["unknown"])
    for request in ({"ratings": [OWN[0]] * 2}, {"ratings": OWN, "n": 1001}, {"ratings": [{"item": "i1", "rating": 9}]}):
        with pytest.raises(mlflow.exceptions.MlflowException) as refused:
            model.predict(pd.DataFrame([request]))
        assert refused.value.error_code == "INVALID_PARAMETER_VALUE"
        assert served.ask("/recommend", request)[0] == 422


def test_without_mlflow_it_serves_on_finishes_what_is_asked_and_serves_again(
    registry: Registry, served: Served
) -> None:
    database, away = registry.state.tracking_database, registry.state.folder / "away.db"
    database.rename(away)
    try:
        within(SECONDS, lambda: not served.ask("/readyz")[1]["registry_in_touch"])
        status, answer = served.ask("/recommend", {"ratings": OWN})
        assert (status, answer["model"]["version"]) == (200, "2")
        assert first_of_the_answer_to_one_begun_before_the_end(served) == b"HTTP/1.1 200"
        assert served.process.wait(timeout=SECONDS) == 0
        again = start(registry.state.folder.parent)
        assert again.ask("/recommend", {"ratings": OWN})[1] == answer
        within(SECONDS, lambda: "is served as it was kept here" in again.said)  # after it is ready
        watchers = [path for path in Path("/proc").glob("[0-9]*") if is_child_of(path, again.process.pid)]
        again.process.kill()
        again.process.wait()
        assert watchers
        within(SECONDS, lambda: not any(path.exists() for path in watchers))  # it ends however the server ends
    finally:
        away.rename(database)


def is_child_of(process: Path, parent: int) -> bool:
    try:
        return f"\nPPid:\t{parent}\n" in (process / "status").read_text()
    except OSError:
        return False


def first_of_the_answer_to_one_begun_before_the_end(served: Served) -> bytes:
    """To a request of which the server has read the head, and gets the body when nobody else can connect any more."""
    body = json.dumps({"ratings": OWN}).encode()
    head = (
        "POST /recommend HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", served.port), SECONDS) as connection:
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 100")
        served.process.send_signal(signal.SIGTERM)
        within(SECONDS, lambda: not is_open(served.port))
        connection.sendall(body)
        return connection.recv(12)


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 10).close()
    except OSError:
        return False
    return True


def test_nothing_of_all_these_requests_is_anywhere(registry: Registry, served: Served) -> None:
    search = Search((Secret.text("item", SECRET_ITEM), Secret.text("rating", str(SECRET_RATING))))
    search.folder(registry.state.folder.parent)
    print(f"\njali serve: searched {search.summary()}: {len(search.findings)} found.")
    assert [str(finding) for finding in search.findings] == []
    assert served.said.endswith("Stopped.\n")


def test_with_nobody_promoted_or_no_port_it_ends_with_a_sentence(tmp_path: Path) -> None:
    nobody = clean(jali(tmp_path, "serve", "--port", "0"))
    assert nobody.returncode == 1
    assert "jali promote" in nobody.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = clean(jali(tmp_path, "serve", "--port", port))
    assert refused.returncode == 3
    assert f"cannot listen at port {port}" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", "http"), "--port is a whole number"),
        (("--port", "65536"), "--port is a whole number"),
        (("--host", "no such host"), "--host is an address"),
        (("--source", "../x"), "a source is called by"),
        (("--allow-origin", "films.example"), "--allow-origin takes an origin"),
    ],
)
def test_arguments_that_say_nothing_are_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    refused = clean(jali(tmp_path, "serve", *arguments))
    assert refused.returncode == 2
    assert said in refused.stderr
