"""
The status page in a real Chromium: hostile text stays text, nothing is loaded from elsewhere, 400 pixels are enough.

Screenshots are in the directory of the test, and in $SCREENSHOTS if it is set.
"""

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import quiver
from quiver.bundle import BundleRef
from quiver.delivery.dead_letters import DeadLetters

pytestmark = pytest.mark.browser

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"&lt;'
TOKEN = "the-token"
LONG = "WAREHOUSE-" * 6 + "WWWW"
"""The longest name of an exporter, of wide letters."""

OUTSIDE_OF_THEIR_BOX = """() => [...document.querySelectorAll("svg.graph g text")].filter(text => {
  const box = text.parentNode.querySelector("rect").getBoundingClientRect(), own = text.getBoundingClientRect();
  return own.left < box.left || own.right > box.right;
}).map(text => text.textContent)"""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert path is not None, "install Chromium, or set CHROMIUM to its path"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


class _Metrics(http.server.BaseHTTPRequestHandler):
    """The metrics port of a pipeline: each answer has received more."""

    asked = 0

    def do_GET(self):
        type(self).asked += 1
        lines = []
        for name, records, size in (("otlp", 123_400, 45_000_000), (HOSTILE, 7, 900)):
            escaped = name.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'quiver_receiver_items_total{{receiver="{escaped}",signal="logs"}} {records * self.asked}')
            lines.append(f'quiver_receiver_bytes_total{{receiver="{escaped}",signal="logs"}} {size * self.asked}')
        self.send_response(200)
        self.end_headers()
        self.wfile.write(("\n".join(lines) + "\n").encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def metrics():
    with http.server.HTTPServer(("127.0.0.1", 0), _Metrics) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def served(tmp_path_factory, metrics):
    """Yield the URL of a page whose directory, reasons, errors and events are hostile."""
    root = tmp_path_factory.mktemp("page")
    directory = root / HOSTILE.replace("/", "")
    settings = quiver.Settings(segment_bytes_max=2000)
    with quiver.open(directory, settings, background=False) as store:
        reader = store.register("lake", start="earliest")
        store.register("out", start="earliest")
        store.register(LONG, start="earliest")
        for n in range(6):
            store.ingest(bundle(n))
            store.seal()
        reader.next_bundle(timeout=0).ack()
        store.maintain()
    for exporter, letters in (("out", 3), (LONG, 1)):
        with DeadLetters(str(directory), exporter, background=False) as dead_letters:
            for index in range(letters):
                dead_letters.add(BundleRef(2, index), bundle(index), reason=HOSTILE, attempts=1)
    run_dir = directory.with_name(f"{directory.name}.run")
    run_dir.mkdir()
    graph = {
        "nodes": [
            {"name": "otlp", "kind": "receiver", "note": HOSTILE},
            {"name": HOSTILE, "kind": "receiver", "note": "otap"},
            {"name": "buffer", "kind": "buffer", "note": str(directory)},
            *({"name": name, "kind": "exporter", "note": "otlp"} for name in ("lake", "out", LONG)),
        ],
        "edges": [["otlp", "buffer"], [HOSTILE, "buffer"], ["buffer", "lake"], ["buffer", "out"], ["buffer", LONG]],
    }
    children = {HOSTILE: {"pid": 1, "state": HOSTILE, "starts": 2, "last_exit": HOSTILE}}
    events = [{"at_ns": 1_700_000_000_000_000_000, "what": HOSTILE}]
    state = {"pipeline": HOSTILE, "state": "running", "children": children, "graph": graph, "events": events}
    state["metrics"] = f"127.0.0.1:{metrics.server_port}"
    (run_dir / "state.json").write_text(json.dumps(state))
    (root / "tokens").write_text(TOKEN)
    argv = [sys.executable, "-m", "quiver", "status", str(directory), "--listen", "127.0.0.1:0"]
    argv += ["--token-file", str(root / "tokens"), "--stop-with-stdin"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().rpartition(" at ")[2].split(" ")[0]
        process.stdin.close()
        process.wait(20)


def bundle(first):
    import pyarrow as pa

    return quiver.Bundle({"logs": pa.record_batch({"n": range(first, first + 20), "s": [HOSTILE] * 20})})


class Shown:
    """The page in a browser: requests, messages of the console, and errors are recorded."""

    def __init__(self, browser, url, width, scheme):
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.requested, self.complaints = [], []
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.on("console", self.heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(url)
        self.page.wait_for_selector("#figures .figure")

    def heard(self, message):
        """Record errors, such as what the policy refuses, but not the answer to a wrong token."""
        if message.type == "error" and "401" not in message.text:
            self.complaints.append(message.text)


@pytest.fixture
def show(browser, served):
    """Return a function that opens the page, and check at the end that nothing hostile ran."""
    opened = []

    def open_page(width=1280, scheme="light"):
        opened.append(Shown(browser, served, width, scheme))
        return opened[-1]

    yield open_page
    for one in opened:
        assert one.page.evaluate("window.hacked") is None
        assert one.complaints == []
        assert all(url.startswith((served, "data:")) for url in one.requested)
        one.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_and_shows_hostile_text_as_text(show, tmp_path, width, scheme):
    """Nothing is cut off at the side, names stay in their boxes, and the colors follow the system."""
    page = show(width, scheme).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    text = page.inner_text("body")
    assert text.count("<script>window.hacked=1</script>") >= 4
    assert page.query_selector("img") is None
    assert page.locator("svg.graph g.buffer").count() == 1
    assert page.locator("svg.graph g.exporter").count() == 3
    assert page.evaluate(OUTSIDE_OF_THEIR_BOX) == []
    assert page.locator("svg.graph title", has_text=LONG).count() == 1
    long_name = page.locator("svg.graph g.exporter text", has_text="WAREHOUSE").text_content()
    assert long_name.endswith("…")
    assert LONG.startswith(long_name.removesuffix("…"))
    page.locator("#receivers tbody td", has_text="/s").nth(1).wait_for()  # rates need two readings
    rows = [row.inner_text() for row in page.locator("#receivers tbody tr").all()]
    assert [HOSTILE in row for row in rows] == [False, True]
    assert all("/s" in row for row in rows)
    assert "records/s" in page.locator("svg.graph g.receiver").first.text_content()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(","))) < 384) == (scheme == "dark")
    name = f"status-{scheme}-{width}.png"
    page.screenshot(path=str(tmp_path / name), full_page=True)
    if os.environ.get("SCREENSHOTS"):
        shutil.copy(tmp_path / name, Path(os.environ["SCREENSHOTS"]) / name)


def test_dead_letters_are_shown_and_dropped_with_the_token(show):
    """A wrong token changes nothing, and is reported."""
    page = show().page
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="out (3)").click()
    page.get_by_role("button", name="show 2:1").click()
    page.wait_for_selector("#letters pre")
    page.get_by_label("choose 2:1").check()
    page.get_by_label("token").fill("wrong")
    page.get_by_role("button", name="drop 1").click()
    page.wait_for_selector("text=this needs a valid token")
    page.get_by_label("token").fill(TOKEN)
    page.get_by_role("button", name="drop 1").click()
    page.wait_for_selector("text=1 dropped")
    assert page.locator("#letters tbody tr").count() == 2


def test_a_poll_keeps_what_was_typed(show):
    """The token and the chosen dead letters stay while the figures change."""
    page = show().page
    page.get_by_role("button", name="out (").click()
    page.get_by_label("choose 2:2").check()
    page.get_by_label("token").fill("half a tok")
    with page.expect_response(lambda answer: answer.url.endswith("/api/status")):
        pass
    assert page.get_by_label("token").input_value() == "half a tok"
    assert page.get_by_label("choose 2:2").is_checked()
