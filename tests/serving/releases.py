"""A made-up release as the watcher would have left it on the disk, and a client of a service that serves it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from models.release import ARRAYS_FILE, RELEASE_FILE, ItemFactors, Release
from serving.app import make_app
from serving.service import Service
from serving.words import Champion, Word

GUARANTEE = {"sentence": "Nearly as likely with or without you.", "verdict": "proven", "conditions": ["none"]}
CONDITION = "that this version was chosen may depend on internal figures"


def release(seed: int = 0, n_items: int = 40) -> Release:
    rng = np.random.default_rng(seed)
    factors = ItemFactors(
        rng.normal(size=(n_items, 3)).astype(np.float32),
        rng.uniform(2, 4, n_items).astype(np.float32),
        np.ones(3),
        0.1,
    )
    items = tuple(str(item) for item in range(n_items))
    about = {"recommender": "made-up", "guarantee": GUARANTEE}
    return Release(factors, items, tuple(f"Film « {item} »" for item in items), 1.0, 5.0, 1.0, about)


def champion(folder: Path, version: str = "1", made: Release | None = None) -> Champion:
    """The release in a folder of `folder`, and the word for it."""
    place = folder / f"{version}-made-up"
    place.mkdir()
    (made or release(int(version))).save(place)
    digests = {name: hashlib.sha256((place / name).read_bytes()).hexdigest() for name in (ARRAYS_FILE, RELEASE_FILE)}
    return Champion(
        name="films.serving",
        version=version,
        folder=place,
        sha256=digests,
        tags={"promotion.condition": CONDITION},
    )


def service(*champions: Champion, **more: Any) -> Service:
    """One that has heard of these champions, in order; `said` and `stopped` note what it did."""
    made = Service(tell=more.get("tell", lambda line: None), stop=more.get("stop", lambda: None))
    for one in champions:
        made.hear(Word(champion=one, in_touch=True))
    return made


class Client:
    """Asks the application in this process."""

    def __init__(self, asked: Service, origins: Iterable[str] = ()) -> None:
        self._app = make_app(asked, list(origins))

    def request(self, method: str, path: str, *, content: Any = None, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with self._open() as client:
                return await client.request(method, path, content=_sent(content), **more)

        return asyncio.run(ask())

    def post_together(self, path: str, *bodies: Any) -> list[httpx.Response]:
        """The answers to requests of which the later do not wait for the earlier."""

        async def ask() -> list[httpx.Response]:
            async with self._open() as client:
                return await asyncio.gather(*(client.post(path, json=body) for body in bodies))

        return asyncio.run(ask())

    def _open(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)  # type: ignore[arg-type]
        return httpx.AsyncClient(transport=transport, base_url="http://here")

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.request("POST", path, **more)


def _sent(content: Any) -> Any:
    """Bytes as they are; pieces one after another, so that nobody can say how long the whole is."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in content:
            yield piece

    return content if content is None or isinstance(content, bytes) else pieces()
