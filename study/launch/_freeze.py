"""Imported by the fork server last: what it has imported is never searched for garbage by its trials.

One search through all of it takes a third of a second and copies every page of memory.
"""

import gc

gc.collect()
gc.freeze()
