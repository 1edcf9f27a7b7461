"""
The subscribers of a store: who reads it, how far each has read, and which bundle is delivered next.

Each sealed bundle passes through these states once per subscriber: pending → claimed → resolved (acknowledged or
rejected), or back to pending if its handle is deferred, dropped, or cannot be read.

======================  =================================================================================
module                  purpose
======================  =================================================================================
`state.py`              what one subscriber has resolved, and the rules of a progress file (pure)
`start.py`              where a subscriber starts, and how far it is rewound (pure)
`queue.py`              its pending bundles in the order of delivery, and its claims (pure)
`progress_store.py`     progress files on disk: read, replace, own; usable without a store
`records.py`            one subscriber in an open store: live state, durable state, ownership
`claims.py`             bundles that are handed out: take, wait, decide; `BundleHandle`
`runs.py`               runs: consecutive bundles that are handed out together; `BundleRun`
`subscribers.py`        all subscribers of an open store: register, refresh, rewind, remove
`subscriber.py`         the public API: `Subscriber`, and the methods of `Store` about subscribers
`unsealed.py`           segments that are delivered before their file is written
`drop_applier.py`       segments that policy dropped, resolved for every subscriber
`retry_set.py`          bundles that an exporter retries, durable; they stay unresolved until they are delivered
`orphaned_progress.py`  segments that were removed manually, as far as progress files show it
`audit_trail.py`        the trail of outcomes on disk
======================  =================================================================================

Delivery is at least once: progress is on disk only after the next maintenance pass, and a crash before it causes
another delivery. Nothing is deleted because of progress that is not on disk.
"""
