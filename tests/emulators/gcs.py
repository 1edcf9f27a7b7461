"""
An emulator of Google Cloud Storage for one test session: fake-gcs-server, with the XML API in front of it.

The client library (the Rust crate `object_store`) speaks the XML API of Google Cloud Storage. fake-gcs-server can only
be read over it; uploads, conditions and pages of listings exist in its JSON API alone. So `_XmlApi` translates the
requests of the client library to that API. Names, contents, generations and conditions are those of fake-gcs-server.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

import pyarrow.fs
import pytest

from ports import free_ports
from s3_server import BUCKET, stop, wait_for

BUILT = Path(__file__).parents[2] / "build" / "bin" / "fake-gcs-server"


@dataclass(frozen=True)
class GcsServer:
    """The address of the XML API, that of the JSON API, and a new prefix for each test."""

    endpoint: str
    json_endpoint: str
    bucket: str = BUCKET

    def options(self, **changed: str) -> dict[str, str]:
        """Return the options that open it."""
        return {"endpoint": self.endpoint, "bearer_token": "test", **changed}

    def url(self) -> str:
        """Return a folder of the bucket that no other test uses."""
        return f"gs://{self.bucket}/{secrets.token_hex(6)}"

    def files(self) -> pyarrow.fs.GcsFileSystem:
        """Return a client that is not the one under test, and uses the JSON API."""
        address = self.json_endpoint.removeprefix("http://")
        return pyarrow.fs.GcsFileSystem(anonymous=True, scheme="http", endpoint_override=address)


@contextmanager
def running_gcs(folder: Path) -> Iterator[GcsServer]:
    """Run the emulator with one bucket over *folder*."""
    binary = BUILT if BUILT.exists() else shutil.which("fake-gcs-server")
    if binary is None:
        pytest.fail("no fake-gcs-server: run make test-emulators, which builds it")
    (port,) = free_ports(1)
    json_endpoint = f"http://127.0.0.1:{port}"
    log = folder / "gcs.log"
    command = [
        str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}",
        "-backend", "memory", "-log-level", "error",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:
        wait_for(f"{json_endpoint}/_internal/healthcheck", process, log)
        made = _asked(port, "POST", "/storage/v1/b?project=test", json.dumps({"name": BUCKET}).encode())
        assert made.status == 200
        _XmlApi.json_port = port
        with ThreadingHTTPServer(("127.0.0.1", 0), _XmlApi) as front:
            threading.Thread(target=front.serve_forever, daemon=True).start()
            yield GcsServer(f"http://127.0.0.1:{front.server_address[1]}", json_endpoint)
            front.shutdown()
    finally:
        stop(process)


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """An emulator of Google Cloud Storage; `make test-emulators` builds it."""
    with running_gcs(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes
    headers: dict[str, str]


def _asked(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> _Answer:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        found: HTTPResponse = connection.getresponse()
        return _Answer(found.status, found.read(), {name.lower(): value for name, value in found.headers.items()})
    finally:
        connection.close()


class _XmlApi(BaseHTTPRequestHandler):
    """The requests that the client library sends, except for signatures."""

    protocol_version = "HTTP/1.1"
    json_port = 0
    uploads: dict[str, dict[int, bytes]] = {}  # noqa: RUF012 - shared by all requests

    def handle(self) -> None:
        """Serve a connection."""
        with contextlib.suppress(ConnectionError):  # its client was killed
            super().handle()

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> _Answer:
        return _asked(self.json_port, method, path, body, **headers)

    def _read(self) -> tuple[str, str, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        bucket, _, key = parts.path[1:].partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return unquote(bucket), unquote(key), dict(parse_qsl(parts.query, keep_blank_values=True)), body

    def _reply(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def _upload(self, bucket: str, key: str, data: bytes) -> _Answer:
        """Put an object under the condition of this request."""
        query = {"uploadType": "multipart"}  # the emulator ignores conditions of simple uploads
        generation = self.headers.get("x-goog-if-generation-match")
        if generation is not None:
            query["ifGenerationMatch"] = generation
        mark = secrets.token_hex(16)
        head = f"--{mark}\r\nContent-Type: application/json\r\n\r\n{json.dumps({'name': key})}\r\n--{mark}\r\n\r\n"
        body = b"".join((head.encode(), data, f"\r\n--{mark}--\r\n".encode()))
        path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
        found = self._ask("POST", path, body, **{"Content-Type": f"multipart/related; boundary={mark}"})
        return found if found.status != 200 else self._described(bucket, key)

    def _described(self, bucket: str, key: str) -> _Answer:
        return self._ask("HEAD", f"/{bucket}/{quote(key, safe='')}")

    def _forward(self, found: _Answer, *, has_body: bool = True) -> None:
        passed = ("etag", "x-goog-generation", "x-goog-hash", "last-modified", "content-range", "content-type")
        headers = {name: found.headers[name] for name in passed if name in found.headers}
        length = len(found.body) if has_body else int(found.headers.get("content-length", 0))
        self._reply(found.status, found.body if has_body else b"", length, **headers)

    def do_PUT(self) -> None:
        """Upload an object or a part, or copy an object."""
        bucket, key, query, body = self._read()
        source = self.headers.get("x-goog-copy-source")
        if "uploadId" in query:
            self.uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._reply(200, ETag=f'"{secrets.token_hex(8)}"')
        elif source is None:
            found = self._upload(bucket, key, body)
            self._forward(_Answer(found.status, b"", found.headers))
        else:
            # The emulator ignores conditions of a copy, so a copy is an upload.
            origin = self._ask("GET", f"/{source.lstrip('/')}")
            found = origin if origin.status != 200 else self._upload(bucket, key, origin.body)
            self._forward(_Answer(found.status, b"", found.headers))

    def do_POST(self) -> None:
        """Begin or complete an upload of parts."""
        bucket, key, query, _ = self._read()
        if "uploads" in query:
            name = secrets.token_hex(8)
            self.uploads[name] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            self._reply(200, text.encode())
            return
        parts = self.uploads.pop(query["uploadId"])
        found = self._upload(bucket, key, b"".join(parts[number] for number in sorted(parts)))
        etag = escape(found.headers["etag"])
        text = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        self._reply(found.status, text.encode(), x_goog_generation=found.headers["x-goog-generation"])

    def do_DELETE(self) -> None:
        """Remove an object, or give an upload up."""
        bucket, key, query, _ = self._read()
        if "uploadId" in query:
            self.uploads.pop(query["uploadId"], None)
            self._reply(204)
        else:
            found = self._ask("DELETE", f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}")
            self._reply(204 if found.status == 200 else found.status)

    def do_HEAD(self) -> None:
        """Describe an object."""
        bucket, key, _, _ = self._read()
        self._forward(self._described(bucket, key), has_body=False)

    def do_GET(self) -> None:
        """Return an object, a range of it, or a page of keys."""
        bucket, key, query, _ = self._read()
        if key:
            ranged = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
            self._forward(self._ask("GET", f"/{bucket}/{quote(key, safe='')}", **ranged))
        else:
            self._list(bucket, query)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        after = query.get("start-after", "")
        names = {"prefix": "prefix", "delimiter": "delimiter", "continuation-token": "pageToken"}
        wanted = {theirs: query[ours] for ours, theirs in names.items() if ours in query}
        asked = urlencode({"maxResults": 1000, "startOffset": after, **wanted})
        found = self._ask("GET", f"/storage/v1/b/{bucket}/o?{asked}")
        page = json.loads(found.body)
        contents = "".join(
            f"<Contents><Key>{escape(one['name'])}</Key><Size>{one['size']}</Size>"
            f"<LastModified>{one['updated']}</LastModified><ETag>{escape(one['etag'])}</ETag></Contents>"
            for one in page.get("items", ())
            if one["name"] > after
        )
        token = page.get("nextPageToken")
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        self._reply(found.status, f"<ListBucketResult>{contents}{more}</ListBucketResult>".encode())
