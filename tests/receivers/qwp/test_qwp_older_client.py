"""The official client 5.0, in a separate process, while the other tests use the newer one."""

import json
import subprocess
import sys

import pytest
from qwp_clients import LossyProxy

import quiver
from quiver.bundle import QWP_SLOT, QWP_TABLE_KEY
from quiver.cli.main import build_app
from quiver.qwp import Sender
from quiver.receivers.qwp.receiver import QwpReceiver, QwpSettings

pytestmark = pytest.mark.slow

PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
from questdb.ingress import Sender, TimestampNanos
import pandas as pd
conf, rows, frame, copies, pooled = json.loads(sys.argv[1])
if pooled:
    import questdb
    with questdb.connect(conf) as database:
        with database.sender() as sender:
            for n in range(rows):
                sender.row("t", columns={"v": n}, at=TimestampNanos(10 + n))
        try:
            database.query("SELECT 1").to_pandas()
        except questdb.QuestDBError as error:
            assert "answers no queries" in str(error), error
    sys.exit(0)
others = [Sender.from_conf(conf) for _ in range(copies - 1)]
for other in others:
    other.establish()
    for n in range(rows):
        other.row("t", symbols={"s": f"S{n % 7}"}, columns={"v": n}, at=TimestampNanos(10 + n))
    other.flush()
with Sender.from_conf(conf) as sender:
    for n in range(rows):
        sender.row("t", symbols={"s": f"S{n % 7}"}, columns={"v": n}, at=TimestampNanos(10 + n))
        if n % 9 == 0:
            sender.flush()
    if frame:
        at = pd.date_range("2025", periods=frame, freq="s")
        sender.dataframe(pd.DataFrame({"n": range(frame), "at": at}), table_name="frame", at="at")
for other in others:
    other.close()
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Run the program with client 5.0 instead of the installed one."""
    target = tmp_path_factory.mktemp("questdb5")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), "questdb==5.0.0"]
    if subprocess.run(pip, capture_output=True, check=False, timeout=120).returncode:
        pytest.skip("client 5.0 cannot be installed here")

    def run(conf, rows=0, frame=0, copies=1, pooled=False):
        command = [sys.executable, "-c", PROGRAM, json.dumps([conf, rows, frame, copies, pooled])]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env={"PYTHONPATH": str(target)}
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture
def receiver(tmp_path):
    here = QwpSettings(listening_addr="127.0.0.1:0")
    with quiver.open(str(tmp_path / "buffer")) as store, QwpReceiver(store, here) as receiver:
        yield receiver


def values(receiver, table="t", column="v"):
    return sorted(
        value
        for _, bundle in quiver.read(receiver.intake.store.path).bundles()
        if bundle[QWP_SLOT].schema.metadata[QWP_TABLE_KEY].decode() == table
        for value in bundle[QWP_SLOT].column(column).to_pylist()
    )


def test_an_older_client_sends_rows_and_frames(client, receiver, tmp_path):
    """Its rows are sent through its slot."""
    client(f"ws::addr=127.0.0.1:{receiver.port};sf_dir={tmp_path}/sf;sender_id=a;", rows=50)
    client(f"ws::addr=127.0.0.1:{receiver.port};", frame=1000)

    assert values(receiver) == list(range(50))
    assert values(receiver, "frame", "n") == list(range(1000))


def test_equal_rows_of_several_clients_are_all_stored(client, receiver):
    """Concurrently, and one after the other."""
    for _ in range(2):
        client(f"ws::addr=127.0.0.1:{receiver.port};", rows=8, copies=3)

    assert values(receiver) == sorted([*range(8)] * 6)


def test_resent_rows_are_stored_once(client, receiver, tmp_path):
    """The client received no confirmation; its next process resends everything."""
    slot = f"sf_dir={tmp_path}/sf;sender_id=a;"
    with LossyProxy(receiver.port) as proxy:
        proxy.loses_answers_from = b"\x89"  # the first ping
        client(f"ws::addr=127.0.0.1:{proxy.port};close_flush_timeout_millis=0;{slot}", rows=30)
    client(f"ws::addr=127.0.0.1:{receiver.port};{slot}")

    assert values(receiver) == list(range(30))


def test_an_older_client_may_pool_its_connections(client, receiver, tmp_path):
    """Like the newer version."""
    for more in ("", f"sf_dir={tmp_path}/sf;sender_id=a;"):
        client(f"ws::addr=127.0.0.1:{receiver.port};{more}", rows=10, pooled=True)

    assert values(receiver) == sorted([*range(10)] * 2)


def test_an_older_client_drains_our_slot(client, receiver, tmp_path):
    """Frames of our sender are sent before its own."""
    nowhere = "ws::addr=127.0.0.1:1;initial_connect_retry=async;close_flush_timeout_millis=0;"
    with Sender.from_conf(f"{nowhere}sf_dir={tmp_path}/sf;sender_id=a;") as sender:
        for number in range(100, 120):
            sender.row("t", symbols={"s": f"S{number}"}, columns={"v": number}, at=number)
    client(f"ws::addr=127.0.0.1:{receiver.port};sf_dir={tmp_path}/sf;sender_id=a;", rows=5)

    assert values(receiver) == [*range(5), *range(100, 120)]


def test_our_sender_drains_a_slot_of_an_older_client(client, receiver, tmp_path):
    """Including the symbols that it stores next to its frames."""
    from typer.testing import CliRunner

    nowhere = "ws::addr=127.0.0.1:1;initial_connect_retry=async;close_flush_timeout_millis=0;"
    client(f"{nowhere}sf_dir={tmp_path}/sf;sender_id=a;", rows=50)
    conf = f"ws::addr=127.0.0.1:{receiver.port};"
    done = CliRunner().invoke(build_app(), ["qwp", "drain", f"{tmp_path}/sf", "--conf", conf])

    assert done.exit_code == 0, done.output
    assert values(receiver) == list(range(50))
