"""The files in deploy/ fit the program: metrics, pipeline files, units and manifests."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

import quiver
from quiver.metrics import LOG_METRICS, METRICS
from quiver.pipeline.exporter_figures import ExporterFigures
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.metrics_endpoint import MetricsEndpoint
from quiver.store.opening import open_store

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROMTOOL = ROOT / "build" / "bin" / "promtool"
SCHEMAS = ROOT / "build" / "kubernetes"


@pytest.fixture(scope="module")
def scrape(tmp_path_factory):
    """Return the text of a real scrape in which every metric has a value."""
    endpoint = MetricsEndpoint("127.0.0.1:0")
    for metric in (*METRICS, *LOG_METRICS):
        if metric.kind == "counter" and metric.read is None:
            endpoint.observer.count(metric.name, **dict.fromkeys(metric.attributes, "x"))
        elif metric.kind == "histogram":
            endpoint.observer.record(metric.name, 0.1, **dict.fromkeys(metric.attributes, "x"))
    settings = quiver.Settings(size_cap_bytes=1 << 30)
    directory = tmp_path_factory.mktemp("scrape") / "store"
    with open_store(directory, settings, observer=endpoint.observer, background=False) as store:
        figures = ExporterFigures(lambda: {"remote": [store]})
        endpoint.start()
        endpoint.observe(store)
        endpoint.observe_exporters(figures)
        store.register("remote", start="earliest")
        store.ingest(quiver.Bundle({30: pa.record_batch({"x": [1, 2]})}), durable=True)
        store.seal()
        with urllib.request.urlopen(f"http://{endpoint.address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    endpoint.stop()
    return text


def names_in(text):
    return {match[0] for match in re.finditer(r"\bquiver_[a-z0-9_]+", text)}


def expressions():
    """Yield the place and the text of every expression of the dashboard and the alerts."""
    dashboard = json.loads((DEPLOY / "grafana" / "quiver.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "quiver.alerts.yaml").read_text())
    for group in alerts["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def test_every_name_is_in_a_scrape(scrape):
    """A renamed metric must not leave a panel empty, or an alert silent."""
    samples = {re.split(r"[{ ]", line)[0] for line in scrape.splitlines() if line and not line.startswith("#")}
    used = {name: place for place, text in expressions() for name in names_in(text)}
    assert len(used) > 30
    assert {name: place for name, place in used.items() if name not in samples} == {}


def test_every_label_is_in_a_scrape(scrape):
    """The labels by which expressions group and match; Prometheus adds `instance` and `job`."""
    for place, text in expressions():
        labels = {label for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", text) for label in re.split(r", ?", group)}
        labels |= set(re.findall(r"[{,] ?([a-z_]+)=", text))
        for name in names_in(text):
            lines = [line for line in scrape.splitlines() if re.match(rf"{name}(_bucket)?[{{ ]", line)]
            known = {label for line in lines for label in re.findall(r"[{,]([a-z_]+)=", line)} | {"instance", "job"}
            assert labels <= known, (place, name)


def test_all_metrics_have_one_prefix(scrape):
    """So that one expression finds all metrics of a program."""
    assert {line.split("_")[0] for line in scrape.splitlines() if not line.startswith("#")} == {"quiver"}


def test_panels_have_titles_descriptions_and_places():
    dashboard = json.loads((DEPLOY / "grafana" / "quiver.json").read_text())
    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in dashboard["panels"]]
    assert len(set(places)) == len(places)
    assert all(one["title"] and one["description"] for one in dashboard["panels"])
    assert all(one["gridPos"]["x"] + one["gridPos"]["w"] <= 24 for one in dashboard["panels"])


def documents():
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "quiver.yaml").read_text()))


def test_pipeline_files_are_valid():
    """Of the image and of the ConfigMap; their ports are those of the container."""
    (config,) = [one for one in documents() if one["kind"] == "ConfigMap"]
    for text in ((DEPLOY / "container" / "pipeline.yaml").read_text(), config["data"]["pipeline.yaml"]):
        pipeline, _ = load_pipeline(text, source="pipeline.yaml", values={})
        ports = {address.split(":")[1] for _, one in pipeline.receivers for address in one.addresses.values()}
        assert ports | {pipeline.metrics.listen.split(":")[1]} == {"4317", "4318", "9464"}
        assert pipeline.persistence.path == "/var/lib/quiver/buffer"


def test_manifests_fit_together():
    """Ports by name, the volume, the user of the image, and a grace period that is longer than the drain time."""
    by_kind = {one["kind"]: one for one in documents()}
    pod = by_kind["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    for service in (one for one in documents() if one["kind"] == "Service"):
        assert {one["targetPort"] for one in service["spec"]["ports"]} <= set(ports)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    mounts = {one["name"] for one in container["volumeMounts"]}
    claims = {one["metadata"]["name"] for one in by_kind["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert mounts == claims | {one["name"] for one in pod["volumes"]}
    (drain,) = [
        int(one.removeprefix("--drain=").rstrip("s")) for one in container["args"] if one.startswith("--drain=")
    ]
    assert pod["terminationGracePeriodSeconds"] >= drain + 12 + 5
    image = (DEPLOY / "container" / "Containerfile").read_text()
    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" in image


def test_the_image_has_no_root():
    """The last user of the file is not root, and the files that it copies exist."""
    text = (DEPLOY / "container" / "Containerfile").read_text()
    users = re.findall(r"^USER (\S+)", text, flags=re.MULTILINE)
    assert users
    assert users[-1].split(":")[0] not in {"root", "0"}
    for source in re.findall(r"^COPY (deploy/\S+|requirements.lock)", text, flags=re.MULTILINE):
        assert (ROOT / source).exists()


def test_the_image_installs_the_tested_versions(tmp_path):
    """With the lock file as constraints, in which pip accepts no hashes."""
    (script,) = re.findall(
        r"sed '([^']*)' /tmp/requirements.lock", (DEPLOY / "container" / "Containerfile").read_text()
    )
    argv = ["sed", script, str(ROOT / "requirements.lock")]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 50
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^ \\]+( ; .*[^\\])?", line) for line in pins)


@pytest.mark.parametrize("file", ["systemd/quiver.service", "container/Containerfile", "kubernetes/quiver.yaml"])
def test_options_of_commands_exist(file):
    """Each option of `quiver run` that a file uses."""
    from typer.testing import CliRunner

    from quiver.cli.main import build_app

    shown = CliRunner().invoke(build_app(), ["run", "--help"]).output
    text = (DEPLOY / file).read_text()
    used = {
        one
        for one in re.findall(r"--[a-z-]+", text)
        if one in {"--foreground", "--log-format", "--run-dir", "--drain", "--set"}
    }
    assert used
    assert all(option in shown for option in used)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_valid(tmp_path):
    """With a program at the path of the unit."""
    program = tmp_path / "quiver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "quiver.service"
    unit.write_text((DEPLOY / "systemd" / "quiver.service").read_text().replace("/opt/quiver/bin/quiver", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ── with tools that `make test-deploy` installs ──────────────────────────────────────────────────────


def promtool(*arguments, **options):
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False, **options)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.deploy
def test_promtool_accepts_the_metrics(scrape):
    assert promtool("check", "metrics", input=scrape) == (0, "")


@pytest.mark.deploy
def test_promtool_accepts_the_alerts():
    code, output = promtool("check", "rules", "quiver.alerts.yaml", cwd=DEPLOY / "prometheus")
    assert code == 0, output


@pytest.mark.deploy
def test_alerts_fire_when_they_should():
    """The tests are next to the alerts; each alert has one."""
    code, output = promtool("test", "rules", "quiver.alerts.test.yaml", cwd=DEPLOY / "prometheus")
    assert code == 0, output
    tests = (DEPLOY / "prometheus" / "quiver.alerts.test.yaml").read_text()
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "quiver.alerts.yaml").read_text())
    assert [
        rule["alert"] for rule in alerts["groups"][0]["rules"] if f"alertname: {rule['alert']}\n" not in tests
    ] == []


@pytest.mark.deploy
@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_manifests_fit_the_schemas_of_kubernetes(version):
    """Without unknown keys, in an older and the newest version."""
    code = (
        "import sys, yaml, kubernetes_validate\n"
        "for one in yaml.safe_load_all(open(sys.argv[1])):\n"
        "    kubernetes_validate.validate(one, sys.argv[2], strict=True)\n"
    )
    argv = [sys.executable, "-c", code, str(DEPLOY / "kubernetes" / "quiver.yaml"), version]
    environment = os.environ | {"PYTHONPATH": str(SCHEMAS)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
