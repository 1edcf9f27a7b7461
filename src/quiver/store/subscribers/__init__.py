"""
Who reads a store, how far each has come, and what is handed out next.

A bundle that was sealed passes here once per subscriber: pending → claimed → resolved (acknowledged or rejected),
or back to pending when its handle is deferred, dropped, or cannot be read.

==================  ========================================================================================
module              purpose
==================  ========================================================================================
`state`             what one subscriber has resolved, and the rule that gives a progress file its meaning; pure
`delivery`          in which order its pending bundles go out, and which are claimed; pure
`free_bits`         which bundles of one segment may go out; pure
`rewinding`         where a rewind goes to, and what of that is gone; pure
`progress_store`    progress files on disk: read, replace, own; usable without a store, from another process
`membership`        one subscriber as an open store sees it: live state, durable state, ownership
`members`           who they are: found at open, registered, orphaned, removed
`claims`            what is handed out: take, wait, decide
`dropping`          what policy gave up, resolved for everybody whom it takes something from
`missing`           segments that were removed by hand, as far as progress files show it
`callbacks`         a consumer's function, called when bundles become available
`audit_trail`       the trail of outcomes on disk
`registry`          all subscribers of an open store: what it tells them and asks of them
`calls`             the calls of `Store` that only the registry answers
`handle`            what a consumer holds: `Subscriber` and `BundleHandle`
==================  ========================================================================================

Delivery is at least once: progress is on disk only after the next maintenance pass, and a crash before it brings
the bundle again. Nothing is deleted because of progress that is not on disk.
"""
