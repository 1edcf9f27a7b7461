"""The requests of the status page: who may read, who may change, and what other sites cannot do."""

import io
import json

import pytest

from quiver.cli.status.application import BODY_BYTES_MAX, StatusApplication, is_own_host, load_page
from quiver.errors import TransientError, UsageError
from quiver.observe import InMemoryObserver
from quiver.receivers.security import Authenticator, AuthSettings

TOKEN = "a-long-token"


class RecordingDeadLetters:
    """Records the commands, and raises *error* if it is set."""

    def __init__(self):
        self.ran = []
        self.error = None

    def run(self, action, exporter, bundles=()):
        if self.error is not None:
            raise self.error
        self.ran.append((action, exporter, list(bundles)))
        return [{"bundle": "1:2"}]


@pytest.fixture
def dead_letters():
    return RecordingDeadLetters()


@pytest.fixture
def ask(dead_letters):
    """Return a function that sends a request to a page that takes the token, and returns status, headers and body."""
    authenticator = Authenticator(AuthSettings(tokens=(TOKEN,)), InMemoryObserver())
    changeable = StatusApplication(
        lambda: {"fine": True}, dead_letters=dead_letters, authenticator=authenticator, hosts=["node.internal"]
    )
    read_only = StatusApplication(lambda: {"fine": True}, dead_letters=dead_letters)

    def send(path, body=None, *, method=None, is_read_only=False, **environ):
        path, _, query = path.partition("?")
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {
            "REQUEST_METHOD": method or ("GET" if body is None else "POST"),
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "HTTP_HOST": "127.0.0.1:4321",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(data)),
            "wsgi.input": io.BytesIO(data),
        }
        answered = []
        application = read_only if is_read_only else changeable
        (content,) = application(given | environ, lambda status, headers: answered.append((status, dict(headers))))
        status, headers = answered[0]
        assert int(headers["Content-Length"]) == len(content)
        return int(status.split()[0]), headers, content

    return send


def drop(**more):
    return {"action": "drop", "exporter": "lake", "bundles": ["1:2"], **more}


def bearer(token):
    return {"HTTP_AUTHORIZATION": f"Bearer {token}"}


def test_the_page_loads_nothing_from_elsewhere(ask):
    """The policy allows its own style and script by their digests, and requests to its own address only."""
    status, headers, content = ask("/")
    policy = headers["Content-Security-Policy"]

    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    assert "unsafe" not in policy
    assert b"http://" not in content.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in content
    assert not {b"innerHTML", b"insertAdjacentHTML", b"document.write", b"eval("} & set(content.split())
    assert b"innerHTML" not in content


def test_no_answer_may_be_read_or_framed_by_other_sites(ask):
    """There is no CORS header, not even in the answer to a request of another origin."""
    for path in ("/", "/api/status", "/nowhere"):
        _, headers, _ = ask(path, HTTP_ORIGIN="http://evil.example")
        assert not [name for name in headers if name.lower().startswith("access-control")]
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
    assert ask("/api/dead-letters", method="OPTIONS")[0] == 405


@pytest.mark.parametrize("path", ["/", "/api/status", "/api/dead-letters?exporter=lake"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4321", "", "localhost.evil.example", "127.0.0.1.nip.io"]
)
def test_a_name_of_another_site_is_refused(ask, dead_letters, path, host):
    """It may resolve to this machine; then the browser would treat the page as part of the other site."""
    status, _, content = ask(path, HTTP_HOST=host)

    assert status == 421
    assert b"status.hosts" in content
    assert dead_letters.ran == []


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1:4321", "[::1]:4321", "10.1.2.3", "Node.internal:1"]
)
def test_own_names_and_addresses_are_accepted(host):
    assert is_own_host(host, ["node.internal"])


def test_dead_letters_are_listed_and_shown_without_a_token(ask, dead_letters):
    assert ask("/api/dead-letters?exporter=lake", is_read_only=True)[0] == 200
    assert ask("/api/dead-letters?exporter=lake&bundle=1%3A2", is_read_only=True)[0] == 200
    assert ask("/api/dead-letters", is_read_only=True)[0] == 400
    assert ask("/api/dead-letters?exporter=a&exporter=b", is_read_only=True)[0] == 400
    assert dead_letters.ran == [("list", "lake", []), ("show", "lake", ["1:2"])]


def test_a_change_needs_a_token(ask, dead_letters):
    """Without `auth`, no token permits it; with it, exactly one header with a known token does."""
    assert ask("/api/dead-letters", drop(), is_read_only=True, **bearer(TOKEN))[0] == 403
    assert ask("/api/dead-letters", drop())[0] == 401
    assert ask("/api/dead-letters", drop(), **bearer(TOKEN[:-1]))[0] == 401
    assert ask("/api/dead-letters", drop(), **bearer(f"{TOKEN}x"))[0] == 401
    assert ask("/api/dead-letters", drop(), HTTP_COOKIE=f"token={TOKEN}")[0] == 401
    assert dead_letters.ran == []

    assert ask("/api/dead-letters", drop(), **bearer(TOKEN))[0] == 200
    assert ask("/api/dead-letters", drop(action="replay"), **bearer(TOKEN))[0] == 200
    assert [ran[0] for ran in dead_letters.ran] == ["drop", "replay"]


def test_a_change_from_another_origin_is_refused(ask, dead_letters):
    """Even with the token; a request of the page itself has its own origin."""
    assert ask("/api/dead-letters", drop(), HTTP_ORIGIN="http://evil.example", **bearer(TOKEN))[0] == 403
    assert dead_letters.ran == []
    assert ask("/api/dead-letters", drop(), HTTP_ORIGIN="http://127.0.0.1:4321", **bearer(TOKEN))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 60_000,
        {"action": "list", "exporter": "lake", "bundles": ["1:2"]},
        {"action": "drop", "exporter": ["lake"], "bundles": ["1:2"]},
        {"action": "drop", "exporter": "lake", "bundles": []},
        {"action": "drop", "exporter": "lake", "bundles": "1:2"},
        {"action": "drop", "exporter": "lake", "bundles": [1]},
        {"action": "drop", "exporter": "lake"},
        b" " * (BODY_BYTES_MAX + 1),
    ],
)
def test_an_invalid_change_is_refused(ask, dead_letters, body):
    """A missing list does not mean all dead letters."""
    assert ask("/api/dead-letters", body, **bearer(TOKEN))[0] == 400
    assert dead_letters.ran == []


def test_a_form_cannot_send_a_change(ask, dead_letters):
    """A form of another site could send text without asking first, but not JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert ask("/api/dead-letters", drop(), CONTENT_TYPE=kind, **bearer(TOKEN))[0] == 400
    assert dead_letters.ran == []


def test_errors_are_json_with_their_reason(ask, dead_letters):
    for error, expected in ((UsageError("no such bundle"), 400), (TransientError("busy"), 503), (OSError("disk"), 503)):
        dead_letters.error = error
        status, _, content = ask("/api/dead-letters?exporter=lake")
        assert (status, json.loads(content)) == (expected, {"error": str(error)})
    assert ask("/nowhere")[0] == 404
    assert ask("/", method="DELETE")[0] == 405


def test_the_page_has_one_style_and_one_script():
    """Otherwise the policy would refuse a part of it."""
    content, policy = load_page()
    assert content.count(b"<script") == content.count(b"<style") == 1
    assert b" style=" not in content
    assert b" onclick" not in content
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
