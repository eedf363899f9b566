"""The web server: uvicorn with patience that ends, and signals that let requests in flight be finished."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from serving.gate import SECURITY, refusal

HEADER_SECONDS, IDLE_SECONDS, FINISH_SECONDS = 10.0, 75, 15
TAKE_SECONDS, LEAST_TAKEN = 10.0, 1 << 14
MOST_CONNECTIONS = 1000
LAST = {**SECURITY, "Connection": "close"}
FULL = refusal(503, "too many are connected. Try again in a moment.", {**LAST, "Retry-After": "1"})


class PatientProtocol(H11Protocol):
    """Ends a connection that has not sent the whole head of a request for HEADER_SECONDS, and one that has taken less
    than LEAST_TAKEN bytes of its answers in TAKE_SECONDS: uvicorn waits for ever. What it says itself is said as Jali
    says it.
    """

    _patience: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # writing is paused while anything waits for the client
        if len(self.connections) > MOST_CONNECTIONS:
            self.app = FULL
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._patience is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_less_than(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True  # what else is said would come after the end
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(400, "this is no HTTP request that can be read.")
        self.transport.close()

    def _wait(self) -> None:
        self._patience = self.loop.call_later(HEADER_SECONDS, self._end)

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _end(self) -> None:
        self._patience = None
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, f"the head of the request took more than {HEADER_SECONDS:g} seconds to arrive.")
        self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        answer = refusal(status, message, LAST)
        head = h11.Response(status_code=status, headers=answer.raw_headers, reason=STATUS_PHRASES[status])
        for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _expect_less_than(self, n_bytes: int) -> None:
        """End unless in TAKE_SECONDS so much less than now is left; a client that only closes its eyes holds memory."""
        self._taking = self.loop.call_later(TAKE_SECONDS, self._look, n_bytes - LEAST_TAKEN)

    def _look(self, most: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left > max(most, 0):
            self.transport.abort()
        else:
            self._expect_less_than(left)


class Server(uvicorn.Server):
    """Ends quietly: what asked it to end is done with when the last request is answered."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def make_server(app: ASGIApp) -> Server:
    """A server of the application; `run` with a socket that listens."""
    return Server(
        uvicorn.Config(
            app,
            http=PatientProtocol,
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=FINISH_SECONDS,
        )
    )
