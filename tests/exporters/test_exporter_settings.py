"""What an exporter is told, and what it refuses to be told."""

import pytest

from quiver.errors import SettingsError
from quiver.exporters.settings import ExporterSettings, Target, split_endpoint


@pytest.mark.parametrize(
    ("endpoint", "protocol", "target"),
    [
        ("http://127.0.0.1:4317", "grpc", Target("127.0.0.1", 4317, "", False)),
        ("http://collector/", "grpc", Target("collector", 4317, "", False)),
        ("https://collector", "grpc", Target("collector", 4317, "", True)),
        ("collector:1", "grpc", Target("collector", 1, "", True)),
        ("http://[::1]:9", "grpc", Target("::1", 9, "", False)),
        ("http://collector", "http", Target("collector", 4318, "", False)),
        ("https://collector:443/otlp/", "http", Target("collector", 443, "/otlp", True)),
        ("http://collector./a%20b\n", "http", Target("collector.", 4318, "/a%20b", False)),
        ("http://k\u00f6ln.example", "http", Target("k\u00f6ln.example", 4318, "", False)),
    ],
)
def test_endpoints(endpoint, protocol, target):
    """A scheme says whether it is plain text; gRPC without one is TLS, as the specification has it."""
    assert split_endpoint(endpoint, protocol=protocol) == target


@pytest.mark.parametrize(
    ("endpoint", "protocol"),
    [
        ("", "grpc"), ("http://", "grpc"), ("ftp://x", "grpc"), ("http://x:99999", "grpc"), ("http://x/path", "grpc"),
        ("collector:4318", "http"), ("http://user:word@x", "http"), ("http://x?y", "http"), ("http://[::1", "http"),
        ("http://x:0", "grpc"), ("http://x:0", "http"), ("http://x/a b", "http"), ("http://x/\u00e4", "http"),
        ("http://x/\x7f", "http"), ("http://x y", "http"), ("http://x y", "grpc"), ("http://a..b", "grpc"),
        ("http://" + "a" * 64, "http"), ("http://.", "http"), ("http://x\ty", "http"),
    ],
)  # fmt: skip
def test_what_is_no_endpoint(endpoint, protocol):
    """It is refused with an example."""
    with pytest.raises(SettingsError, match="write for example http://127.0.0.1:431"):
        ExporterSettings(endpoint, protocol=protocol)


def test_addresses():
    """IPv6 in brackets."""
    assert ExporterSettings("http://[::1]:9").target.address == "[::1]:9"
    assert ExporterSettings("http://a:9").target.address == "a:9"
    assert ExporterSettings("a:9", insecure=True).target == Target("a", 9, "", False)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"protocol": "tcp"}, "protocol: 'tcp' is not grpc or http"),
        ({"compression_method": "zstd"}, "compression_method: 'zstd' is not none or gzip"),
        ({"denied": "maybe"}, "denied"),
        ({"timeout_s": 0}, "timeout"),
        ({"timeout_s": float("inf")}, "timeout"),
        ({"in_flight_max": 0}, "in_flight_max"),
        ({"endpoint": "https://x", "cert_file": "c"}, "belong together"),
        ({"ca_file": "c"}, "plain text, where certificates are of no use"),
        ({"endpoint": "https://x", "insecure": True}, "asks for TLS, insecure for none"),
        ({"headers": {"Content-Type": "x"}}, "headers: 'Content-Type' cannot be sent"),
        ({"headers": {"a b": "x"}}, "headers: 'a b' cannot be sent"),
        ({"headers": {"Grpc-Timeout": "1"}}, "headers: 'Grpc-Timeout' cannot be sent"),
        ({"headers": {"a-bin": "1"}}, "headers: 'a-bin' cannot be sent"),
        ({"headers": {"a!": "1"}}, "headers: 'a!' cannot be sent"),
        ({"headers": {"a": "x\r\nb: c"}}, "the value of a must be printable ASCII"),
    ],
)
def test_what_contradicts_itself_is_refused(how, reason):
    """With the key that is wrong."""
    with pytest.raises(SettingsError, match=reason):
        ExporterSettings(**{"endpoint": "http://x", **how})


def test_headers_are_not_shown():
    """A token does not end in a log."""
    assert ExporterSettings("http://x", protocol="http", headers={"a!-bin": "1"}).headers == {"a!-bin": "1"}
    assert "secret" not in repr(ExporterSettings("http://x", headers={"authorization": "secret"}))
