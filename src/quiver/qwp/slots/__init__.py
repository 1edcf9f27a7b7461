"""
The directory of a sender: frames on disk until the server has confirmed them.

==================  ==================================================================================================
module              purpose
==================  ==================================================================================================
`slot.py`           the directory of a sender: lock, recovery, ring, dead letters
`dead_letters.py`   what was given up, on disk; `resending.py` sends it again
`recovery.py`       what a crash left of it, step by step
`ring.py`           frames by number: append, confirm, trim
`segment_files.py`  one segment, on disk or in memory
`inspection.py`     what lies in slots, for people
`append_times.py`   When frames were appended, remembered to about a second, in bounded memory. With a backlog of
                    hours it is coarser
`resending.py`      Dead letters, sent again because a person asked for it
==================  ==================================================================================================
"""
