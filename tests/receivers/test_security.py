"""A public port rejects unknown clients; credentials are compared completely, and follow their files."""

import base64
import hmac
import ssl
import subprocess
from types import SimpleNamespace

import pytest

from certificates import install
from quiver.errors import SettingsError
from quiver.observe import InMemoryObserver
from quiver.receivers import security
from quiver.receivers.security import (
    Authenticator,
    AuthSettings,
    SecuritySettings,
    TlsSettings,
    check_exposure,
    is_loopback,
    server_context,
    warn_of_exposure,
)
from quiver.receivers.settings import OtlpSettings

TLS = TlsSettings("cert.pem", "key.pem")
MUTUAL = TlsSettings("cert.pem", "key.pem", "ca.pem")
AUTH = AuthSettings(tokens=("t0ken",))


class Events(InMemoryObserver):
    """Records events in addition to metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, dict]] = []

    def event(self, name, *, level=0, **attributes):
        self.events.append((name, attributes))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


@pytest.fixture
def events():
    return Events()


@pytest.mark.parametrize(("host", "expected"), [
    ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("LOCALHOST", True),
    ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("fe80::1%eth0", False), ("example.com", False),
    ("localhost.example.com", False), ("", False),
])  # fmt: skip
def test_only_this_machine_can_reach_a_loopback_address(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(("tls", "auth", "missing"), [
    (None, None, "tls and auth (or tls.client_ca_file)"),
    (TLS, None, "auth (or tls.client_ca_file)"),
    (None, AUTH, "tls"),
    (TLS, AUTH, ""),
    (MUTUAL, None, ""),
])  # fmt: skip
def test_a_public_address_needs_tls_and_authentication(tls, auth, missing):
    protected = SecuritySettings(tls=tls, auth=auth)
    for address in ("0.0.0.0:4317", "[::]:4317", "example.com:4317"):
        if missing:
            with pytest.raises(SettingsError) as caught:
                OtlpSettings(listening_addr=address, security=protected)
            assert f"so it needs {missing};" in str(caught.value)
            assert "insecure: true" in str(caught.value)
            OtlpSettings(listening_addr=address, security=SecuritySettings(tls=tls, auth=auth, insecure=True))
        else:
            OtlpSettings(listening_addr=address, security=protected)
    check_exposure("127.0.0.1", protected)


def test_only_an_exposed_port_is_reported(events):
    open_to_all = SecuritySettings(insecure=True)
    warn_of_exposure("127.0.0.1:1", "127.0.0.1", open_to_all, events)
    warn_of_exposure("0.0.0.0:1", "0.0.0.0", SecuritySettings(tls=TLS, auth=AUTH, insecure=True), events)
    assert events.events == []
    warn_of_exposure("0.0.0.0:1", "0.0.0.0", open_to_all, events)
    ((name, told),) = events.events
    assert name == "quiver.receiver.insecure"
    assert told == {"address": "0.0.0.0:1", "missing": "tls and auth (or tls.client_ca_file)"}


def basic(text: str | bytes) -> str:
    return "Basic " + base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def test_only_the_complete_credential_is_accepted(events):
    settings = AuthSettings(tokens=("t0ken", "second"), users={"ada": "p:w ü"})
    door = Authenticator(settings, events)
    for good in ("Bearer t0ken", "bearer second", "BEARER  second ", basic("ada:p:w ü"), b"Bearer t0ken"):
        assert door.check([good]), good
    for bad in ("", "Bearer", "Bearer ", "Bearer t0ke", "Bearer t0kenn", "Bearer T0KEN", "t0ken", "Basic t0ken",
                basic("ada:"), basic("ada"), basic(""), basic("ada:p:w"), basic(":p:w ü"), "Basic !!!", "Basic \udcff",
                "Bearer ada:p:w ü", basic("t0ken"), "Digest t0ken", "Bearer t0ken, Bearer t0ken"):  # fmt: skip
        assert not door.check([bad]), bad
    assert not door.check([])
    assert not door.check(["Bearer t0ken", "Bearer t0ken"])  # servers differ in which of the two they would use
    assert door.challenge == 'Bearer, Basic realm="quiver", charset="UTF-8"'


def test_all_credentials_are_compared_in_constant_time(events, monkeypatch):
    compared: list[tuple[int, int]] = []

    def counted(a, b):
        compared.append((len(a), len(b)))
        return hmac.compare_digest(a, b)

    monkeypatch.setattr(security, "hmac", SimpleNamespace(compare_digest=counted))
    door = Authenticator(AuthSettings(tokens=("first", "a" * 500, "third")), events)
    for shown in ("Bearer first", "Bearer third", "Bearer " + "a" * 499, "nonsense", ""):
        compared.clear()
        door.check([shown])
        # All of them, though the first one matches, with the length of digests, not of tokens.
        assert compared == [(32, 32)] * 3


def test_secrets_do_not_appear_in_the_settings_text(events):
    settings = AuthSettings(tokens=("s3cret",), users={"ada": "s3cret"})
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in repr(SecuritySettings(auth=settings))
    assert "s3cret" not in repr(vars(Authenticator(settings, events)))
    for wrong in ({"tokens": ("s3cret ",)}, {"users": {"": "s3cret"}}, {"tokens": ("",)}, {"users": {"a:b": "s3cret"}}):
        with pytest.raises(SettingsError) as caught:
            AuthSettings(**wrong)
        assert "s3cret" not in str(caught.value)


def test_auth_without_a_credential_is_refused(tmp_path, events):
    with pytest.raises(SettingsError, match="set a token"):
        AuthSettings()
    missing = tmp_path / "missing"
    with pytest.raises(SettingsError, match="cannot read .*missing"):
        Authenticator(AuthSettings(token_file=str(missing)), events)
    empty = tmp_path / "empty"
    empty.write_text(" \n\n")
    with pytest.raises(SettingsError, match="no client could authenticate"):
        Authenticator(AuthSettings(user_file=str(empty)), events)
    broken = tmp_path / "broken"
    broken.write_text("ada\n")
    with pytest.raises(SettingsError, match="name:password"):
        Authenticator(AuthSettings(user_file=str(broken)), events)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        Authenticator(AuthSettings(token_file=str(broken)), events)
    broken.write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(SettingsError, match="larger than"):
        Authenticator(AuthSettings(token_file=str(broken)), events)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_credential_files_of_any_editor_are_accepted(tmp_path, events, mark, end):
    """A byte order mark is not part of the first name; everything after the colon is the password."""
    users = ["ada:first", "", "  bob : p w  ", "cy:a\u2028b\x0bc", "di:x:y\u00a0"]
    (tmp_path / "users").write_bytes((mark + end.join(users)).encode())
    (tmp_path / "tokens").write_bytes((mark + end.join(["t0ken", " second ", ""])).encode())
    door = Authenticator(AuthSettings(user_file=str(tmp_path / "users"), token_file=str(tmp_path / "tokens")), events)
    for good in ("ada:first", "bob: p w  ", "cy:a\u2028b\x0bc", "di:x:y\u00a0"):
        assert door.check([basic(good)]), good
    for bad in ("\ufeffada:first", "bob:p w", "bob: p w", "cy:a", "b:c", "di:x:y"):
        assert not door.check([basic(bad)]), bad
    assert door.check(["Bearer t0ken"])
    assert door.check(["Bearer second"])


def test_a_blank_password_is_refused(tmp_path, events):
    (tmp_path / "users").write_text("ada: \n")
    with pytest.raises(SettingsError, match="neither may be empty"):
        Authenticator(AuthSettings(user_file=str(tmp_path / "users")), events)


def test_a_second_password_for_a_user_is_refused(tmp_path, events):
    """In a second line of the file, or in the settings; an invalid file changes nothing later."""
    users = tmp_path / "users"
    users.write_text("ada:old\nbob:x\nada :new\n")
    with pytest.raises(SettingsError, match="the user ada is repeated") as caught:
        Authenticator(AuthSettings(user_file=str(users)), events)
    assert "new" not in str(caught.value)
    users.write_text("bob:x\n")
    with pytest.raises(SettingsError, match="the user bob is repeated"):
        Authenticator(AuthSettings(users={"bob": "y"}, user_file=str(users)), events)

    door = Authenticator(AuthSettings(user_file=str(users)), events)
    users.write_text("bob:x\nbob:y\n")
    assert (door.check([basic("bob:x")]), door.check([basic("bob:y")])) == (True, False)
    assert events.names == ["quiver.receiver.reload_failed"]


def test_credentials_follow_their_files_and_a_bad_file_changes_nothing(tmp_path, events):
    tokens = tmp_path / "tokens"
    tokens.write_text("old\nolder\n")
    users = tmp_path / "users"
    users.write_text("ada:lovelace\n")
    door = Authenticator(AuthSettings(token_file=str(tokens), user_file=str(users)), events)
    assert door.check(["Bearer old"])
    assert door.check([basic("ada:lovelace")])
    replaced = tmp_path / "new"
    replaced.write_text("new\n")
    replaced.rename(tokens)
    assert not door.check(["Bearer old"])
    assert door.check(["Bearer new"])
    assert events.names == ["quiver.receiver.reloaded"]
    tokens.unlink()
    assert door.check(["Bearer new"])
    assert door.check(["Bearer new"])
    assert events.names[1:] == ["quiver.receiver.reload_failed"]  # reported once
    tokens.write_text("newest\n")
    assert door.check(["Bearer newest"])
    assert not door.check(["Bearer new"])


# ── TLS files ────────────────────────────────────────────────────────────────────────────────────────


def test_files_other_than_a_certificate_and_its_key_are_refused(
    tmp_path, authority, server_files, client_files, events
):
    cert, key = map(str, server_files)
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    locked = tmp_path / "locked.key"
    make = ["openssl", "ec", "-in", key, "-aes128", "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(make, check=True, capture_output=True)
    for tls in (
        TlsSettings(cert, str(client_files[1])),
        TlsSettings(str(junk), key),
        TlsSettings(cert, str(locked)),
        TlsSettings(cert, key, str(junk)),
        TlsSettings(str(tmp_path / "missing"), key),
        TlsSettings(cert, key, str(tmp_path / "missing")),
    ):
        with pytest.raises(SettingsError, match=r"tls\."):
            server_context(tls, events)
    assert isinstance(server_context(TlsSettings(cert, key, str(authority.cert)), events), ssl.SSLContext)


def test_a_certificate_that_is_not_pem_is_named(tmp_path, server_files, events):
    """OpenSSL gives no reason for such a file."""
    (tmp_path / "cert.pem").write_text("garbage")
    with pytest.raises(SettingsError, match=r"cert\.pem and .*: (?!None)\w+"):
        server_context(TlsSettings(str(tmp_path / "cert.pem"), str(server_files[1])), events)


def handshake(context: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """Return the server's certificate that the client received."""
    pipes = [ssl.MemoryBIO() for _ in range(4)]
    server_side = context.wrap_bio(pipes[0], pipes[1], server_side=True)
    client_side = client.wrap_bio(pipes[2], pipes[3], server_hostname="localhost")
    done = set()
    while len(done) < 2:
        for side, out, to in ((client_side, pipes[3], pipes[0]), (server_side, pipes[1], pipes[2])):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
            to.write(out.read())
    return client_side.getpeercert(binary_form=True)


def test_a_partially_replaced_certificate_is_never_used(tmp_path, authority, server_files, events):
    target = (tmp_path / "cert.pem", tmp_path / "key.pem")
    install(server_files, target)
    context = server_context(TlsSettings(*map(str, target)), events)
    client = ssl.create_default_context(cafile=str(authority.cert))
    first = handshake(context, client)
    second = authority.issue("second")
    install((second[0],), target[:1])  # the key is still the first one
    assert handshake(context, client) == first
    assert events.names == ["quiver.receiver.reload_failed"]
    assert handshake(context, client) == first
    install((second[1],), target[1:])
    assert handshake(context, client) != first
    assert events.names == ["quiver.receiver.reload_failed", "quiver.receiver.reloaded"]


def test_a_removed_authority_is_no_longer_trusted(
    tmp_path, authority, other_authority, server_files, client_files, events
):
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(authority.cert.read_bytes())
    context = server_context(TlsSettings(*map(str, server_files), str(trusted)), events)
    client = ssl.create_default_context(cafile=str(authority.cert))
    client.load_cert_chain(*client_files)
    handshake(context, client)
    trusted.write_bytes(other_authority.cert.read_bytes())
    with pytest.raises(ssl.SSLError):
        handshake(context, client)
    client = ssl.create_default_context(cafile=str(authority.cert))
    client.load_cert_chain(*other_authority.issue("client"))
    handshake(context, client)
