"""
The test kit, shipped: disks that crash, disks that fail, a clock that obeys, and the contracts they keep.

======================  ======================================================================================
file                    purpose
======================  ======================================================================================
`crashfs.py`            `CrashFileSystem`: in memory; a clone holds what a power cut or a kill leaves
`crash_nodes.py`        what one file and one directory of it remember: synced, and not yet synced
`faultfs.py`            `FaultFileSystem`: any file system, whose n-th write, sync, … fails
`clock.py`              `ManualClock`: time that passes when the test says so
`contracts.py`          `FileSystemContract`: what every implementation of the port must do
`log_contract.py`       `AppendLogContract`: what every append log must do, on all of the above
`faultobjects.py`       `FaultObjects`: any object tier, whose n-th call fails, is slow, cut short or repeated
`objects_contract.py`   `ObjectTierContract`: what every object tier must do
`faultmetadata.py`      `FaultMetadata`: any metadata store, away for a call or for minutes
`metadata_contract.py`  `MetadataContract`: what every metadata store must do
======================  ======================================================================================

A crash suite in five lines::

    disk = CrashFileSystem()
    disk.on_step = lambda op, path: survivors.append((set(acknowledged), disk.clone_after_crash(seed=2)))
    run_the_workload(disk, acknowledged)
    for promised, survivor in survivors:
        check(recover(survivor), promised)
"""
