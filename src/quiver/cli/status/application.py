"""
The WSGI application of the status page: which request gets which answer.

Reading needs no credentials, because the port is on this machine unless `insecure` allows otherwise. Three rules keep
pages of other sites from using a browser on this machine:

- The `Host` header must be an IP address, `localhost` or a configured name. A name of another site that resolves to
  this machine is refused.
- No answer permits other origins to read it, or to show it in a frame.
- A change needs a bearer token in a header. Browsers add no such header by themselves, as they do with cookies.
"""

from __future__ import annotations

import base64
import hashlib
import http
import ipaddress
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import resources
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs

from quiver.cli.status.dead_letters import Action
from quiver.errors import QuiverError, UsageError
from quiver.receivers.security import Authenticator

__all__ = ["DeadLetterSource", "StatusApplication", "is_own_host", "load_page"]

BODY_BYTES_MAX = 64 * 1024

_CHANGES = frozenset({"replay", "drop"})
_JSON = "application/json; charset=utf-8"
_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


class DeadLetterSource(Protocol):
    """The commands on dead letters."""

    def run(self, action: Action, exporter: str, bundles: Sequence[str] = ()) -> Any:
        """Run *action* and return its result as plain values."""


class _Answer(NamedTuple):
    status: http.HTTPStatus
    content: Any
    headers: tuple[tuple[str, str], ...] = ()


def load_page() -> tuple[bytes, str]:
    """Return the page, and the content security policy that allows its own style and script, and nothing else."""
    text = resources.files("quiver.cli.status").joinpath("page.html").read_text(encoding="utf-8")
    allowed = {"style": "", "script": ""}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        allowed[kind] += f" 'sha256-{digest}'"
    policy = (
        f"default-src 'none'; style-src{allowed['style']}; script-src{allowed['script']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Return whether the value of a `Host` header is an IP address, `localhost`, or one of *names*, with any port."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() in {"localhost", *(one.lower() for one in names)}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class StatusApplication:
    """
    Answers the requests of the page.

    ====================== ====================================================================================
    request                answer
    ====================== ====================================================================================
    GET `/`                the page
    GET `/api/status`      the status, as JSON
    GET `/api/dead-letters` those of the exporter `exporter`; with `bundle`, the content of this one
    POST `/api/dead-letters` `{"action": "replay" or "drop", "exporter": …, "bundles": […]}`; needs a token
    ====================== ====================================================================================

    Args:
        read: returns the status.
        dead_letters: the commands on dead letters; None where there are none.
        authenticator: accepts the tokens; None: the page is read-only.
        hosts: names of this machine.
    """

    def __init__(
        self,
        read: Callable[[], Any],
        *,
        dead_letters: DeadLetterSource | None = None,
        authenticator: Authenticator | None = None,
        hosts: Collection[str] = (),
    ) -> None:
        self._read = read
        self._dead_letters = dead_letters
        self._authenticator = authenticator
        self._hosts = hosts
        self._page, policy = load_page()
        self._headers = [
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", policy),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ]

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        host, path, method = environ.get("HTTP_HOST", ""), environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if not is_own_host(host, self._hosts):
            reason = "this page does not answer under that host name; use localhost, or add the name to status.hosts"
            answer = _refused(http.HTTPStatus.MISDIRECTED_REQUEST, reason)
        elif path == "/" and method in {"GET", "HEAD"}:
            return self._send(start_response, http.HTTPStatus.OK, self._page, "text/html; charset=utf-8")
        else:
            try:
                answer = self._answer(path, method, environ)
            except UsageError as error:
                answer = _refused(http.HTTPStatus.BAD_REQUEST, str(error))
            except (QuiverError, OSError) as error:
                answer = _refused(http.HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        body = json.dumps(answer.content, default=str).encode()
        return self._send(start_response, answer.status, body, _JSON, answer.headers)

    def _send(
        self,
        start_response: Callable[..., Any],
        status: http.HTTPStatus,
        body: bytes,
        content_type: str,
        headers: Iterable[tuple[str, str]] = (),
    ) -> list[bytes]:
        length = ("Content-Length", str(len(body)))
        start_response(
            f"{status.value} {status.phrase}", [("Content-Type", content_type), length, *self._headers, *headers]
        )
        return [body]

    def _answer(self, path: str, method: str, environ: dict[str, Any]) -> _Answer:
        allowed = {"/api/status": {"GET", "HEAD"}, "/api/dead-letters": {"GET", "HEAD", "POST"}}.get(path, {"GET"})
        if method not in allowed:
            allow = ("Allow", ", ".join(sorted(allowed)))
            return _refused(http.HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not supported here", allow)
        if path == "/api/status":
            return _Answer(http.HTTPStatus.OK, self._read())
        if path == "/api/dead-letters" and self._dead_letters is not None:
            respond = self._change if method == "POST" else self._list
            return respond(environ, self._dead_letters)
        return _refused(http.HTTPStatus.NOT_FOUND, "not found; there are /, /api/status and /api/dead-letters")

    def _list(self, environ: dict[str, Any], source: DeadLetterSource) -> _Answer:
        given = parse_qs(environ.get("QUERY_STRING", ""))
        exporters, bundles = given.get("exporter", []), given.get("bundle", [])
        if len(exporters) != 1 or len(bundles) > 1:
            raise UsageError("name one exporter, and at most one bundle")
        return _Answer(http.HTTPStatus.OK, source.run("show" if bundles else "list", exporters[0], bundles))

    def _change(self, environ: dict[str, Any], source: DeadLetterSource) -> _Answer:
        if self._authenticator is None:
            reason = "this page is read-only: set status.auth in the pipeline file, or --token-file"
            return _refused(http.HTTPStatus.FORBIDDEN, reason)
        given = environ.get("HTTP_AUTHORIZATION")
        if not self._authenticator.check([] if given is None else [given]):
            challenge = ("WWW-Authenticate", self._authenticator.challenge)
            return _refused(http.HTTPStatus.UNAUTHORIZED, "this needs a valid token", challenge)
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and origin.partition("://")[2] != environ.get("HTTP_HOST"):
            return _refused(http.HTTPStatus.FORBIDDEN, "requests of other origins are refused")
        request = _request(environ)
        action, exporter, bundles = (request.get(key) for key in ("action", "exporter", "bundles"))
        is_list = isinstance(bundles, list) and all(isinstance(one, str) for one in bundles)
        if action not in _CHANGES or not isinstance(exporter, str) or not is_list or not bundles:
            raise UsageError('send {"action": "replay" or "drop", "exporter": its name, "bundles": ["12:3"]}')
        return _Answer(http.HTTPStatus.OK, source.run(action, exporter, bundles))


def _refused(status: http.HTTPStatus, reason: str, *headers: tuple[str, str]) -> _Answer:
    return _Answer(status, {"error": reason}, headers)


def _request(environ: dict[str, Any]) -> dict[str, Any]:
    """
    Return the JSON object in the body of a request.

    Raises:
        UsageError: the body is too long, or it is not a JSON object of that content type.
    """
    if environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() != "application/json":
        raise UsageError("send application/json")
    length = environ.get("CONTENT_LENGTH") or ""
    if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
        raise UsageError(f"send at most {BODY_BYTES_MAX} bytes, with their Content-Length")
    try:
        request = json.loads(environ["wsgi.input"].read(int(length)))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise UsageError("send a JSON object")
    return request
