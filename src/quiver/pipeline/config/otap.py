"""The config of the OTAP receiver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import Field

from quiver.errors import SettingsError
from quiver.pipeline.config.receiver import OtlpReceiverConfig
from quiver.pipeline.config.receiver_place import Receiver
from quiver.pipeline.config.values import Duration, Size
from quiver.receivers.otap.settings import OtapSettings
from quiver.settings import MIB

__all__ = ["OtapReceiverConfig"]


class OtapReceiverConfig(OtlpReceiverConfig):
    """
    `urn:otel:otap:receiver`: receives OTAP streams and OTLP requests. Also accepts the keys of
    `urn:otel:otlp:receiver`.

    Attributes:
        max_streams: the maximum number of open streams.
        max_batches_in_flight: the maximum number of batches of a stream that wait for their status.
        stream_idle_timeout: a stream without a batch for this long is closed.
        max_dictionary_bytes: the maximum size of the dictionaries of all streams together.
        max_stream_dictionary_bytes: the maximum size of the dictionaries of one stream.
        max_inflated_bytes: the maximum size of the tables of one batch.
    """

    max_streams: Annotated[int, Field(ge=1, le=100_000)] = 256
    max_batches_in_flight: Annotated[int, Field(ge=1, le=10_000)] = 16
    stream_idle_timeout: Duration = 600.0
    max_dictionary_bytes: Size = 256 * MIB
    max_stream_dictionary_bytes: Size = 64 * MIB
    max_inflated_bytes: Size = 128 * MIB

    _speaks: ClassVar[str] = "OTAP and OTLP"

    def model_post_init(self, context: Any, /) -> None:
        """Apply the checks of the OTLP receiver, require gRPC, and refuse limits that contradict each other."""
        super().model_post_init(context)
        if self.grpc_address is None:
            raise ValueError("OTAP needs gRPC; give listening_addr or protocols.grpc")
        try:
            self.otap()
        except SettingsError as error:
            raise ValueError(str(error)) from error

    def otap(self) -> OtapSettings:
        """
        Return the limits of streams.

        Raises:
            SettingsError: two of them contradict each other.
        """
        return OtapSettings(
            streams_max=self.max_streams,
            batches_in_flight_max=self.max_batches_in_flight,
            stream_idle_s=self.stream_idle_timeout,
            dictionaries_bytes_max=self.max_dictionary_bytes,
            tables_bytes_max=max(256 * MIB, self.max_inflated_bytes),
            message_bytes_max=self.max_decompressed_bytes,
            inflated_bytes_max=self.max_inflated_bytes,
            stream_dictionaries_bytes_max=self.max_stream_dictionary_bytes,
        )

    def _over_grpc(self) -> Callable[..., Receiver]:
        from quiver.receivers.otap.receiver import OtapGrpcReceiver  # noqa: PLC0415 - an extra; only what is configured

        return partial(OtapGrpcReceiver, otap=self.otap())
