"""The receivers of a pipeline file: every key is read, and errors have the line."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from quiver.errors import PipelineError
from quiver.pipeline.config.receiver import OtlpReceiverConfig
from quiver.pipeline.graph import load_pipeline

FILE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out: {destinations: [store]}}
    config:
      protocols:
        grpc: {listening_addr: "127.0.0.1:4317"}
        http:
          listening_addr: "127.0.0.1:4318"
CONFIG
  store:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    config: {path: buffer}
"""
CONFIG_LINE = 11

FULL = """\
tls: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem}
auth:
  bearer: {token: "{{TOKEN}}", tokens: [b, c], file: tokens}
  basic: {username: ada, password: "{{PASSWORD}}", users: {bob: x}, file: users}
max_connections: 10
keepalive:
  max_connection_idle: 5m
  max_connection_age: 1h
  max_connection_age_grace: 10s
  ping_interval: 1m
  ping_timeout: 5s
  ping_interval_min: 1s
request_timeout: 3s
handshake_timeout: 2s
otlp_handling: convert_to_arrow
capture_headers: [x-tenant]
"""


def load(config, *, addresses=("127.0.0.1:4317", "127.0.0.1:4318"), top=""):
    text = FILE.replace("127.0.0.1:4317", addresses[0]).replace("127.0.0.1:4318", addresses[1])
    text = text.replace("CONFIG\n", "".join(f"      {line}\n" for line in config.splitlines()))
    values = {"TOKEN": "s3cret", "PASSWORD": "pässword"}
    return load_pipeline(text + top, source="p.yaml", values=values)[0]


def settings(*args, **how):
    ((_, config),) = load(*args, **how).receivers
    return config.settings(config.http_address)


def test_every_key_reaches_the_receiver():
    made = settings(FULL)
    tls, auth = made.security.tls, made.security.auth
    assert (tls.cert_file, tls.key_file, tls.client_ca_file) == ("cert.pem", "key.pem", "ca.pem")
    assert (auth.tokens, auth.token_file) == (("s3cret", "b", "c"), "tokens")
    assert (auth.users, auth.user_file) == ({"ada": "pässword", "bob": "x"}, "users")
    keepalive = made.keepalive
    assert (keepalive.max_connection_idle_s, keepalive.max_connection_age_s) == (300, 3600)
    assert (keepalive.max_connection_age_grace_s, keepalive.ping_interval_s) == (10, 60)
    assert (keepalive.ping_timeout_s, keepalive.ping_interval_min_s) == (5, 1)
    assert (made.connections_max, made.body_timeout_s, made.head_timeout_s) == (10, 3, 2)
    assert (made.otlp_handling, made.capture_headers) == ("convert_to_arrow", ("x-tenant",))


def test_secrets_are_not_in_any_representation_of_the_pipeline():
    pipeline = load(FULL)
    assert "s3cret" not in repr(pipeline)
    assert "pässword" not in repr(pipeline)


@pytest.mark.parametrize(("config", "offset", "reason"), [
    ("tsl: {}", 0, "unknown key tsl; did you mean tls?"),
    ("tls: {cert_file: a}", 0, "tls.key_file is missing"),
    ("tls:\n  cert_file: a\n  key_fiel: b", 2, "tls.key_fiel; did you mean key_file?"),
    ("auth: {}", 0, "auth: set a token, a user, or a file of either"),
    ("auth:\n  baerer: {}", 1, "unknown key auth.baerer; did you mean bearer?"),
    ("auth:\n  basic:\n    username: ada", 1, "give username and password together"),
    ("auth:\n  basic: {username: ada, password: a, users: {ada: b}}", 0, "the user ada is also in basic.users"),
    ('auth:\n  bearer: {token: ""}', 0, "a bearer token must be printable ASCII"),
    ("max_connections: 0", 0, "max_connections"),
    ("keepalive:\n  ping_interval: 0s", 1, "keepalive.ping_interval must be positive"),
    ("keepalive:\n  ping_intervall: 1s", 1, "did you mean ping_interval?"),
    ("request_timeout: 0s", 0, "request_timeout"),
    ("otlp_handling: convert", 0, "'convert' is not available; did you mean convert_to_arrow?"),
    ("capture_headers: [authorization]", 0, "authorization carries credentials"),
    ("insecure: maybe", 0, "insecure"),
])  # fmt: skip
def test_errors_have_the_line_of_the_key(config, offset, reason):
    with pytest.raises(PipelineError) as caught:
        load(config)
    assert reason in str(caught.value)
    assert f"p.yaml:{CONFIG_LINE + offset}:" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(("addresses", "key", "line"), [
    (("0.0.0.0:4317", "127.0.0.1:4318"), "protocols.grpc.listening_addr", 8),
    (("127.0.0.1:4317", "[::]:4318"), "protocols.http.listening_addr", 10),
])  # fmt: skip
def test_a_public_port_is_refused_at_its_own_line(addresses, key, line):
    with pytest.raises(PipelineError) as caught:
        load("", addresses=addresses)
    assert f"p.yaml:{line}: {key}: others can reach" in str(caught.value)
    load("insecure: true", addresses=addresses)
    load("tls: {cert_file: a, key_file: b, client_ca_file: c}", addresses=addresses)


def test_public_metrics_are_refused():
    with pytest.raises(PipelineError, match="listen: others can reach 0.0.0.0, and metrics are served in plain text"):
        load("", top='metrics: {listen: "0.0.0.0:9464"}\n')
    assert load("", top='metrics: {listen: "0.0.0.0:9464", insecure: true}\n').metrics.insecure
    assert load("", top='metrics: {listen: "127.0.0.1:9464"}\n').metrics.listen == "127.0.0.1:9464"


PAGE = (Path(__file__).parents[3] / "docs/howto/otlp.md").read_text(encoding="utf-8")


def keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Return every key that *model* reads, nested ones with dots."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        inner = [
            part for part in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(part, type)
        ]
        models = [part for part in inner if issubclass(part, BaseModel)]
        found |= keys(models[0], f"{prefix}{name}.") if models else {prefix + name}
    return found


def test_the_page_lists_every_key_and_no_other():
    table = PAGE.partition("## Settings")[2].partition("**`otlp_handling")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)} == keys(OtlpReceiverConfig)


def test_the_secured_port_of_the_page_is_valid():
    (block,) = [text for text in PAGE.split("```")[1::2] if "client_ca_file" in text]
    config = OtlpReceiverConfig.model_validate(yaml.safe_load(block))
    assert config.security.missing() == ""
    assert config.grpc_address == "0.0.0.0:4317"
