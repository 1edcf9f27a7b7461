"""
The processes of a pipeline: started, watched, restarted and stopped.

====================  ======================================================================================
module                purpose
====================  ======================================================================================
`run.py`              `quiver run`: the children of a pipeline, their logs and the state file
`supervise.py`        child processes: started, restarted with backoff, stopped in order
`foreground.py`       `quiver run --foreground` without a supervisor: the ingest process alone
`buffer_contents.py`  the bundles in buffers, counted in another process for reports at start and end
`log_files.py`        rotation of their logs
`log_relay.py`        their logs on standard output, as text or JSON
`reload.py`           which changes of the file can be applied, and which need a restart (pure)
`child.py`            the start and end of every child: arguments, logging, exit codes
`parent_watchdog.py`  in a child: stop when asked, reload when asked, exit with the supervisor
`http_port.py`        a WSGI application on a port: metrics, the status page
`spark_temp_dir.py`   the directory of Spark's temporary files
`sd_notify.py`        messages to systemd
`requirements.py`     the requirements of a pipeline on this machine
`extras.py`           names the extra to install for a missing module
====================  ======================================================================================

The supervisor never loads Arrow or PySpark: what needs them runs in a child, or in a process that ends at once
(`short_process.py`).
"""
