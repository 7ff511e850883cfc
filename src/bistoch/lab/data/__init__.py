"""Data sets: found on this machine, checked by checksum, downloaded only on demand.

load("fashion-mnist").x_train     # numpy uint8 (60000, 28, 28)
"""

from bistoch.lab.data.corruptions import CORRUPTIONS as CORRUPTIONS
from bistoch.lab.data.corruptions import STRENGTHS as STRENGTHS
from bistoch.lab.data.corruptions import corrupt as corrupt
from bistoch.lab.data.download import fetch as fetch
from bistoch.lab.data.entry import Entry as Entry
from bistoch.lab.data.kinds import Corpus as Corpus
from bistoch.lab.data.kinds import DataError as DataError
from bistoch.lab.data.kinds import DataMissingError as DataMissingError
from bistoch.lab.data.kinds import Dataset as Dataset
from bistoch.lab.data.kinds import Pairs as Pairs
from bistoch.lab.data.kinds import Series as Series
from bistoch.lab.data.loading import entry_of as entry_of
from bistoch.lab.data.loading import load as load
from bistoch.lab.data.locations import find as find
from bistoch.lab.data.locations import folders as folders
from bistoch.lab.data.locations import missing as missing
from bistoch.lab.data.pictures import AS_THEY_ARE as AS_THEY_ARE
from bistoch.lab.data.pictures import Pictures as Pictures
from bistoch.lab.data.pictures import read_size as read_size
from bistoch.lab.data.read_files import check_whole as check_whole
from bistoch.lab.data.synthetic import point_shapes as point_shapes
from bistoch.lab.data.synthetic import recall as recall
from bistoch.lab.data.table import DATASETS as DATASETS
