"""A Kafka broker on loopback, from the jars that `make build/kafka/.ready` fetches."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ports import free_ports
from quiver.spark.java import find_java_home

KAFKA = Path(__file__).parents[1] / "build" / "kafka"

SETTINGS = """\
node.id=1
process.roles=broker,controller
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
num.partitions=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
"""


class KafkaBroker:
    """One broker that is its own controller. A killed one can be started again on the same port with its data."""

    def __init__(self, directory: Path) -> None:
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._settings = directory / "server.properties"
        self._settings.write_text(SETTINGS.format(port=port, controller=controller, directory=directory))
        java = str(Path(find_java_home(), "bin", "java"))
        self._java = [java, "-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{KAFKA / 'broker'}/*"]
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "broker.log"
        identity = ["--cluster-id", "MkU3OEVBNTcwNTJENDM2Qg"]
        self._run("kafka.tools.StorageTool", "format", "--standalone", *identity, "--config", str(self._settings))

    def _run(self, *words: str) -> None:
        subprocess.run([*self._java, *words], check=True, capture_output=True)

    def start(self) -> None:
        """Start the broker. Clients wait for it: they retry until it answers."""
        with self._log.open("ab") as log:
            command = [*self._java, "kafka.Kafka", str(self._settings)]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def kafka_broker(directory: Path) -> Iterator[KafkaBroker]:
    """Yield a running broker with its data in *directory*, and kill it afterwards."""
    broker = KafkaBroker(directory)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
