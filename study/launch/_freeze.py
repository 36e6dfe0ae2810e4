"""Imported by the fork server last: what its trials share is found out once, never searched for garbage.

One search through all that it has imported takes a third of a second and copies every page of memory; the
commit and the versions are those of the code as it was imported.
"""

import gc

from study import provenance

provenance.git()
provenance.versions()
gc.collect()
gc.freeze()
