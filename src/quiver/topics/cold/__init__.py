"""
The object tier of topics: sealed log files become objects, and are read from there.

====================  ================================================================================================
module                purpose
====================  ================================================================================================
`port.py`             the interface of the tier; `pieces.py` that of its readers
`tier.py`             that tier: who owns a topic, and the threads; `opening.py` opens it
`uploader.py`         log → objects, step by step; `source.py` and `blocks.py` make their bytes
`catalog.py`          what is in the object store; `catalog_rebuild.py` finds it out from the objects
`spans.py`            … in forty bytes an object, packed
`reader.py`           objects read from any offset
`superseded.py`       local files whose messages another owner's have replaced; `reappend.py` appends them again
`deleter.py`          which files and objects go
`cursor_mirror.py`    subscriptions, told to the metadata store
`blocks.py`           Packed objects: frames compressed block by block, so that a reader can begin at any block
`catalog_rebuild.py`  The catalogue made anew from the objects alone: their names say which offsets they hold, and
                      reading them the rest
`opening.py`          From settings to the tier behind the files: the object store opened and proved, the metadata
                      store, and a name
`source.py`           A piece of a topic's log on its way into one object: frames checked, indexed and summed up as
                      they pass
====================  ================================================================================================
"""
