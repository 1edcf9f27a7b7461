"""
Who reads a store, how far each has come, and what is handed out next.

A bundle that was sealed passes here once per subscriber: pending → claimed → resolved (acknowledged or rejected),
or back to pending when its handle is deferred, dropped, or cannot be read.

==================  ========================================================================================
module              purpose
==================  ========================================================================================
`state`             what one subscriber has resolved, and the rule that gives a progress file its meaning; pure
`delivery`          in which order its pending bundles go out, and which are claimed; pure
`progress_store`    progress files on disk: read, replace, own; usable without a store, from another process
`membership`        one subscriber as an open store sees it: live state, durable state, ownership
`registry`          all subscribers of an open store: claims, waiting, what everyone has finished
`handle`            what a consumer holds: `Subscriber` and `BundleHandle`
==================  ========================================================================================

Delivery is at least once: progress is on disk only after the next maintenance pass, and a crash before it brings
the bundle again. Nothing is deleted because of progress that is not on disk.
"""
