"""
Exporters that need no Spark run in threads of the ingest process.

They forward requests as they are stored. A separate process would cost one more copy of each request, and would be one
more process that can fail. A slow destination cannot block the store: undelivered data stays on disk. The exporter's
retry set records attempts and the times of the next ones. Bundles that it gives up become dead letters, which are
replayed once the exporter works again, unless their data was refused.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Self

from quiver.clock import SYSTEM_CLOCK
from quiver.delivery.dead_letter_replay import DeadLetterReplay
from quiver.delivery.dead_letters import DeadLetter, DeadLetters
from quiver.delivery.exporter_stats import ExporterStats
from quiver.delivery.policy import Outcome, RetryPolicy
from quiver.delivery.signal_filter import SignalFilter
from quiver.delivery.undelivered import Undelivered
from quiver.errors import SettingsError, StoreFailedError, UsageError
from quiver.exporters.forward import BundleForwarder
from quiver.observe import Observer
from quiver.pipeline.model import Pipeline
from quiver.pipeline.plugins import OtapExporterConfig, OtlpExporterConfig
from quiver.pipeline.processes.child import DRAIN_S
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.small_file import read_if_valid
from quiver.primitives.worker import Worker
from quiver.store.format.identity import decode_identity
from quiver.store.format.names import STORE_ID
from quiver.store.limits.disk_budget import DiskShare
from quiver.store.store import Store
from quiver.store.subscribers.retry_set import RetrySet

if TYPE_CHECKING:
    from quiver.exporters.forward import RequestSender

__all__ = ["Forwarding", "sender_of"]

_ID_BYTES_MAX = 200

LOOK_S = 1.0
STOP_S = 2.0

_log = logging.getLogger("quiver.pipeline")


class _Exporter:
    """
    One exporter: its forwarder, and the replay of its dead letters once it works again.

    Args:
        name: the name of the node.
        config: the config of the exporter.
        store: the store that it reads.
        observer: receives counts and events.
        stores: the number of cores that share the cap of its dead letters.
        share: the share of the disk budget for its dead letters.
        signals: the signals that it receives; None for all.
    """

    def __init__(
        self,
        name: str,
        config: OtlpExporterConfig,
        store: Store,
        observer: Observer,
        stores: int,
        share: DiskShare | None,
        signals: Sequence[str] | None,
    ) -> None:
        self.description = f"{name} → {config.destination}"
        policy, dead_letter_policy = config.policy(), config.dead_letter_policy()
        letters = None
        if policy.on_exhausted == "dead_letter":
            settings = dead_letter_policy.settings(stores)
            letters = DeadLetters(
                store.path, name, settings=settings, adapter=store.adapter, observer=observer, share=share
            )
        self._stats = ExporterStats(name, observer, roots=[store.path])
        self.forwarder = BundleForwarder(
            store.register(name, start="earliest", order=config.order),
            sender_of(name, config),
            origin=_identity(store),
            sizes=config.sizes(),
            in_flight_max=config.settings().in_flight_max,
            undelivered=_undelivered(name, policy, letters, store, observer),
            observer=observer,
            stats=self._stats,
            signals=None if signals is None else SignalFilter(signals, store.adapter),
        )
        self._confirmed = self._denied = 0
        self._was_failing = False
        self._replay: DeadLetterReplay | None = None
        if letters is not None and dead_letter_policy.replay == "auto":
            random = Random()  # noqa: S311 - jitter, not a secret
            self._replay = DeadLetterReplay(
                name, letters, self._send_again, random=random, clock=SYSTEM_CLOCK, observer=observer
            )
        self._worker = Worker(
            f"quiver-exporter {name}",
            self._look,
            every=LOOK_S,
            on_death=lambda died: _log.error("%s reports nothing and replays no dead letters: %s", name, died),
            clock=SYSTEM_CLOCK,
            observer=observer,
        )

    def start(self) -> None:
        """Start sending."""
        self.forwarder.start()
        self._worker.start()

    def stop(self, timeout: float) -> int:
        """Keep sending for up to *timeout* seconds, then stop; return how many bundles are left."""
        self._worker.stop(0.0)  # a request in progress ends with the forwarder's
        left = self.forwarder.stop(timeout)
        self._worker.join(STOP_S)
        self._save(is_last=True)
        return left

    def _save(self, *, is_last: bool = False) -> None:
        # A full disk delays the report; the exporter need not stop for that.
        with contextlib.suppress(OSError):
            self._stats.save(is_last=is_last)

    def _look(self) -> None:
        self._save()
        if self._replay is None:
            return
        state = self.forwarder.state()
        is_failing = bool(state.problem) or state.is_down or state.denied > self._denied
        if self._was_failing and not is_failing and state.confirmed > self._confirmed:
            self._replay.exporter_recovered()
        self._confirmed, self._denied, self._was_failing = state.confirmed, state.denied, is_failing
        self._replay.run(self._may_replay)

    def _may_replay(self) -> bool:
        state = self.forwarder.state()
        return not (state.is_down or state.problem or state.halted or self._worker.is_stopping)

    def _send_again(self, letter: DeadLetter) -> Outcome:
        return self.forwarder.replay(letter.ref, letter.bundle)


class Forwarding:
    """
    All forwarders of a pipeline. Entering starts them; leaving gives them a few seconds to send sealed data.

    Args:
        pipeline: a pipeline whose exporters are already registered with *store*.
        store: a store that stays open until after this context is left.
        observer: receives counts and events.
        stores: the number of cores that share the caps of dead letters.
        dead_letter_share: the share of the disk budget for dead letters.

    Attributes:
        drain_s: the time limit for sending on leaving, in seconds.

    Raises:
        UsageError: a certificate cannot be read.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: Store,
        observer: Observer,
        *,
        stores: int = 1,
        dead_letter_share: DiskShare | None = None,
    ) -> None:
        self.drain_s = DRAIN_S
        self._exporters: list[_Exporter] = []
        try:
            for name, config in pipeline.forwarders:
                signals = pipeline.routes[name].signals
                self._exporters.append(_Exporter(name, config, store, observer, stores, dead_letter_share, signals))
        except BaseException:
            self._break_off()
            raise

    def __enter__(self) -> Self:
        try:
            for one in self._exporters:
                one.start()
                _log.info("%s runs", one.description)
        except BaseException:
            self._break_off()
            raise
        return self

    def require_alive(self) -> None:
        """
        Check that every thread of every exporter is alive.

        Raises:
            StoreFailedError: a thread has died; restart the process.
        """
        for one in self._exporters:
            if one.forwarder.died is not None:
                raise StoreFailedError(f"an exporter failed: {one.forwarder.died}")

    def _break_off(self) -> None:
        # A second attempt needs the retry sets, and only one holder at a time may have them.
        for one in self._exporters:
            one.stop(0.0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = SYSTEM_CLOCK.monotonic() + (self.drain_s if kind is None else 0.0)
        for one in self._exporters:
            left = one.stop(max(deadline - SYSTEM_CLOCK.monotonic(), 0.0))
            if left:
                state = one.forwarder.state()
                problem = state.halted or state.problem
                _log.warning(
                    "%s: %d bundles stay in the store%s", one.description, left, f": {problem}" if problem else ""
                )


def _identity(store: Store) -> str:
    """Return the id of the store, by which a receiver recognizes repeated requests; empty if it is unreadable."""
    try:
        return read_if_valid(REAL_FILES, f"{store.path}/{STORE_ID}", decode_identity, _ID_BYTES_MAX) or ""
    except OSError:
        return ""


def _undelivered(
    name: str, policy: RetryPolicy, letters: DeadLetters | None, store: Store, observer: Observer
) -> Undelivered:
    retries = RetrySet.open(REAL_FILES, store.path, name)
    return Undelivered(name, policy, retries=retries, letters=letters, observer=observer)


def sender_of(name: str, config: OtlpExporterConfig) -> RequestSender:
    """
    Return the sender for *config*; *name* is the name of the node.

    Raises:
        UsageError: a certificate cannot be read.
    """
    from quiver.exporters.otap_grpc import OtapGrpcSender  # noqa: PLC0415 - an extra; only what is configured
    from quiver.exporters.otlp_grpc import OtlpGrpcSender  # noqa: PLC0415
    from quiver.exporters.otlp_http import OtlpHttpSender  # noqa: PLC0415

    settings = config.settings()
    try:
        if isinstance(config, OtapExporterConfig):
            return OtapGrpcSender(settings, config.otap())
        return OtlpGrpcSender(settings) if settings.protocol == "grpc" else OtlpHttpSender(settings)
    except SettingsError as invalid:
        raise UsageError(f"{name}: {invalid}") from invalid
