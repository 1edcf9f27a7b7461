"""
The processes of a pipeline: started, watched, restarted and stopped.

====================  ================================================================================================
module                purpose
====================  ================================================================================================
`supervise.py`        child processes: started, restarted with backoff, renewed, stopped in order
`log_files.py`        their logs, kept short
`run.py`              `quiver run`: the children of a pipeline, their logs and the state file
`reload.py`           what a changed file asks for, and what of it needs a restart
`parent_watchdog.py`  the other end, inside a child: stop when asked, reload when asked, die with the supervisor
`child.py`            what every child begins and ends with: arguments, logging, exit codes
`extras.py`           Which extra brings which module, for the one sentence that says what to install
`sd_notify.py`        Messages to systemd, as `sd_notify(3)` sends them: a datagram to the socket that `NOTIFY_SOCKET`
                      names
`spark_scratch.py`    Where Spark's own files go while a pipeline runs: a place of its own, gone with the run, or with
                      the next one
====================  ================================================================================================
"""
