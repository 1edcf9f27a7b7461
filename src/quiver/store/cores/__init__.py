"""
One store for each core below one path, with one cap and one subscriber for all of them.

===============  ====================================================================================
module           purpose
module           purpose
===============  ====================================================================
`opening.py`     `quiver.open`: one store, or one for each core
`store.py`       several cores as one store
`subscriber.py`  a subscriber of several cores
`calls.py`       calls about all subscribers, or about one by name, over several cores
`capacity.py`    one cap over stores in many processes: claims that the others read
`claims.py`      deleting segments of a store that another process owns
`removal.py`     the removal of drained core directories
`instances.py`   which directories below a path are stores
===============  ====================================================================================
"""
