"""
The writing side of an AOF2 log: records into mapped segments, syncs, and the threads behind them.

===================  =================================================================================================
module               purpose
===================  =================================================================================================
`writing.py`         its writing side
`tail.py`            where records go, and back-pressure
`segment_queue.py`   the segments at the end of a log: active, waiting to be sealed, spare
`segment.py`         one mapped segment that is being written
`reservation.py`     room at the end that the caller fills in place
`flush.py`           one sync for all who wait; retries; the failure flag
`upload_waiting.py`  one seal and one upload for all who wait for the object store
`workers.py`         the threads, and whose turn it is
`notify.py`          who waits for what
`sizing.py`          how large the next segment is (pure)
`blocking.py`        Waits for what a `WouldBlockError` names: in a thread, or as a future of an event loop; then the
                     refused is tried again
`durability.py`      What of a log is durable, and making it so: the callers' side of `flush` and of uploads
`work_requests.py`   What the tail of a log asks of those who work on the disk, and what is asked of it
===================  =================================================================================================
"""
