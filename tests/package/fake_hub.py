"""A Hugging Face hub on the loopback interface, as far as one model is fetched from it."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """What the server has, how it behaves, and what it was asked for."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main", COMMIT)
    status: int = 200
    """Other values: every request is answered so."""
    gated: bool = False
    cut_after: int | None = None
    """The next download of a larger file breaks off after this many bytes."""
    announce_more: int = 0
    """Added to the sizes in the list of files."""
    hang: threading.Event | None = None
    """When set, the list of files is answered only after this event."""
    url: str = ""
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    authorizations: set[str] = field(default_factory=set)

    def downloads(self) -> list[str]:
        """Names of the files whose content was sent, in order."""
        names = (re.fullmatch(r"GET /[^/]+/[^/]+/resolve/[^/]+/(.+)", request) for request in self.requests)
        return [match[1] for match in names if match]


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _send(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if not with_body:
                return
            if hub.cut_after is not None and hub.cut_after < len(body):
                self.wfile.write(body[: hub.cut_after])
                self.wfile.flush()
                hub.cut_after = None
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.wfile.write(body)

        def _fail(self, status: int, code: str) -> None:
            self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code}, with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            hub.authorizations.add(self.headers.get("Authorization", ""))
            if hub.status != 200:
                self._fail(hub.status, "Broken")
                return
            listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
            content = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            match = listing or content
            if match is None or match[1] not in hub.repositories:
                self._fail(404, "RepoNotFound")
            elif hub.gated:
                self._fail(403, "GatedRepo")
            elif (match[2] or "main") not in hub.revisions:
                self._fail(404, "RevisionNotFound")
            elif listing:
                if hub.hang is not None:
                    hub.hang.wait(30)
                self._list(match[1])
            else:
                self._file(hub.repositories[match[1]], match[3], with_body=with_body)

        def _list(self, repo: str) -> None:
            files = hub.repositories[repo]
            siblings = [
                {"rfilename": name, "size": len(body) + hub.announce_more, "blobId": hashlib.sha1(body).hexdigest()}
                for name, body in files.items()
            ]
            answer = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
            body = json.dumps(answer).encode()
            self._send(200, body, {"Content-Type": "application/json"}, with_body=True)

        def _file(self, files: dict[str, bytes], name: str, *, with_body: bool) -> None:
            if name not in files:
                self._fail(404, "EntryNotFound")
                return
            body = files[name]
            headers = {
                "ETag": f'"{hashlib.sha1(body).hexdigest()}"',
                "X-Repo-Commit": COMMIT,
                "Accept-Ranges": "bytes",
                "Content-Type": "application/octet-stream",
            }
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            status = 200
            if wanted:
                hub.ranges.append(self.headers["Range"])
                status, start = 206, int(wanted[1])
                headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
                body = body[start:]
            self._send(status, body, headers, with_body=with_body)

    return Handler


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Runs the server; ``hub.url`` is its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
