"""
Who reads a store, how far each has come, and what is handed out next.

A bundle that was sealed passes here once per subscriber: pending → claimed → resolved (acknowledged or rejected),
or back to pending when its handle is deferred, dropped, or cannot be read.

======================  ===========================================================================================
module                  purpose
======================  ===========================================================================================
`state.py`              what one subscriber has resolved, and the rule that gives a progress file its meaning; pure
`delivery.py`           in which order its pending bundles go out, and which are claimed; pure
`claimable_bitmap.py`   which bundles of one segment may go out; pure
`rewinding.py`          where a rewind goes to, and what of that is gone; pure
`progress_store.py`     progress files on disk: read, replace, own; usable without a store, from another process
`records.py`            one subscriber as an open store sees it: live state, durable state, ownership
`table.py`              who they are: found at open, registered, orphaned, removed
`claims.py`             what is handed out: take, wait, decide
`drop_applier.py`       what policy gave up, resolved for everybody whom it takes something from
`orphaned_progress.py`  segments that were removed by hand, as far as progress files show it
`callbacks.py`          a consumer's function, called when bundles become available
`audit_trail.py`        the trail of outcomes on disk
`registry.py`           all subscribers of an open store: what it tells them and asks of them
`calls.py`              the calls of `Store` that only the registry answers
`handle.py`             what a consumer holds: `Subscriber` and `BundleHandle`
======================  ===========================================================================================

Delivery is at least once: progress is on disk only after the next maintenance pass, and a crash before it brings
the bundle again. Nothing is deleted because of progress that is not on disk.
"""
