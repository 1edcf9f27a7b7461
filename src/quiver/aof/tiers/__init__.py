"""
What becomes of sealed segments: compressed copies on the disk, objects in a store, and back again.
"""
