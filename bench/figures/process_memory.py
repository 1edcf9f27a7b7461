"""
The memory of the processes of `quiver run` without Spark, when the pipeline is ready: with a supervisor, and alone.

Resident memory includes pages that processes share, such as those of libraries; proportional memory divides them among
the processes. Start: `PYTHONPATH=bench python bench/figures/process_memory.py`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from quiver.clock import SYSTEM_CLOCK

_FILE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {{out_port: {{destinations: [buffer]}}}}
    config: {{protocols: {{http: {{listening_addr: "127.0.0.1:{port}"}}}}}}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {{out_port: {{destinations: [out]}}}}
    config: {{path: "{directory}/buffer"}}
  out:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config: {{grpc_endpoint: "http://127.0.0.1:1"}}
"""
_MIB = 1024


def main() -> None:
    for name, options in (("with a supervisor", []), ("--foreground", ["--foreground"])):
        with tempfile.TemporaryDirectory() as directory:
            processes = measure(directory, options)
        for process, (resident, proportional) in processes.items():
            print(f"{name}: {process}: {resident / _MIB:.0f} MiB resident, {proportional / _MIB:.0f} MiB proportional")
        total = sum(proportional for _, proportional in processes.values())
        print(f"{name}: {total / _MIB:.0f} MiB in all")


def measure(directory: str, options: list[str]) -> dict[str, tuple[int, int]]:
    """Return process → resident and proportional memory in KiB of a pipeline that is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = Path(directory) / "pipeline.yaml"
    file.write_text(_FILE.format(port=port, directory=directory))
    argv = [sys.executable, "-m", "quiver.cli.main", "run", str(file), "--run-dir", f"{directory}/run", *options]
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(f"{directory}/notify")
    manager.settimeout(60)
    environment = os.environ | {"NOTIFY_SOCKET": f"{directory}/notify"}
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )
    try:
        while "READY=1" not in manager.recv(4096).decode():
            pass
        settled = threading.Condition()
        with settled:
            SYSTEM_CLOCK.wait(settled, 2.0)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return {"main process": _memory(process.pid)} | {
            f"child {n}": _memory(int(pid)) for n, pid in enumerate(children)
        }
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
        manager.close()


def _memory(pid: int) -> tuple[int, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    values = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return values["Rss"], values["Pss"]


if __name__ == "__main__":
    main()
