"""
The directory of a sender: frames on disk until the server has confirmed them.

=======================  ===============================================================================================
module                   purpose
=======================  ===============================================================================================
`slot.py`                the directory of a sender: lock, recovery, ring, dead letters
`dead_letters.py`        dropped frames on disk
`recovery.py`            recovery of a slot after a crash, step by step
`ring.py`                frames by number: append, confirm, trim
`segment_files.py`       one segment, on disk or in memory
`inspection.py`          read-only reports on slots
`append_times.py`        the append times of frames, in bounded memory
`dead_letter_replay.py`  replay of dead letters at an operator's request
=======================  ===============================================================================================
"""
