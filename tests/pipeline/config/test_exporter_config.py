"""Settings of exporters: compression under two keys, the retry policy in two spellings."""

import pytest
from pydantic import ValidationError

from quiver.delivery.policy import RetryPolicy
from quiver.pipeline.config.exporter import OtapExporterConfig, OtlpExporterConfig, SparkExporterConfig

HERE = {"grpc_endpoint": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("config", "tables", "messages"),
    [
        ({}, "zstd", "none"),
        ({"arrow": {"payload_compression": "none"}}, "none", "none"),
        ({"payload_compression": "none"}, "none", "none"),
        ({"compression_method": "zstd", "arrow": {"payload_compression": "none"}}, "zstd", "none"),
        ({"compression_method": "gzip", "arrow": {"payload_compression": "none"}}, "none", "gzip"),
        ({"compression_method": "gzip"}, "zstd", "gzip"),
    ],
)
def test_otap_compression_has_two_levels(config, tables, messages):
    """`zstd`, under either key, compresses the tables in a batch; `gzip` compresses complete messages."""
    made = OtapExporterConfig(**HERE, **config)

    assert (made.otap().payload_compression, made.settings().compression_method) == (tables, messages)


@pytest.mark.parametrize(
    ("model", "config", "reason"),
    [
        (OtapExporterConfig, {"payload_compression": "none", "arrow": {"payload_compression": "zstd"}}, "keep one"),
        (OtlpExporterConfig, {"compression_method": "snappy"}, "'none', 'gzip' or 'zstd'"),
        (OtlpExporterConfig, {"initial_retry_interval": 1, "retry": {"initial_interval": 1}}, "keep one"),
        (OtlpExporterConfig, {"retry": {"max_attempts": 0}}, "max_attempts must be at least 1"),
        (OtlpExporterConfig, {"retry": {"jitter": 2}}, "jitter must be 0 to 1"),
        (OtlpExporterConfig, {"retry": {"on_exhausted": "forget"}}, "'halt', 'drop' or 'dead_letter'"),
        (OtlpExporterConfig, {"initial_retry_interval": 60}, "not above max_retry_interval|first_s <= cap_s"),
    ],
)
def test_contradicting_settings_are_refused(model, config, reason):
    """When the file is read, not when the first request fails."""
    with pytest.raises(ValidationError, match=reason):
        model(**HERE, **config)


def test_the_retry_policy_has_two_spellings():
    """Flat, as in other versions of the exporters, and under `retry`."""
    flat = {"initial_retry_interval": "2s", "max_retry_interval": "9s", "retry_multiplier": 3}
    nested = {"retry": {"initial_interval": "2s", "max_interval": "9s", "multiplier": 3}}

    assert OtlpExporterConfig(**HERE, **flat).policy() == OtlpExporterConfig(**HERE, **nested).policy()
    assert OtlpExporterConfig(**HERE).policy() == RetryPolicy()


def test_options_for_spark_are_strings():
    """Numbers and booleans of the YAML are written as Spark reads them."""
    config = SparkExporterConfig.model_validate(
        {"format": "csv", "path": "out", "options": {"header": True, "sep": ";", "maxColumns": 5}}
    )

    assert dict(config.settings().options) == {"header": "true", "sep": ";", "maxColumns": "5"}


def test_an_option_without_a_value_is_refused():
    """Spark would receive the string None."""
    with pytest.raises(ValidationError, match="topic has no value; write an empty string in quotes"):
        SparkExporterConfig.model_validate({"format": "kafka", "options": {"topic": None}})


def test_passwords_in_addresses_are_not_shown():
    """Destinations are printed before the start and logged at each start, without credentials."""
    config = SparkExporterConfig.model_validate(
        {"format": "json", "path": "s3a://KEY:hidden@bucket/{table}", "options": {"password": "hidden"}}
    )
    assert config.destination == "json s3a://…@bucket/{table}"
    assert config.settings().path == "s3a://KEY:hidden@bucket/{table}"
    for key, address in (("grpc_endpoint", "user:hidden@far:1"), ("http_endpoint", "http://user:hidden@far:1")):
        with pytest.raises(ValidationError) as caught:
            OtlpExporterConfig(**{key: address})
        assert "hidden" not in caught.value.errors()[0]["msg"]
