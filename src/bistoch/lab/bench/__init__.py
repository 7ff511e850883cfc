"""The benchmark behind `bistoch bench`: it verifies every contender first, and then times it.

Every time is a ratio to a baseline in the same process and the same rounds.
"""

from bistoch.lab.bench.plan import Options as Options
from bistoch.lab.bench.run import run_bench as run_bench
