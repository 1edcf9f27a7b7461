"""
One store for each core below one path, with one cap and one subscriber for all of them.

===============  ====================================================================================
module           purpose
===============  ====================================================================================
`opening.py`     `quiver.open`: one store, or one for each core
`store.py`       several cores as one store
`subscriber.py`  a subscriber of several cores
`calls.py`       what a store of several cores tells of all its subscribers, and does for one by name
`capacity.py`    one cap over stores in many processes: claims, read by the others
`claims.py`      deleting segments that somebody else owns
`removal.py`     the directory of a core that is no more
`instances.py`   which directories below a path are stores
===============  ====================================================================================
"""
