"""docs/howto/delivery.md: its pipeline file is valid, and the page lists every key and value."""

import re
from pathlib import Path
from typing import get_args

from quiver.delivery.policy import OnExhausted, RetryPolicy
from quiver.pipeline.config.exporter import DeadLettersConfig, RetryConfig
from quiver.pipeline.processes.child import read_pipeline

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "delivery.md"


def test_the_page_lists_every_key_with_its_default(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    path = tmp_path / "pipeline.yaml"
    path.write_text(re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0], encoding="utf-8")
    ((name, config),) = read_pipeline(path, [], {}).forwarders
    policy = config.policy()
    assert (name, policy.max_elapsed_s, policy.on_exhausted) == ("otlp_exporter", 21_600.0, "dead_letter")

    rows = re.findall(r"^\| `(\w+)` \| ?(?:`([\w.]+)`)? ?\|", text, re.MULTILINE)
    for config in (RetryConfig, DeadLettersConfig):
        assert {key for key, _ in rows if key in config.model_fields} == set(config.model_fields)
    words = re.findall(r"^\| `(\w+)` \| (?:is kept|leaves|stays)", text, re.MULTILINE)
    assert sorted(words) == sorted(get_args(OnExhausted))
    default = RetryPolicy()
    reported = dict(rows)
    assert (reported["initial_interval"], reported["max_interval"]) == (
        f"{default.initial_interval_s:g}s",
        f"{default.max_interval_s:g}s",
    )
    assert (reported["multiplier"], reported["jitter"]) == (f"{default.multiplier:g}", f"{default.jitter:g}")
    assert (reported["on_exhausted"], reported["max_attempts"], reported["max_elapsed"]) == (
        default.on_exhausted,
        "",
        "",
    )
