"""The config of the QWP receiver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from quiver.pipeline.config.base import default_of, settings_keys
from quiver.pipeline.config.receiver import KeepaliveConfig, ReceiverConfig
from quiver.pipeline.config.receiver_place import Receiver, ReceiverPlace
from quiver.pipeline.config.values import Address
from quiver.receivers.qwp.settings import QwpSettings
from quiver.receivers.settings import KeepaliveSettings, split_address

__all__ = ["QwpReceiverConfig"]


@settings_keys(
    QwpSettings,
    "max_request_bytes",
    "ack",
    "dedupe_window_s",
    "durable",
    max_table_bytes="tables_bytes_max",
    dedupe_bytes="dedupe_bytes_max",
    max_dictionary_bytes="dictionaries_bytes_max",
    request_timeout="body_timeout_s",
    handshake_timeout="head_timeout_s",
    durable_timeout="durable_wait_s",
    max_connections="connections_max",
    types={"max_connections": Field(ge=1, le=1_000_000)},
)
class QwpReceiverConfig(ReceiverConfig):
    """
    `urn:quiver:qwp:receiver`: receives tables from QuestDB clients over WebSocket.

    Attributes:
        listening_addr: the address of the port.
        keepalive: lifetime limits of connections.
        listening_cores: `first` listens in one core, which recognizes everything that a client repeats. `all` listens
            in every core, which is faster; a client that reconnects to another core may have rows stored twice.
    """

    listening_addr: Address
    keepalive: KeepaliveConfig = KeepaliveConfig()
    listening_cores: Literal["first", "all"] = "first"

    def check(self) -> None:
        """Refuse settings that contradict each other, and an exposed address without `tls`, `auth` or `insecure`."""
        self.settings(self.listening_addr)

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
        settings = self.settings(self.listening_addr)
        return {
            "qwp": settings.listening_addr,
            "speaks": "QWP",
            "security": self.security_words(split_address(settings.listening_addr)[0]),
            "ack": settings.ack,
            "stores": "tables by name, in slot 50",
            "request_at_most_bytes": settings.max_request_bytes,
            "recognizes_repeats_for_s": settings.dedupe_window_s or None,
            "recognizes_at_most_bytes": settings.dedupe_bytes_max if settings.dedupe_window_s != 0 else None,
            "of_several_cores": "the first listens" if self.listening_cores == "first" else "all listen",
        }

    def settings(self, address: str) -> QwpSettings:
        """
        Return the settings of the receiver that listens on *address*.

        Raises:
            SettingsError: two of the settings contradict each other.
        """
        request_bytes = self.values_for(QwpSettings)["max_request_bytes"]
        return self.build(
            QwpSettings,
            listening_addr=address,
            receiving_bytes_max=max(default_of(QwpSettings, "receiving_bytes_max"), request_bytes),
            security=self.security,
            keepalive=self.keepalive.build(KeepaliveSettings),
        )
