"""The table of data sets: what each is, where it comes from, what may be done with it.

A file without an address is a packing of ours. An address stands beside a checksum only if both
belong to exactly the same bytes.
"""

from bistoch.lab.data.entry import Entry
from bistoch.lab.data.table_images import IMAGES
from bistoch.lab.data.table_made import MADE
from bistoch.lab.data.table_series import SERIES
from bistoch.lab.data.table_text import TEXT

DATASETS: dict[str, Entry] = {entry.name: entry for entry in (*IMAGES, *TEXT, *SERIES, *MADE)}
