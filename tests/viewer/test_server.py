"""The server: this page, to those who have its address, and nothing else."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import webbrowser
from collections.abc import Iterator

import pytest

from ingot.viewer.server import ADDRESS, PageServer, files_of
from ingot.viewer.view_data import ViewData


@pytest.fixture
def server(plain_assets: None) -> Iterator[PageServer]:
    view = ViewData("</title>net", "m:f", "factory")
    view.notes.append("x" * 20_000)
    with PageServer(files_of(view.to_json())) as made:
        made.start()
        yield made


def _ask(
    server: PageServer, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(ADDRESS, server.port, timeout=10)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_the_page_and_its_files(server: PageServer) -> None:
    root = f"/{server.token}/"
    assert server.url == f"http://127.0.0.1:{server.port}{root}"
    for name, kind in (("", "text/html"), ("app.js", "text/javascript"), ("app.css", "text/css")):
        answer, body = _ask(server, root + name)
        assert answer.status == 200 and str(answer.getheader("Content-Type")).startswith(kind) and body
    answer, body = _ask(server, root + "view.json")
    assert json.loads(body)["title"] == "</title>net" and answer.getheader("Content-Type") == "application/json"
    answer, body = _ask(server, root + "view.json", headers={"Accept-Encoding": "br, gzip"})
    assert answer.getheader("Content-Encoding") == "gzip"
    assert json.loads(gzip.decompress(body))["title"] == "</title>net"
    answer, body = _ask(server, f"{root}?theme=dark", "HEAD")
    assert answer.status == 200 and body == b"" and int(str(answer.getheader("Content-Length"))) > 0


def test_every_answer_carries_the_policy(server: PageServer) -> None:
    for path in (f"/{server.token}/", "/", f"/{server.token}/nothing"):
        answer, _ = _ask(server, path)
        policy = str(answer.getheader("Content-Security-Policy"))
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe-eval" not in policy
        assert "frame-ancestors 'none'" in policy and "http" not in policy
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Cache-Control") == "no-store"
        assert answer.getheader("Referrer-Policy") == "no-referrer"
        assert answer.getheader("Access-Control-Allow-Origin") is None


@pytest.mark.parametrize("path", ["/", "", "/view.json", "/wrong/view.json", "//", "/x/y/z", "/%2e%2e/", "*"])
def test_requests_without_the_token_are_refused(server: PageServer, path: str) -> None:
    answer, body = _ask(server, path or "/")
    assert answer.status == 403
    assert server.token.encode() not in body and b"net" not in body


def test_a_prefix_of_the_token_is_not_enough(server: PageServer) -> None:
    for token in (server.token[:-1], server.token + "a", server.token.swapcase(), "é" * 8):
        answer, _ = _ask(server, f"/{token.encode().hex() if token.startswith('é') else token}/view.json")
        assert answer.status == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost", "127.0.0.1:1", ""])
def test_other_hosts_are_refused(server: PageServer, host: str) -> None:
    answer, body = _ask(server, f"/{server.token}/view.json", headers={"Host": host})
    assert answer.status == 403 and b"host" in body


def test_the_names_of_this_machine_are_accepted(server: PageServer) -> None:
    for host in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
        headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        assert _ask(server, f"/{server.token}/view.json", headers=headers)[0].status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "file://"])
def test_other_origins_are_refused(server: PageServer, origin: str) -> None:
    answer, body = _ask(server, f"/{server.token}/view.json", headers={"Origin": origin})
    assert answer.status == 403 and b"origin" in body


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_are_refused(server: PageServer, site: str) -> None:
    assert _ask(server, f"/{server.token}/view.json", headers={"Sec-Fetch-Site": site})[0].status == 403
    framed = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    assert _ask(server, f"/{server.token}/", headers=framed)[0].status == 403


def test_a_link_in_a_terminal_of_a_browser_is_followed(server: PageServer) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert _ask(server, f"/{server.token}/", headers=headers)[0].status == 200
    assert _ask(server, "/", headers=headers)[0].status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(server: PageServer, method: str) -> None:
    answer, _ = _ask(server, f"/{server.token}/view.json", method)
    assert answer.status == 405 and answer.getheader("Allow") == "GET, HEAD"


@pytest.mark.parametrize(
    "name",
    ["nothing", "../view.json", "..%2f..%2fetc/passwd", "/etc/passwd", "view.json/", "app.js%00", "assets/app.js"],
)
def test_there_are_no_other_files(server: PageServer, name: str) -> None:
    answer, body = _ask(server, f"/{server.token}/{name}")
    assert answer.status == 404 and b"no such file" in body and name.encode() not in body


def test_the_address_on_the_browsers_command_line_works_once(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Window:
        def open(self, address: str) -> bool:
            opened.append(address)
            return True

    monkeypatch.setattr("webbrowser.get", Window)
    assert server.open() and server.open()
    for address in opened:
        assert server.token not in address
        path = address.removeprefix(f"http://127.0.0.1:{server.port}")
        refused, _ = _ask(server, path, headers={"Host": "evil.example"})
        assert refused.status == 403
        answer, body = _ask(server, path)
        assert (answer.status, answer.getheader("Location")) == (303, f"/{server.token}/") and b"net" not in body
        assert _ask(server, path)[0].status == 403
    assert len(set(opened)) == 2


def test_a_browser_of_the_terminal_is_not_started(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise webbrowser.Error("there is none")

    monkeypatch.setattr("webbrowser.get", lambda: webbrowser.GenericBrowser("lynx"))
    assert not server.open()
    monkeypatch.setattr("webbrowser.get", refuse)
    assert not server.open()


def test_two_hosts_and_old_requests_are_refused(server: PageServer) -> None:
    own = f"127.0.0.1:{server.port}"
    for request in (
        f"GET /{server.token}/ HTTP/1.1\r\nHost: {own}\r\nHost: evil.example\r\n\r\n",
        f"GET http://evil.example/{server.token}/ HTTP/1.1\r\nHost: {own}\r\n\r\n",
        f"GET /{server.token}/ HTTP/1.0\r\n\r\n",
    ):
        assert b"403" in _send(server, request).split(b"\r\n")[0]
    assert b"net" not in _send(server, f"GET /{server.token}/\r\n")
    refused = _send(server, "<script>alert(1)</script> / HTTP/1.1\r\n\r\n")
    assert b"<script" not in refused


def _send(server: PageServer, request: str) -> bytes:
    with socket.create_connection((ADDRESS, server.port), timeout=10) as connection:
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_only_this_machine_can_connect(server: PageServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"


def test_tokens_differ_and_nothing_is_logged(plain_assets: None, capfd: pytest.CaptureFixture[str]) -> None:
    files = files_of(ViewData("net", "", "program").to_json())
    with PageServer(files) as one, PageServer(files) as other:
        assert one.token != other.token and len(one.token) >= 32
        one.start()
        _ask(one, f"/{one.token}/")
        _ask(one, "/")
    output = capfd.readouterr()
    assert one.token not in output.out + output.err


def test_a_closed_server_is_gone(plain_assets: None) -> None:
    server = PageServer(files_of(ViewData("net", "", "program").to_json()))
    server.start()
    port = server.port
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((ADDRESS, port), timeout=5)
