"""
The write path of an AOF2 log: mapped segments, syncs, and the threads that maintain them.

===================  =================================================================================================
module               purpose
===================  =================================================================================================
`writing.py`         the methods of a log that write
`tail.py`            appends and back-pressure
`segment_queue.py`   the segments at the end of a log: active, pending, spare
`segment.py`         one mapped segment that is being written
`reservation.py`     a record that the caller fills in place
`flush.py`           group syncs, retries, and the failure flag
`upload_waiting.py`  group seals and uploads for callers that wait for the object store
`workers.py`         the threads and their queues
`notify.py`          one signal for each kind of back-pressure
`sizing.py`          the size of the next segment (pure)
`blocking.py`        retries of blocked calls, in a thread or as futures of an event loop
`durability.py`      whether records are durable, and waiting until they are
`work_requests.py`   the protocol between the tail and the workers
===================  =================================================================================================
"""
