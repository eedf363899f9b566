"""A web server of the test's own, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Site:
    """Files by path; `asked` notes what was asked for, with the Authorization header."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    status: int = 200
    breaks_off: bool = False


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Site]:
    site = Site(files=files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append((self.path, self.headers.get("Authorization")))
            content = site.files.get(self.path.partition("?")[0])
            self.send_response(site.status if content is not None else 404)
            content = content or b""
            self.send_header("Content-Length", str(len(content) + site.breaks_off))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
