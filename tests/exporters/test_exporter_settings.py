"""Settings of exporters: endpoints, contradictions, secrets."""

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
def test_endpoints_are_parsed(endpoint, protocol, target):
    """The scheme selects plain text or TLS; gRPC without a scheme uses TLS, by the specification."""
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
def test_invalid_endpoints_are_refused(endpoint, protocol):
    """The message has an example."""
    with pytest.raises(SettingsError, match="write for example http://127.0.0.1:431"):
        ExporterSettings(endpoint, protocol=protocol)


def test_addresses_put_ipv6_in_brackets():
    assert ExporterSettings("http://[::1]:9").target.address == "[::1]:9"
    assert ExporterSettings("http://a:9").target.address == "a:9"
    assert ExporterSettings("a:9", insecure=True).target == Target("a", 9, "", False)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"protocol": "tcp"}, "protocol: 'tcp' is not grpc or http"),
        ({"compression_method": "snappy"}, "compression_method: 'snappy' is not none, gzip or zstd"),
        ({"denied": "maybe"}, "denied"),
        ({"timeout_s": 0}, "timeout"),
        ({"timeout_s": float("inf")}, "timeout"),
        ({"in_flight_max": 0}, "in_flight_max"),
        ({"endpoint": "https://x", "cert_file": "c"}, "set both cert_file and key_file"),
        ({"ca_file": "c"}, "uses plain text; remove"),
        ({"endpoint": "https://x", "insecure": True}, "insecure disables it"),
        ({"headers": {"Content-Type": "x"}}, "headers: 'Content-Type' cannot be sent"),
        ({"headers": {"a b": "x"}}, "headers: 'a b' cannot be sent"),
        ({"headers": {"Grpc-Timeout": "1"}}, "headers: 'Grpc-Timeout' cannot be sent"),
        ({"headers": {"a-bin": "1"}}, "headers: 'a-bin' cannot be sent"),
        ({"headers": {"a!": "1"}}, "headers: 'a!' cannot be sent"),
        ({"headers": {"a": "x\r\nb: c"}}, "the value of a must be printable ASCII"),
    ],
)
def test_invalid_settings_are_refused(how, reason):
    """The message names the key."""
    with pytest.raises(SettingsError, match=reason):
        ExporterSettings(**{"endpoint": "http://x", **how})


def test_headers_are_not_shown():
    """A token must not end up in a log."""
    assert ExporterSettings("http://x", protocol="http", headers={"a!-bin": "1"}).headers == {"a!-bin": "1"}
    assert "secret" not in repr(ExporterSettings("http://x", headers={"authorization": "secret"}))
