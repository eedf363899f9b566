"""The paths of the web service. A request is answered from the one release that it found; nothing of it is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

import models.release
from models.release import ReleaseError
from serving.gate import MISTAKE, Gate, Turned, refusal
from serving.page import PAGE, PAGE_POLICY
from serving.questions import Answer, Refusal, ToPredict, ToRecommend, sentence_about
from serving.service import Served, Service

FEW = 500
"""Own ratings and items to predict in a request that others can wait for: some milliseconds."""
PIECE_BYTES = 1 << 17
UNKNOWN = "these are the predictions for somebody of whom nothing is known, what most people like."
NOBODY = f"No ratings were given: {UNKNOWN}"
STRANGER = f"None of the rated items is in the catalogue: {UNKNOWN}"
SENTENCES = {
    400: "the request cannot be read. Send a JSON object in UTF-8.",
    404: "there is nothing at this address; /docs says what there is.",
    405: "this address is asked in another way: POST to /recommend and /predict, GET elsewhere; /docs says how.",
}


def make_app(service: Service, origins: Sequence[str] = ()) -> ASGIApp:
    """The application, behind its gate.

    Args:
      origins: web sites whose pages may ask; none by default.
    """
    app = FastAPI(
        title="Jali",
        summary="Recommendations from a release under differential privacy. Nothing of a request is kept.",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"model": Refusal}},
    )
    _add_errors(app)
    _add_questions(app, service)
    _add_release(app, service)
    _add_state(app, service)
    gate: ASGIApp = Gate(app, service)
    if origins:
        gate = CORSMiddleware(
            gate, list(origins), allow_methods=["GET", "POST"], allow_headers=["Content-Type"],
            expose_headers=["ETag", "Jali-Version"],
        )  # fmt: skip
    return gate


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Turned)
    async def turned(request: Request, error: Turned) -> Response:
        return refusal(error.status, error.message, error.headers)

    @app.exception_handler(Exception)
    async def mistake(request: Request, error: Exception) -> Response:
        return refusal(500, MISTAKE)  # and Starlette raises it again, for the gate to tell

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return refusal(*sentence_about(error.errors()))

    @app.exception_handler(ReleaseError)
    async def unanswerable(request: Request, error: ReleaseError) -> Response:
        return refusal(422, str(error))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        return refusal(error.status_code, SENTENCES.get(error.status_code, "refused."), error.headers)


def _add_questions(app: FastAPI, service: Service) -> None:
    aside = ThreadPoolExecutor(1, "large")

    async def answered(ratings: Sequence[Any], **what: Any) -> Response:
        """At once, or where that takes long beside the others, one such request after another."""
        served = _served(service)

        def answer() -> Response:
            return _answer(served, ratings, served.release.answer(ratings, **what))

        if len(ratings) + len(what.get("items", ())) <= FEW:
            return answer()
        return await asyncio.get_running_loop().run_in_executor(aside, answer)

    @app.post("/recommend", response_model=Answer)
    async def recommend(asked: ToRecommend) -> Response:
        """The items with the highest predicted rating among those not rated yet."""
        return await answered(asked.ratings, n=asked.n)

    @app.post("/predict", response_model=Answer)
    async def predict(asked: ToPredict) -> Response:
        """The predicted ratings of the items asked for."""
        return await answered(asked.ratings, items=asked.items)


def _served(service: Service) -> Served:
    """What is served now; to be asked for once in a request."""
    if service.served is None:
        raise Turned(503, "no release is loaded yet. Try again in a moment.", {"Retry-After": "1"})
    return service.served


def _answer(served: Served, ratings: Sequence[Any], answer: models.release.Answer) -> Response:
    note = None
    if answer.ignored == len(ratings):
        note = STRANGER if ratings else NOBODY
    items = [{"item": item, "title": title, "rating": rating} for item, title, rating in answer.items]
    pieces = [_text(items[at : at + FEW])[1:-1] for at in range(0, len(items), FEW)]  # nobody can interrupt json
    rest = _text({"ignored": answer.ignored, "unknown": answer.unknown, "note": note, "model": served.model})
    return _sent(f'{{"items":[{",".join(pieces)}],{rest[1:]}', headers={"Jali-Version": served.champion.version})


_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _json(content: object, status: int = 200) -> Response:
    return _sent(_text(content), status)


def _sent(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text.encode(errors="backslashreplace"), status, headers, "application/json")


def _add_release(app: FastAPI, service: Service) -> None:
    @app.get("/release/items.safetensors", response_class=Response)
    async def items(request: Request) -> Response:
        """V, the offsets, and the noisy statistics behind them, where there are such."""
        return _file(_served(service), request, models.release.ARRAYS_FILE, "application/octet-stream")

    @app.get("/release/release.json", response_class=Response)
    async def release(request: Request) -> Response:
        """Catalogue, scale, fold-in weights and guarantee. Belongs to the items of the same Jali-Version."""
        return _file(_served(service), request, models.release.RELEASE_FILE, "application/json")

    @app.get("/guarantee")
    async def guarantee() -> Response:
        """What is promised to those whose ratings were learned from, and under which conditions."""
        return _json(_served(service).guarantee)


def _file(served: Served, request: Request, name: str, media_type: str) -> Response:
    file = served.files[name]
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Jali-Version": served.champion.version}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return InPieces(file.content, headers=headers, media_type=media_type)


class InPieces(Response):
    """Hands out the next piece when the last one is on its way: of a client that reads slowly no copy is kept."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(0, len(self.body), PIECE_BYTES):
            piece = self.body[at : at + PIECE_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        """The process lives."""
        return _json({"alive": True})

    @app.get("/readyz")
    async def readyz() -> Response:
        """Which release is loaded, and whether the registry answers. Without one, 503."""
        served = service.served
        return _json(
            {
                "ready": served is not None,
                "model": served.model if served else None,
                "since": served.since.isoformat(timespec="seconds") if served else None,
                "registry_in_touch": service.in_touch,
                "problem": service.problem,
            },
            200 if served else 503,
        )

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(PAGE, headers={"Content-Security-Policy": PAGE_POLICY})
