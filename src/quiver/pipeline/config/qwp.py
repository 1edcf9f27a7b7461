"""The config of the QWP receiver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from quiver.errors import SettingsError
from quiver.pipeline.config.base import Config
from quiver.pipeline.config.formatting import duration_words, size_words
from quiver.pipeline.config.receiver import RECEIVING_BYTES_MIN, ReceiverConfig
from quiver.pipeline.config.receiver_place import Receiver, ReceiverPlace
from quiver.pipeline.config.values import Address, Duration, Size
from quiver.receivers.qwp.settings import Durable, QwpSettings
from quiver.receivers.settings import KeepaliveSettings, split_address
from quiver.settings import MIB

__all__ = ["QwpReceiverConfig"]


class _Keepalive(Config):
    max_connection_idle: Duration | None = None
    max_connection_age: Duration | None = None
    max_connection_age_grace: Duration | None = None
    ping_interval: Duration = 120.0
    ping_timeout: Duration = 20.0

    def settings(self) -> KeepaliveSettings:
        return KeepaliveSettings(**{f"{name}_s": value for name, value in self.model_dump().items()})


class QwpReceiverConfig(ReceiverConfig):
    """
    `urn:quiver:qwp:receiver`: receives tables from QuestDB clients over WebSocket.

    Attributes:
        listening_addr: the address of the port.
        ack: `synced` answers OK after a group fsync, `logged` when the rows are in the log.
        dedupe_window: rows that a client repeats on its next connection are not stored again if it reconnects within
            this time. Unlimited by default; 0 disables it.
        dedupe_bytes: how many bytes of rows are remembered per connection for that.
        max_request_bytes: the maximum size of a message; it is announced to clients.
        max_table_bytes: the maximum size of the tables of one message in memory.
        max_dictionary_bytes: the maximum size of the symbols of all connections together.
        max_connections: the maximum number of open connections.
        keepalive: lifetime limits of connections.
        request_timeout: the time limit for a client to send a message.
        handshake_timeout: the time limit for the handshake of a new client.
        durable: what a durable acknowledgement waits for: `sealed` for the segment, `tier` for the object tier.
        durable_timeout: how long a client waits for a durable acknowledgement before the open segment is sealed for it.
        listening_cores: `first` listens in one core, which recognizes everything that a client repeats. `all` listens
            in every core, which is faster; a client that reconnects to another core may have rows stored twice.
    """

    listening_addr: Address
    ack: Literal["synced", "logged"] = "synced"
    dedupe_window: Duration | None = None
    dedupe_bytes: Size = 10 << 30
    max_request_bytes: Size = 16 * MIB
    max_table_bytes: Size = 128 * MIB
    max_dictionary_bytes: Size = 256 * MIB
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    keepalive: _Keepalive = _Keepalive()
    request_timeout: Duration = 30.0
    handshake_timeout: Duration = 10.0
    durable: Durable = "sealed"
    durable_timeout: Duration = 5.0
    listening_cores: Literal["first", "all"] = "first"

    def model_post_init(self, _context: Any, /) -> None:
        """Refuse settings that contradict each other, and an exposed address without `tls`, `auth` or `insecure`."""
        try:
            self.settings(self.listening_addr)
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each protocol."""
        return {"qwp": self.listening_addr}

    def settings_at(self, place: ReceiverPlace) -> dict[str, Any]:
        """
        Return the settings of the port, adapted to *place*; empty if another core listens.

        Only the core that stored rows recognizes them when a client repeats them. So one core listens, unless
        `listening_cores` is `all`.

        Raises:
            SettingsError: two of the settings contradict each other.
        """
        if place.cores is not None and self.listening_cores == "first":
            if place.core != 0:
                return {}
            place = replace(place, cores=None)  # no other process shares the port
        return super().settings_at(place)

    def receivers(self, place: ReceiverPlace) -> Iterator[Receiver]:
        """Yield the receiver, not started yet, if this core listens."""
        from quiver.receivers.qwp.receiver import QwpReceiver  # noqa: PLC0415 - an extra; only what is configured

        for settings in self.settings_at(place).values():
            yield QwpReceiver(place.store, settings, observer=place.observer)

    def describe(self) -> dict[str, Any]:
        """Describe the receiver."""
        return {
            "qwp": self.listening_addr,
            "speaks": "QWP",
            "security": self.security_words(split_address(self.listening_addr)[0]),
            "ack": self.ack,
            "stores": "tables by name, in slot 50",
            "request_at_most": size_words(self.max_request_bytes),
            "recognises_repeats_for": self._repeats_words(),
            "of_several_cores": "the first listens" if self.listening_cores == "first" else "all listen",
        }

    def _repeats_words(self) -> str | None:
        if self.dedupe_window == 0:
            return None
        words = f"{size_words(self.dedupe_bytes)} a connection"
        return words if self.dedupe_window is None else f"{duration_words(self.dedupe_window)}, {words}"

    def settings(self, address: str) -> QwpSettings:
        """
        Return the settings of the receiver that listens on *address*.

        Raises:
            SettingsError: two of the settings contradict each other.
        """
        return QwpSettings(
            listening_addr=address,
            max_request_bytes=self.max_request_bytes,
            tables_bytes_max=self.max_table_bytes,
            ack=self.ack,
            dedupe_window_s=self.dedupe_window,
            dedupe_bytes_max=self.dedupe_bytes,
            receiving_bytes_max=max(RECEIVING_BYTES_MIN, self.max_request_bytes),
            dictionaries_bytes_max=self.max_dictionary_bytes,
            body_timeout_s=self.request_timeout,
            head_timeout_s=self.handshake_timeout,
            durable=self.durable,
            durable_wait_s=self.durable_timeout,
            connections_max=self.max_connections,
            security=self.security,
            keepalive=self.keepalive.settings(),
        )
