"""Matching of two sets in which not every element has a partner."""

from bistoch.functional.matching.api import Match as Match
from bistoch.functional.matching.api import match as match
from bistoch.functional.matching.hard import hard_balance as hard_balance
