"""Search by inner products: methods against hubs, what they find, and pages about it."""

from bistoch.lab.search.demo import run_demo as run_demo
from bistoch.lab.search.halves import Halves as Halves
from bistoch.lab.search.halves import load_halves as load_halves
from bistoch.lab.search.methods import BASELINES as BASELINES
from bistoch.lab.search.methods import Found as Found
from bistoch.lab.search.methods import balanced_bias as balanced_bias
from bistoch.lab.search.methods import baseline_bias as baseline_bias
from bistoch.lab.search.methods import choose_eps as choose_eps
from bistoch.lab.search.methods import search as search
from bistoch.lab.search.page import run_search as run_search
