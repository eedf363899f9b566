"""Over a real socket: clients that send too much, too slowly or nothing at all."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from models.release import RELEASE_FILE
from serving import gate
from serving import server as module
from serving.app import make_app
from serving.listening import listening_socket
from serving.words import Champion
from tests.serving.releases import champion, release, service

PATIENCE = 0.4
BODY = b'{"ratings": [{"item": "3", "rating": 5}], "n": 1}'


TAKE = b"GET /release/release.json HTTP/1.1\r\nHost: here\r\n\r\n"
N_TAKEN = 40
"""How many of them are asked for at once: more than the kernel keeps for somebody who does not read."""


@pytest.fixture(scope="module")
def told() -> list[str]:
    """What the server says on the terminal."""
    return []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Champion:
    return champion(tmp_path_factory.mktemp("cache"), made=release(n_items=20_000))


@pytest.fixture(scope="module")
def address(large: Champion, told: list[str]) -> Iterator[tuple[str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "BODY_SECONDS", PATIENCE)
        patch.setattr(gate, "LINGER_SECONDS", PATIENCE)
        patch.setattr(module, "HEADER_SECONDS", PATIENCE)
        patch.setattr(module, "TAKE_SECONDS", PATIENCE)
        server = module.make_server(make_app(service(large, tell=told.append)))
        patch.setattr(server, "capture_signals", nullcontext)  # signals are for the main thread
        with listening_socket("127.0.0.1", 0) as listening:
            thread = Thread(target=server.run, args=([listening],))
            thread.start()
            yield listening.getsockname()
            server.should_exit = True
            thread.join()


def head(path: str = "/recommend", length: int | None = len(BODY), *more: str) -> bytes:
    sized = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"POST {path} HTTP/1.1", "Host: here", "Content-Type: application/json", sized, *more, "", ""]
    return "\r\n".join(lines).encode()


def answer_to(connection: socket.socket) -> tuple[int, bytes]:
    """Status, and all that comes until the server closes or has said it all."""
    said = b""
    while b"\r\n\r\n" not in said:
        piece = connection.recv(65536)
        if not piece:
            return 0, said
        said += piece
    top, _, body = said.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in top.lower().split(b"\r\n") if line.startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(65536)
    return int(top.split()[1]), body


def is_closed(connection: socket.socket, within: float) -> bool:
    connection.settimeout(within)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_a_connection_serves_request_after_request(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 5) as connection:
        for _ in range(3):
            connection.sendall(head() + BODY)
            status, body = answer_to(connection)
            assert status == 200
            assert json.loads(body)["items"]
        time.sleep(1.5 * PATIENCE)  # between requests there is no hurry
        connection.sendall(head() + BODY)
        assert answer_to(connection)[0] == 200


@pytest.mark.parametrize("length", [41 * 1_000_000, None])
def test_who_sends_a_million_ratings_reads_why_not_although_still_sending(
    address: tuple[str, int], length: int | None
) -> None:
    began = time.monotonic()
    piece = b'{"item": "12345678", "rating": 3.5},     ' * 1000
    with socket.create_connection(address, 5) as connection:
        connection.sendall(head("/recommend", length))
        for _ in range(1000):
            connection.sendall(piece if length else b"%x\r\n%b\r\n" % (len(piece), piece))
        status, body = answer_to(connection)
        assert status == 413
        assert b"10,000 ratings" in body
        assert is_closed(connection, 5)
    assert time.monotonic() - began < 5


def test_who_asks_before_sending_too_much_need_not_send_it(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 5) as connection:
        connection.sendall(head("/recommend", 1 << 30, "Expect: 100-continue"))
        assert answer_to(connection)[0] == 413
        assert is_closed(connection, 1)


def test_a_body_that_trickles_is_answered_408(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 5) as connection:
        connection.sendall(head())
        began = time.monotonic()
        connection.settimeout(0.05)
        for byte in BODY:
            connection.sendall(bytes([byte]))
            try:
                first = connection.recv(12)
                break
            except TimeoutError:
                continue
        assert first == b"HTTP/1.1 408"
        assert time.monotonic() - began < 3 * PATIENCE


def test_a_head_that_trickles_or_never_comes_is_not_waited_for(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 5) as silent, socket.create_connection(address, 5) as slow:
        slow.sendall(head()[:30])
        assert answer_to(slow)[0] == 408
        assert is_closed(slow, 1)
        assert is_closed(silent, 1)


def test_a_body_that_nobody_reads_does_not_keep_a_connection(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 5) as connection:
        connection.sendall(head("/nowhere", 1000))
        assert answer_to(connection)[0] == 404
        connection.sendall(b"x")
        assert is_closed(connection, 5 * PATIENCE)


def test_who_goes_away_half_way_disturbs_nobody(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 5) as connection:
        connection.sendall(head() + BODY[:10])
    with socket.create_connection(address, 5) as connection:
        connection.sendall(head() + BODY)
        assert answer_to(connection)[0] == 200


def test_what_is_no_http_is_a_bad_request(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 5) as connection:
        connection.sendall(b"what are my ratings\r\n\r\n")
        assert refused(connection) == 400


@pytest.mark.parametrize("path", ["/recommend", "/nowhere"])
def test_a_body_that_is_none_ends_the_connection_and_is_no_mistake_of_ours(
    address: tuple[str, int], told: list[str], path: str
) -> None:
    with socket.create_connection(address, 5) as connection:
        connection.sendall(head(path, None) + b"no length\r\n")
        assert refused(connection) == 400
    assert not any("mistake" in line for line in told)


def test_one_too_many_is_told_to_come_again(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_connection(address, 5) as before:
        before.sendall(head() + BODY)
        assert answer_to(before)[0] == 200
        monkeypatch.setattr(module, "MOST_CONNECTIONS", 0)
        with socket.create_connection(address, 5) as connection:
            connection.sendall(head() + BODY)
            assert refused(connection, b"retry-after: 1") == 503
        before.sendall(head() + BODY)
        assert answer_to(before)[0] == 200


def refused(connection: socket.socket, header: bytes = b"connection: close") -> int:
    """The status, after looking whether the server says it as the application would, and closes."""
    said = b""
    while piece := connection.recv(65536):
        said += piece
    top, _, body = said.partition(b"\r\n\r\n")
    assert header in top.lower()
    assert b"nosniff" in top
    status = json.loads(body)["error"]["status"]
    assert int(top.split()[1]) == status
    return int(status)


def test_who_takes_nothing_of_the_answers_is_cut_off(address: tuple[str, int], large: Champion) -> None:
    with socket.create_connection(address, 5) as connection:
        connection.sendall(TAKE * N_TAKEN)
        time.sleep(3 * PATIENCE)
        assert n_taken(connection, pause=0) < N_TAKEN * (large.folder / RELEASE_FILE).stat().st_size


def test_who_takes_little_at_a_time_gets_it_all() -> None:
    """Where the answers go over a line on which a piece takes longer than anybody waits for nothing."""
    transport, loop = Mock(), Mock()
    protocol = module.PatientProtocol(uvicorn.Config(Mock()), ServerState(), {}, loop)
    transport.get_extra_info.return_value = None
    protocol.connection_made(transport)
    left = [10 * module.LEAST_TAKEN]
    transport.get_write_buffer_size.side_effect = lambda: left[0]
    protocol.pause_writing()
    for _ in range(9):
        left[0] -= module.LEAST_TAKEN
        wait, look, *arguments = loop.call_later.call_args.args
        assert wait == module.TAKE_SECONDS
        look(*arguments)
    transport.abort.assert_not_called()
    _, look, *arguments = loop.call_later.call_args.args
    left[0] -= module.LEAST_TAKEN - 1
    look(*arguments)
    transport.abort.assert_called_once()


def test_who_takes_them_gets_them_all(address: tuple[str, int], large: Champion) -> None:
    with socket.create_connection(address, 5) as connection:
        connection.sendall(TAKE * 9 + TAKE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert n_taken(connection, pause=PATIENCE / 20) > 10 * (large.folder / RELEASE_FILE).stat().st_size


def n_taken(connection: socket.socket, pause: float) -> int:
    """How many bytes come until the connection ends, of which a million are read at a time."""
    n_bytes = 0
    with suppress(ConnectionResetError):
        while piece := connection.recv(1_000_000, socket.MSG_WAITALL):
            n_bytes += len(piece)
            time.sleep(pause)
    return n_bytes


def test_no_header_says_what_serves(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 5) as connection:
        connection.sendall(head() + BODY)
        assert b"\r\nserver:" not in connection.recv(65536).lower()


def test_a_port_that_is_taken_is_an_error(address: tuple[str, int]) -> None:
    with pytest.raises(OSError, match="in use"):
        listening_socket(*address)


def test_the_cache_is_not_written_to(tmp_path: Path) -> None:
    one = champion(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in one.folder.iterdir()}
    service(one)
    assert {path: path.stat().st_mtime_ns for path in one.folder.iterdir()} == before
