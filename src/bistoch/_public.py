"""The names of `bistoch`, all of which need torch: loaded with the first one that is used."""

from bistoch.functional import *  # noqa: F403
from bistoch.functional import OPERATORS as _OPERATORS
from bistoch.functional.inputs import answer_torch as _answer_torch

# those of the table of operators follow its rows, and answer what users bring from torch
for _row in _OPERATORS.values():
    globals()[_row.attention.__name__] = _answer_torch(_row.attention)
