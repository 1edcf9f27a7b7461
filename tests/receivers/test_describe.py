"""
What a receiver says of itself: who can reach it, and what it keeps; never a secret.
"""

from quiver.receivers.security import AuthSettings, SecuritySettings, TlsSettings
from quiver.receivers.settings import OtlpSettings, describe


def test_a_receiver_for_this_machine():
    assert describe(OtlpSettings()) == [
        "listens on 127.0.0.1:4317 in plain text, for this machine only",
        "keeps requests as they came, and confirms them when they are on the disk",
    ]


def test_a_receiver_behind_tls_and_credentials_tells_no_secret():
    auth = AuthSettings(tokens=("hush-hush",), users={"eve": "s3cret-pw"}, user_file="users.txt")
    security = SecuritySettings(TlsSettings("cert.pem", "key.pem", "ca.pem"), auth)
    settings = OtlpSettings(
        listening_addr="0.0.0.0:4317", security=security, otlp_handling="convert_to_arrow", ack="logged"
    )
    *lines, last = describe(settings)
    assert lines == [
        "listens on 0.0.0.0:4317 with TLS (certificate cert.pem), for every machine that can reach it",
        "clients show a certificate signed by ca.pem",
        "requests show a bearer token or a name and a password (also of users.txt)",
    ]
    assert last.startswith("keeps requests as OTAP tables (otlp_handling), and confirms them when they are in the log,")


def test_a_receiver_open_to_everybody_says_so():
    settings = OtlpSettings(listening_addr="0.0.0.0:4317", security=SecuritySettings(insecure=True))
    assert "INSECURE: it listens without tls and auth (or tls.client_ca_file), as insecure: true allows" in describe(
        settings
    )
