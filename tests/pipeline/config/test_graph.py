"""Errors in a pipeline file are reported before anything starts, with the line and a correction."""

from pathlib import Path

import pytest

from quiver.errors import PipelineError, UsageError
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import check_cores, load_pipeline
from quiver.pipeline.processes.child import parse_assignments, read_pipeline
from quiver.pipeline.processes.run import default_run_dir
from quiver.settings import MIB, Settings

ROOT = Path(__file__).parents[3]

GOOD = """\
nodes:
  otlp_receiver:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports:
      out_port:
        destinations:
          - persistence
        dispatch_strategy: round_robin
    config:
      listening_addr: "127.0.0.1:4317"
      response_stream_channel_size: 256
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports:
      out_port:
        destinations:
          - parquet
    config:
      path: ./quiver_data
      durability: wal
      segment:
        target_size: 32MB
      wal:
        max_size: 4GB
        flush_interval: 25ms
      retention:
        size_cap: 500GB
        size_cap_policy: backpressure
  parquet:
    kind: exporter
    plugin_urn: "urn:quiver:parquet:exporter"
    config:
      path: out
"""


REACHED_TWICE = "parquet is reached over two routes, first on line 8; give each route its own node"
PUT_BEHIND = (
    "otlp_receiver feeds persistence and parquet; feed parquet from persistence, which delivers to each destination"
)


def load(text, **values):
    return load_pipeline(text, source="p.yaml", values=values)[0]


def changed(old, new):
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def refused(text):
    with pytest.raises(PipelineError) as caught:
        load(text)
    return caught.value.line, caught.value.reason


def test_the_file_of_the_architecture_document_is_read():
    """Nodes, ports and config become one validated pipeline; keys have the document's names and sizes."""
    pipeline = load(GOOD)

    ((name, receiver),) = pipeline.receivers
    assert (name, receiver.grpc_address, receiver.http_address) == ("otlp_receiver", "127.0.0.1:4317", None)
    assert pipeline.persistence.path == "./quiver_data"
    assert pipeline.persistence.settings == Settings(
        segment_bytes_max=32_000_000,
        segment_open_s_max=1.0,
        wal_bytes_max=4_000_000_000,
        wal_flush_interval_s=0.025,
        size_cap_bytes=500_000_000_000,
    )
    ((exporter, config),) = pipeline.exporters
    assert (exporter, config.path, config.trigger, config.compression) == ("parquet", "out", 1.0, "zstd")
    assert default_run_dir(pipeline) == Path("quiver_data.run")


@pytest.mark.parametrize("path", [".", "..", "a/..", "./"])
def test_the_run_directory_is_next_to_the_store(path, tmp_path, monkeypatch):
    """For any spelling of the path; within the store, it would look like a part of it."""
    inner = tmp_path / "outer" / "inner"
    (inner / "a").mkdir(parents=True)
    monkeypatch.chdir(inner)
    pipeline = load(changed("./quiver_data", f'"{path}"').replace("path: out", f"path: {tmp_path}/out"))

    store = Path(path).resolve()
    assert default_run_dir(pipeline) == store.with_name(f"{store.name}.run")


def test_the_root_directory_cannot_be_a_store():
    """It has no neighbors."""
    line, reason = refused(changed("./quiver_data", "/"))

    assert (line, reason.startswith("/ cannot be a store")) == (21, True)


@pytest.mark.parametrize("value", ["trigger: .inf", "trigger: 1e400s", "trigger: 101h99999999999999d", "trigger: 1e30"])
def test_a_duration_above_the_limit_of_a_clock_is_refused(value):
    """Otherwise, the first wait would fail."""
    assert "trigger" in refused(changed("path: out", f"path: out\n      {value}"))[1]


@pytest.mark.parametrize("size", ["9" * 400, "9" * 400 + "GiB", str(2**63), "999999999999PiB"], ids=range(4))
def test_a_size_above_the_limit_of_a_file_is_refused(size):
    """It would fail later, when it is used."""
    line, reason = refused(changed("32MB", size))

    assert (line, "is larger than anything can be" in reason) == (24, True)


@pytest.mark.parametrize("spelling", ["segment: {max_open_duration: 7s}", "segment.max_open_duration: 7s"])
def test_an_explicit_open_duration_overrides_the_default_of_run(spelling):
    """Nested or dotted."""
    text = changed("      segment:\n        target_size: 32MB\n", f"      {spelling}\n")

    assert load(text).persistence.settings.segment_open_s_max == 7.0


def test_a_receiver_may_have_both_protocols():
    """`protocols` configures gRPC and HTTP; sizes, window and ack are in the settings of the receiver."""
    text = changed(
        '      listening_addr: "127.0.0.1:4317"\n',
        """\
      protocols: {grpc: {listening_addr: "[::1]:4317"}, http: {listening_addr: "127.0.0.1:4318"}}
      dedupe_window: 10m
      ack: logged
      max_request_bytes: 1MiB
""",
    )
    ((_, config),) = load(text).receivers
    settings = config.settings(config.http_address)

    assert (config.grpc_address, settings.listening_addr) == ("[::1]:4317", "127.0.0.1:4318")
    assert (settings.dedupe_window_s, settings.ack, settings.max_request_bytes) == (600.0, "logged", MIB)
    assert settings.requests_waiting_max == 256


def test_the_dedupe_window_can_be_off():
    """YAML parses an unquoted `off` as false, which has the same meaning."""
    for word in ("off", '"off"', "0"):
        ((_, config),) = load(changed("response_stream_channel_size: 256", f"dedupe_window: {word}")).receivers
        assert config.dedupe_window == 0.0


def test_a_store_without_destinations_is_valid():
    """It only buffers; no exporter is required."""
    text = GOOD[: GOOD.index("  parquet:")].replace("          - parquet\n", "          []\n")

    assert load(text).exporters == []


def test_every_exporter_receives_everything():
    """Two exporters are two subscribers."""
    text = changed("          - parquet\n", "          - parquet\n          - second\n")
    text += '  second:\n    kind: exporter\n    plugin_urn: "urn:quiver:parquet:exporter"\n    config: {path: out2}\n'

    rows = describe(load(text))["exporters"]
    received = [(row["subscriber"], row["receives"]) for row in rows]
    assert received == [("parquet", "everything"), ("second", "everything")]


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("nodes:\n  otlp", "node:\n  otlp", 1, "unknown key node; did you mean nodes?"),
        ("    kind: receiver", "    knid: receiver", 3, "unknown key knid; did you mean kind?"),
        ("    kind: receiver", "    kind: reciever", 3, "unknown kind reciever; did you mean receiver?"),
        ("    kind: receiver", "    kind: exporter", 3, "urn:otel:otlp:receiver is of kind receiver, not exporter"),
        ("    kind: receiver\n", "", 2, "kind is missing"),
        ("          - persistence", "          - persistance", 8,
         "there is no node named persistance; did you mean persistence?"),
        ("          - persistence", "          - parquet", 19, REACHED_TWICE),
        ("          - persistence", "          - persistence\n          - parquet", 9, PUT_BEHIND),
        ("dispatch_strategy: round_robin", "dispatch_strategy: broadcast", 8,
         "broadcast would store a copy for each core; write round_robin: every exporter gets everything"),
        ("          - persistence", "          - persistence\n          - persistence", 9,
         "persistence is listed twice; a node receives everything once"),
        ("dispatch_strategy: round_robin", "dispatch_strategie: round_robin", 9,
         "unknown key dispatch_strategie; did you mean dispatch_strategy?"),
        ("dispatch_strategy: round_robin", "dispatch_strategy: round_robbin", 9,
         "unknown dispatch_strategy round_robbin; did you mean round_robin?"),
        ('listening_addr: "127.0.0.1:4317"', 'listening_adr: "127.0.0.1:4317"', 11,
         "unknown key listening_adr; did you mean listening_addr?"),
        ('listening_addr: "127.0.0.1:4317"', "protocols: {grcp: {}}", 11,
         "unknown key protocols.grcp; did you mean grpc?"),
        ('listening_addr: "127.0.0.1:4317"', 'listening_addr: "127.0.0.1"', 11,
         "listening_addr: '127.0.0.1' is not host:port, for example 127.0.0.1:4317"),
        ("response_stream_channel_size: 256", "response_stream_channel_size: many", 12, None),
        ("response_stream_channel_size: 256", "ack: sinced", 12,
         "ack: 'sinced' is not available; did you mean synced?"),
        ("        target_size: 32MB", "        target_sise: 32MB", 24,
         "unknown setting segment.target_sise; did you mean segment.target_size?"),
        ("        target_size: 32MB", "        target_size: big", 24, None),
        ("      durability: wal", "      durability: wall", 22, None),
        ("        max_size: 4GB", "        max_size: 4MB", 26, None),
        ("      path: ./quiver_data\n", "", 20, "path is missing"),
        ("          - parquet", "          - otlp_receiver", 8,
         "the nodes form a cycle: otlp_receiver → persistence → otlp_receiver"),
        ("          - parquet", "          - persistence", 19,
         "the nodes form a cycle: persistence → persistence"),
        ("          - parquet\n", "          []\n", 31, "no node feeds parquet: add it to the destinations of one"),
        ("          - persistence\n", "          []\n", 2, None),
        ("      path: out", "      path: out\n      trigger: soon", 36, None),
        ("      path: out", "      path: out\n      compression: zst", 36,
         "compression: 'zst' is not available; did you mean zstd?"),
        ("      path: out", "      path: out\n      pth: out", 36, "unknown key pth; did you mean path?"),
        ("      path: out", "      trigger: 1s", 34, "path is missing"),
        ("  parquet:", "  par.quet:", 19, "there is no node named parquet; did you mean par.quet?"),
        ('"urn:quiver:parquet:exporter"', '"urn:quiver:parket:exporter"', 33,
         "unknown plugin_urn urn:quiver:parket:exporter; did you mean urn:quiver:parquet:exporter?"),
    ],
)  # fmt: skip
def test_errors_have_the_line_of_the_key(old, new, line, reason):
    """The line of the key or list item itself."""
    found = refused(changed(old, new))

    assert found[0] == line, found
    assert reason is None or found[1] == reason


def test_a_store_without_input_is_refused():
    """It would be empty forever; two persistence nodes in a row are refused, too."""
    more = "  more:\n    kind: processor\n    plugin_urn: urn:otap:processor:persistence\n    config: {path: x}\n"

    assert refused(GOOD + more) == (36, "no node feeds more: add it to the destinations of one")
    after = changed("          - parquet\n", "          - parquet\n          - more\n") + more
    assert refused(after) == (20, "persistence and more are both persistence nodes; one is enough here")


def test_a_file_in_place_of_a_store_is_refused(tmp_path):
    """When the pipeline file is checked; otherwise, the ingest process would restart forever."""
    (tmp_path / "taken").touch()
    line, reason = refused(changed("./quiver_data", f"{tmp_path}/taken"))

    assert (line, reason) == (21, f"{tmp_path}/taken is a file, and the place of a store is a directory")


def test_two_exporters_cannot_share_a_directory():
    """Each would delete the other's files as its own leftovers."""
    text = changed("          - parquet\n", "          - parquet\n          - second\n")
    text += "  second:\n    kind: exporter\n    plugin_urn: urn:quiver:parquet:exporter\n    config: {path: ./out}\n"

    assert refused(text) == (40, "second and parquet cannot both write to ./out")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{path: second, checkpoint: out/_checkpoint}", "second and parquet cannot both write to out/_checkpoint"),
        (f"{{path: {Path.cwd()}/out}}", f"second and parquet cannot both write to {Path.cwd()}/out"),
        ("{path: quiver_data/lake}", "second and persistence cannot both write to quiver_data/lake"),
        ("{path: second, checkpoint: quiver_data}", "second and persistence cannot both write to quiver_data"),
    ],
)
def test_an_exporter_may_not_write_to_a_directory_in_use(config, reason):
    """With the commit records of another exporter, it would start at that position, and skip data."""
    text = changed("          - parquet\n", "          - parquet\n          - second\n")
    text += f"  second:\n    kind: exporter\n    plugin_urn: urn:quiver:parquet:exporter\n    config: {config}\n"

    line, reported = refused(text)
    assert line == 40
    assert reported.startswith(reason)


def test_the_limits_of_the_architecture_document_are_read():
    """With its syntax: hours without a unit, and the policy that drops data."""
    keys = "        max_retain_after_ingestion_hours: 72\n        size_cap: 500GB\n        size_cap_policy: drop_oldest"
    settings = load(
        changed("        size_cap: 500GB\n        size_cap_policy: backpressure", keys)
    ).persistence.settings

    assert (settings.max_age_s, settings.size_cap_policy) == (72 * 3600.0, "drop_oldest")


def test_two_receivers_cannot_share_a_port():
    """The error names the second one."""
    more = GOOD[GOOD.index("  otlp_receiver:") : GOOD.index("  persistence:\n")].replace("otlp_receiver", "again")

    assert refused(GOOD + more)[1] == "again and otlp_receiver cannot both listen on 127.0.0.1:4317"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("path: ./quiver_data", 'path: "file:///data/buffer"', 21),
    ],
)
def test_a_url_in_place_of_a_directory_is_refused(old, new, line):
    """Otherwise, a directory of that name would be created in the working directory."""
    where, reason = refused(changed(old, new))

    assert (where, "is an address; name a directory of this machine" in reason, "pw" in reason) == (line, True, False)


@pytest.mark.parametrize(
    ("config", "line", "expected"),
    [
        ('path: "s3://key:pw@bucket/out"', 35, "credentials and parameters are options"),
        ("path: file:///out", 35, "write a directory without a scheme"),
        ("path: hdfs://host/out", 35, "no backend for hdfs"),
        ("path: s3://bucket/out\n      options: {regoin: x}", 36, "s3 has no option 'regoin'; did you mean 'region'"),
        ("path: out\n      options: {region: x}", 36, "options belong to a bucket"),
        ('path: s3://bucket/out\n      file_mode: "0600"', 36, "file_mode has no effect in a bucket"),
        ("path: out\n      partition_by: [hour]", 36, "hour needs day"),
        ("path: out\n      target_file_size: 1KiB", 36, "target_file_size must be at least 65536"),
        ("path: out\n      max_file_age: 25h", 36, "max_file_age must be 0 to 24h"),
        ("path: out\n      max_partitions: 0", 36, "max_partitions must be 1 to 4096"),
    ],
)
def test_parquet_in_places_and_partitions_that_are_impossible(config, line, expected):
    """The error names the line, and no secret."""
    where, reason = refused(changed("path: out", config))

    assert (where, expected in reason, "pw" in reason) == (line, True, False), reason


def another_at(host):
    """Return a second receiver that listens on *host*."""
    more = GOOD[GOOD.index("  otlp_receiver:") : GOOD.index("  persistence:\n")].replace("otlp_receiver", "again")
    return more.replace("127.0.0.1:4317", f"{host}:4317") + "      insecure: true\n"


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "0.0.0.0", "[::]"])
def test_a_port_conflict_is_found_for_any_name_of_the_address(host):
    """Otherwise, the second receiver would retry forever to bind its port."""
    text = f"again and otlp_receiver cannot both listen on {host}:4317, and 127.0.0.1:4317 is that port, too"
    assert refused(GOOD + another_at(host))[1] == text

    metrics = f'metrics: {{listen: "{host}:4317", insecure: true}}\n'
    assert refused(metrics + GOOD)[1].startswith("otlp_receiver and metrics cannot both listen")


@pytest.mark.parametrize("host", ["127.0.0.2", "[::1]", "elsewhere"])
def test_the_same_port_of_another_address_is_valid(host):
    """Addresses that may be different are not compared."""
    assert len(load(GOOD + another_at(host)).receivers) == 2


@pytest.mark.parametrize(
    ("listen", "said"), [("4316", "port 4317, where otlp_receiver listens"), ("65534", "which is invalid")]
)
def test_cores_without_free_ports_for_metrics_are_refused(listen, said):
    """They would restart forever, and requests that the kernel assigns to them would fail."""
    pipeline = load(f'metrics: {{listen: "127.0.0.1:{listen}"}}\n{GOOD}')
    check_cores(pipeline, 1)

    with pytest.raises(UsageError, match=said):
        check_cores(pipeline, 3)


def test_cores_without_a_valid_store_are_refused():
    """Before any process is started."""
    pipeline = load(changed("        size_cap: 500GB", "        size_cap: 300MiB"))
    check_cores(pipeline, 2)

    with pytest.raises(UsageError, match=r"persistence: for each of 3 cores, retention.size_cap must hold"):
        check_cores(pipeline, 3)
    with pytest.raises(UsageError, match="1025 cores are too many: at most 1024"):
        check_cores(load(GOOD), 1025)


def test_the_file_may_give_the_number_of_cores():
    """In both forms; `--check` shows it."""
    assert (load(GOOD).cores, load(f"{GOOD}cores: 4\n").cores) == (None, 4)
    assert describe(load(f"{GOOD}cores: 4\n"), cores=4)["persistence"]["cores"] == 4


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        ("0", "cores: 0 is not the number of ingest processes; write for example 4"),
        ("yes", "cores: True is not the number of ingest processes"),
        ("two", "cores: 'two' is not the number of ingest processes"),
        ("1025", "1025 cores are too many: at most 1024"),
    ],
)
def test_invalid_cores_are_refused(cores, said):
    """On their line."""
    with pytest.raises(PipelineError, match=said) as refused:
        load(f"cores: {cores}\n{GOOD}")
    assert refused.value.line == 1


@pytest.mark.parametrize("text", ["nodes: []", "nodes: {}", "[]", "nodes:\n  a: 1", "5", "nodes:\n  a: {kind: [1]}"])
def test_other_structures_are_refused(text):
    """The only exception is PipelineError."""
    refused(text)


def test_every_truncated_file_is_read_or_refused():
    """The result is a pipeline or an error with a line, never another exception."""
    for end in range(len(GOOD)):
        try:
            load(GOOD[:end])
        except PipelineError as error:
            assert 1 <= error.line <= GOOD[:end].count("\n") + 2


def test_the_example_is_valid():
    """The file in examples/ runs unchanged, and the package contains the same one for the demo."""
    example = ROOT / "examples" / "otlp-to-parquet.yaml"
    pipeline = read_pipeline(example, ["directory=d"], {})

    assert [name for name, _ in pipeline.exporters] == ["parquet_exporter"]
    assert pipeline.persistence.path == "d/buffer"
    assert pipeline.receivers[0][1].dedupe_window == 600.0
    assert example.read_bytes() == (ROOT / "src/quiver/demo/otlp-to-parquet.yaml").read_bytes()


def test_an_endless_file_is_refused():
    """A device, or a wrong file: the limit is applied before the content is in memory."""
    with pytest.raises(PipelineError, match="the file is larger than 1048576 bytes"):
        read_pipeline(Path("/dev/zero"), [], {})


def test_an_assignment_to_an_unknown_placeholder_is_refused(tmp_path):
    """A mistyped --set is not ignored; assignments override the environment."""
    path = tmp_path / "p.yaml"
    path.write_text(changed("path: out", 'path: "{{where}}"'), encoding="utf-8")

    assert read_pipeline(path, [], {"where": "env"}).exporters[0][1].path == "env"
    assert read_pipeline(path, ["where=given"], {"where": "env"}).exporters[0][1].path == "given"
    with pytest.raises(UsageError, match="no placeholder of that name; it has where"):
        read_pipeline(path, ["were=x", "where=y"], {})
    with pytest.raises(UsageError, match="name=value"):
        parse_assignments(["novalue"])
    with pytest.raises(UsageError, match="cannot read"):
        read_pipeline(tmp_path / "none.yaml", [], {})


def all_refused(text):
    with pytest.raises(PipelineError) as caught:
        load(text)
    return [(one.line, one.reason) for one in (caught.value, *caught.value.others)], str(caught.value)


def test_all_errors_are_reported_at_once():
    """Of several nodes and sections, in the order of their lines; each line of the message is one of them."""
    text = GOOD.replace("        target_size: 32MB", "        target_size: big\n        max_strem_count: 4")
    text = text.replace("        max_size: 4GB", "        max_size: fast")
    text = text.replace("      path: out", "      pth: out\n      compression: zst\n      trigger: soon")
    found, message = all_refused(f"{text}log_level: loud\ncores: none\nmetrics:\n  listen: nowhere\n")

    assert [reason.split(";")[0].split(":")[0] for _, reason in found] == [
        "segment.target_size", "unknown setting segment.max_strem_count", "wal.max_size",
        "unknown key pth", "compression", "trigger", "log_level", "cores", "listen",
    ]  # fmt: skip
    assert [line for line, _ in found] == sorted(line for line, _ in found)
    assert message.splitlines() == [f"p.yaml:{line}: {reason}" for line, reason in found]


def test_errors_of_nodes_and_connections_are_reported_together():
    """A node with errors is not also reported as missing where another node feeds it."""
    text = GOOD.replace('"urn:quiver:parquet:exporter"', '"urn:quiver:parket:exporter"')
    text = text.replace("          - persistence\n", "          - persistance\n          - nothing\n")
    found, _ = all_refused(text)

    assert [reason.split(";")[0] for _, reason in found] == [
        "there is no node named persistance", "there is no node named nothing",
        "unknown plugin_urn urn:quiver:parket:exporter",
    ]  # fmt: skip


def test_relations_of_valid_nodes_are_reported_together():
    """Two nodes on one port, two in one directory, and too many cores for a cap."""
    text = GOOD.replace("      path: out", "      path: quiver_data/out")
    text = text.replace("        size_cap: 500GB", "        size_cap: 200MB")
    found, _ = all_refused(f'{text}cores: 64\nmetrics: {{listen: "127.0.0.1:4317"}}\n')

    assert [reason.split(":")[0] for _, reason in found] == [
        "otlp_receiver and metrics cannot both listen on 127.0.0.1",
        "parquet and persistence cannot both write to quiver_data/out",
        "persistence",
    ]
