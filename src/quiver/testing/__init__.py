"""
The shipped test kit: file systems that crash or fail, a manual clock, and the contracts of the ports.

======================  ======================================================================================
file                    purpose
======================  ======================================================================================
`crashfs.py`            `CrashFileSystem`: in memory; a clone is the disk after a power loss or a kill
`crash_nodes.py`        the files and directories of it, with synced and unsynced state
`faultfs.py`            `FaultFileSystem`: wraps a file system and fails its n-th write, sync, …
`clock.py`              `ManualClock`: time that the test controls
`contracts.py`          `FileSystemContract`: tests for every implementation of the port
`log_contract.py`       `AppendLogContract`: tests for every append log, on all of the above
`faultobjects.py`       `FaultObjects`: wraps an object tier; calls fail, are slow, truncated or repeated
`objects_contract.py`   `ObjectTierContract`: tests for every object tier
`faultmetadata.py`      `FaultMetadata`: wraps a metadata store and makes it unavailable
`metadata_contract.py`  `MetadataContract`: tests for every metadata store
======================  ======================================================================================

A crash suite in five lines::

    disk = CrashFileSystem()
    disk.on_step = lambda op, path: survivors.append((set(acknowledged), disk.clone_after_crash(seed=2)))
    run_the_workload(disk, acknowledged)
    for promised, survivor in survivors:
        check(recover(survivor), promised)
"""
