"""Serves a few files of one page on the loopback address, to this user's browser alone.

The address holds a random token: a page of another site, or another user of this machine, does not know it. A request
under another host name, as a rebound DNS name would send, or from the scripts of another site is refused even with it.
What a browser is started with can be read by other users: it gets an address that works once and leads to the page.
"""

from __future__ import annotations

import gzip
import hmac
import secrets
import threading
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from ingot.viewer.page import SCRIPT, STYLE, encode_json, read_asset, served_page, served_policy
from ingot.viewer.view_data import Json
from ingot.viewer.weights.tensor_pool import TensorPool
from ingot.viewer.weights.weight_files import Answer, answer_weights

ADDRESS = "127.0.0.1"
# A request that is not complete after this many seconds is dropped.
_PATIENCE = 30
_COMPRESSED = 10_000


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file as it is sent. `packed` is it compressed, where that is worth it."""

    type: str
    data: bytes = field(repr=False)
    packed: bytes | None = field(default=None, repr=False)


def files_of(data: Json) -> dict[str, ServedFile]:
    """The files of a view's page."""
    text = encode_json(data).encode()
    return {
        "": ServedFile("text/html; charset=utf-8", served_page(data["title"]).encode()),
        SCRIPT: ServedFile("text/javascript; charset=utf-8", read_asset(SCRIPT).encode()),
        STYLE: ServedFile("text/css; charset=utf-8", read_asset(STYLE).encode()),
        "view.json": ServedFile(
            "application/json", text, gzip.compress(text, 5, mtime=0) if len(text) > _COMPRESSED else None
        ),
    }


class PageServer:
    """Serves files until it is closed. `url` is the page's address, with the token."""

    def __init__(self, served: Mapping[str, ServedFile], port: int = 0, weights: TensorPool | None = None) -> None:
        """`weights` are sent where the page asks for them. Raises OSError where the port is taken."""
        self.token = secrets.token_urlsafe(24)
        self._server = _LoopbackServer(served, self.token, port, weights)
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/{self.token}/"

    def open(self) -> bool:
        """Opens the page in the browser; False where there is none, or only one that would take over the terminal."""
        try:
            browser = webbrowser.get()
        except webbrowser.Error:
            return False
        if type(browser) is webbrowser.GenericBrowser:
            return False
        return browser.open(f"http://{ADDRESS}:{self.port}/{self._server.add_ticket()}/")

    def serve_forever(self) -> None:
        """Serves in this thread, until Ctrl-C."""
        self._server.serve_forever(poll_interval=0.2)

    def start(self) -> None:
        """Serves in a thread of its own, which does not keep the process alive."""
        if self._thread is None:
            self._thread = threading.Thread(target=self.serve_forever, name="ingot-view", daemon=True)
            self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _LoopbackServer(ThreadingHTTPServer):
    daemon_threads = True
    # Another process may not take the port over while this one listens.
    allow_reuse_address = False

    def __init__(self, served: Mapping[str, ServedFile], token: str, port: int, weights: TensorPool | None) -> None:
        super().__init__((ADDRESS, port), _RequestHandler)
        self.served, self.token, self.weights = served, token, weights
        self.hosts = {f"{name}:{self.server_address[1]}" for name in (ADDRESS, "localhost")}
        self._tickets: set[str] = set()

    def add_ticket(self) -> str:
        """What may stand in place of the token once."""
        ticket = secrets.token_urlsafe(24)
        self._tickets.add(ticket)
        return ticket

    def take_ticket(self, given: str) -> bool:
        """Whether this is one that was not used yet."""
        try:
            self._tickets.remove(given)  # at once: of two threads one finds it
        except KeyError:
            return False
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is not an error."""


class _RequestHandler(BaseHTTPRequestHandler):
    server: _LoopbackServer
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        refusal = self._foreign_source()
        given = self.path.partition("?")[0].lstrip("/").partition("/")[0]
        if refusal is None and self.server.take_ticket(given):
            self._refuse(HTTPStatus.SEE_OTHER, "the page is elsewhere", f"/{self.server.token}/")
            return
        if refusal is None and not hmac.compare_digest(given.encode(errors="replace"), self.server.token.encode()):
            refusal = "the address lacks the token that `ingot view` printed"
        if refusal is not None:
            self._refuse(HTTPStatus.FORBIDDEN, refusal)
            return
        name = self.path.partition("?")[0].partition("/")[2].partition("/")[2]
        if self.server.weights is not None and name.startswith("weights/"):
            self._answer_weights(self.server.weights, body)
            return
        found = self.server.served.get(name)
        if found is None or self.path.count("/") < 2:
            self._refuse(HTTPStatus.NOT_FOUND, "this view has no such file")
            return
        packs = "gzip" in self.headers.get("Accept-Encoding", "")
        data = found.packed if found.packed is not None and packs else found.data
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", found.type)
        self.send_header("Content-Length", str(len(data)))
        if data is found.packed:
            self.send_header("Content-Encoding", "gzip")
        self._send_policy()
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _answer_weights(self, weights: TensorPool, body: bool) -> None:
        """Values of a weight. The whole path counts: a question mark and what follows are not part of any."""
        found: Answer | None = None
        why = "this view has no such values"
        try:
            found = answer_weights(weights, self.path.removeprefix(f"/{self.server.token}/"))
        except (OSError, ValueError):
            why = "the file of these values cannot be read"
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, why)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", found.type)
        self.send_header("Content-Length", str(found.size))
        self._send_policy()
        self.end_headers()
        if body:
            for piece in found.pieces:
                self.wfile.write(piece)

    def _foreign_source(self) -> str | None:
        """Which of the things that a request says about its source is not of this page; None where all are."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            return "the request names another host"
        origins = self.headers.get_all("Origin", [])
        if any(origin.lower().removeprefix("http://") not in self.server.hosts for origin in origins):
            return "the request comes from another origin"
        follows_link = (
            self.headers.get("Sec-Fetch-Mode") == "navigate" and self.headers.get("Sec-Fetch-Dest") == "document"
        )
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not follows_link:
            return "the request comes from another site"
        return None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong with a request. Its message may repeat the request, and is not sent."""
        self._refuse(HTTPStatus(code), HTTPStatus(code).description)

    def _refuse(self, code: HTTPStatus, why: str, location: str | None = None) -> None:
        """Answers in plain text."""
        data = f"{code.phrase}: {why}\n".encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        if location is not None:
            self.send_header("Location", location)
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self._send_policy()
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.close_connection = True

    def _refuse_method(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "this server only shows files")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_CONNECT = do_TRACE = _refuse_method

    def _send_policy(self) -> None:
        for name, value in (
            ("Content-Security-Policy", served_policy()),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
        ):
            self.send_header(name, value)

    def version_string(self) -> str:
        return "Ingot"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a log would hold the token."""
