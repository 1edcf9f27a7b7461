"""The config of what listens for QWP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from quiver.errors import SettingsError
from quiver.pipeline.config.formatting import duration_words, size_words
from quiver.pipeline.config.receiver import RECEIVING_BYTES_MIN, ReceiverConfig
from quiver.pipeline.config.receiver_place import Receiver, ReceiverPlace
from quiver.pipeline.config.values import Address, Config, Duration, Size
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
    `urn:quiver:qwp:receiver`: tables of QuestDB clients, over WebSocket.

    Attributes:
        listening_addr: where.
        ack: `synced` answers OK after a group fsync, `logged` when the rows are in the log.
        dedupe_window: rows that a client sends again on its next connection are not stored again, when it connects
            within this time after its former connection ended. However late when left out; 0 is off.
        dedupe_bytes: of each connection so many bytes of rows are remembered for that.
        max_request_bytes: the most a message may take; clients are told.
        max_table_bytes: the most that the tables of one message may take in memory.
        max_dictionary_bytes: the most that the symbols of all connections may take together.
        max_connections: connections that may be open at once.
        keepalive: how long connections live.
        request_timeout: how long a client may take to send a message.
        handshake_timeout: how long a new client may take for its handshake.
        durable: what a durable acknowledgement waits for: that a segment is `sealed`, or that the object `tier` has it.
        durable_timeout: how long a client waits for a durable acknowledgement before the open segment is sealed for it.
        listening_cores: of several cores the `first` listens, and recognises whatever a client sends again; or `all`
            do, which takes more rows, and a client that comes back to another core may have rows stored twice.
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
        """Refuse what contradicts itself, and an address that strangers can reach."""
        try:
            self.settings(self.listening_addr)
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @property
    def addresses(self) -> dict[str, str]:
        """Where it listens, by protocol."""
        return {"qwp": self.listening_addr}

    def settings_at(self, place: ReceiverPlace) -> dict[str, Any]:
        """
        Return the settings of the port as they are at *place*; nothing where another core listens.

        What a client may send again is known to the core that stored it. So of several cores one listens, unless all of
        them are to.

        Raises:
            SettingsError: two of the settings contradict each other.
        """
        if place.cores is not None and self.listening_cores == "first":
            if place.core != 0:
                return {}
            place = replace(place, cores=None)  # it shares the port with no other process
        return super().settings_at(place)

    def receivers(self, place: ReceiverPlace) -> Iterator[Receiver]:
        """Yield what listens, not yet started."""
        from quiver.receivers.qwp.receiver import QwpReceiver  # noqa: PLC0415 - an extra; only what is configured

        for settings in self.settings_at(place).values():
            yield QwpReceiver(place.store, settings, observer=place.observer)

    def told(self) -> dict[str, Any]:
        """Return what it does, for people."""
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
