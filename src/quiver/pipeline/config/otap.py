"""The config of the OTAP receiver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from pydantic import Field

from quiver.pipeline.config.base import default_of, settings_keys
from quiver.pipeline.config.receiver import OtlpReceiverConfig
from quiver.pipeline.config.receiver_place import Receiver
from quiver.receivers.otap.settings import OtapSettings
from quiver.receivers.settings import OtlpSettings

__all__ = ["OtapReceiverConfig"]


@settings_keys(
    OtapSettings,
    max_streams="streams_max",
    max_batches_in_flight="batches_in_flight_max",
    stream_idle_timeout="stream_idle_s",
    max_dictionary_bytes="dictionaries_bytes_max",
    max_stream_dictionary_bytes="stream_dictionaries_bytes_max",
    max_inflated_bytes="inflated_bytes_max",
    types={"max_streams": Field(ge=1, le=100_000), "max_batches_in_flight": Field(ge=1, le=10_000)},
)
class OtapReceiverConfig(OtlpReceiverConfig):
    """
    `urn:otel:otap:receiver`: receives OTAP streams and OTLP requests. Also accepts the keys of
    `urn:otel:otlp:receiver`.
    """

    _speaks: ClassVar[str] = "OTAP and OTLP"

    def check(self) -> None:
        """Apply the checks of the OTLP receiver, require gRPC, and refuse limits that contradict each other."""
        super().check()
        if self.grpc_address is None:
            raise ValueError("OTAP needs gRPC; give listening_addr or protocols.grpc")
        self.otap()

    def otap(self) -> OtapSettings:
        """
        Return the limits of streams.

        Raises:
            SettingsError: two of them contradict each other.
        """
        inflated_bytes = self.values_for(OtapSettings)["inflated_bytes_max"]
        return self.build(
            OtapSettings,
            message_bytes_max=self.values_for(OtlpSettings)["max_decompressed_bytes"],
            tables_bytes_max=max(default_of(OtapSettings, "tables_bytes_max"), inflated_bytes),
        )

    def _over_grpc(self) -> Callable[..., Receiver]:
        from quiver.receivers.otap.receiver import OtapGrpcReceiver  # noqa: PLC0415 - an extra; only what is configured

        return partial(OtapGrpcReceiver, otap=self.otap())
