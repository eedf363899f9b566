"""What every request passes: limits of size and time, security headers, a last resort for mistakes, and counting.

Nothing of a request is kept, logged or shown. A path that is not ours is counted as `other`, because somebody may
write a rating into it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Mapping
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.service import Service

MOST_BYTES = 1 << 20
BODY_SECONDS = 10.0
LINGER_SECONDS, LINGER_BYTES = 2.0, 64 << 20
"""How much of what a refused client goes on sending is read and thrown away: who is cut off sees no answer."""

QUESTIONS = frozenset({"/recommend", "/predict"})

SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

MISTAKE = "something failed that should not; nothing of the request was kept."


class Turned(Exception):
    """A request that goes no further."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


class Gone(Exception):
    """The client went away before it had said everything."""


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The uniform body of everything that is no answer."""
    return JSONResponse({"error": {"status": status, "message": message}}, status, headers)


class Gate:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn, which has the scope as it was, sends no body
        began = perf_counter()
        status = "gone"

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._pass(scope, receive, sent)
        except Gone:
            pass
        except Exception as error:  # a text of whatever failed may quote the request
            self._tell(error)
            if status == "gone":
                await refusal(500, MISTAKE)(scope, receive, sent)
        finally:
            self._service.metrics.answered(_counted_as(scope), status, perf_counter() - began)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _require_no_query(scope)
            if scope["method"] == "POST" and scope["path"] in QUESTIONS:
                body = await _body(Headers(scope=scope), receive)
                receive = _said(body, receive)
            await self._app(scope, receive, send)
        except Turned as turned:
            await _turn_away(turned, scope, receive, send)

    def _tell(self, error: Exception) -> None:
        if os.environ.get("JALI_DEBUG"):
            traceback.print_exc(file=sys.stderr)
        self._service.tell(f"jali: a request failed ({type(error).__name__}); this is a mistake of Jali's.")


def _counted_as(scope: Scope) -> str:
    if scope["path"] in QUESTIONS:
        return str(scope["path"])
    return getattr(scope.get("route"), "path", "other")


def _require_no_query(scope: Scope) -> None:
    if scope["query_string"]:
        raise Turned(400, "nothing is asked in the address, because addresses are logged; POST a JSON body instead.")


async def _body(headers: Headers, receive: Receive) -> bytes:
    """The whole body.

    Raises:
      Turned: it is no JSON, too large, or too slow.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Turned(415, "send the request as application/json.")
    announced = headers.get("content-length", "0")
    if len(announced) > 15 or int(announced) > MOST_BYTES:  # h11 let only digits through
        raise _too_large()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(receive)
    except TimeoutError:
        raise Turned(408, f"the request took more than {BODY_SECONDS:g} seconds to arrive. Send it again.") from None


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        body += message.get("body", b"")
        if len(body) > MOST_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(body)


def _too_large() -> Turned:
    return Turned(413, f"a request has at most {MOST_BYTES:,} bytes, and 10,000 ratings. Send fewer.")


def _said(body: bytes, receive: Receive) -> Receive:
    """What the application reads: the body in one piece, and then whatever comes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def said() -> Message:
        return messages.pop() if messages else await receive()

    return said


async def _turn_away(turned: Turned, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once and close; meanwhile read on for a while, because who is cut off while sending sees no answer."""
    response = refusal(turned.status, turned.message, {**(turned.headers or {}), "Connection": "close"})
    await send({"type": "http.response.start", "status": turned.status, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    if scope["method"] == "POST" and "expect" not in Headers(scope=scope):
        await _read_on(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _read_on(receive: Receive) -> None:
    n_bytes = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            more = True
            while more and n_bytes < LINGER_BYTES:
                message = await receive()
                n_bytes += len(message.get("body", b""))
                more = message["type"] == "http.request" and message.get("more_body", False)
    except TimeoutError:
        return
