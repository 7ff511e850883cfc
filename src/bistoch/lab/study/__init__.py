"""Studies: one small file says what to run and what was published, one runner does the rest.

All that a study needs can be imported from here; `CONTRIBUTING.md` shows how one is written.
"""

from bistoch.lab.report import Table as Table
from bistoch.lab.stats import INCONCLUSIVE as INCONCLUSIVE
from bistoch.lab.stats import Verdict as Verdict
from bistoch.lab.store import Result as Result
from bistoch.lab.study.definition import Cell as Cell
from bistoch.lab.study.definition import Context as Context
from bistoch.lab.study.definition import Settings as Settings
from bistoch.lab.study.definition import Study as Study
from bistoch.lab.study.definition import trained_network as trained_network
from bistoch.lab.study.results import Column as Column
from bistoch.lab.study.results import Results as Results
from bistoch.lab.study.results import Row as Row
from bistoch.lab.study.runner import read_record as read_record
from bistoch.lab.study.runner import run_study as run_study
