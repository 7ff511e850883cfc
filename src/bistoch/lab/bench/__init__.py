"""The benchmark behind `bistoch bench`: it proves every contender first, and times it then.

Every time is a ratio to `scaled_dot_product_attention` in the same process and the same rounds.
"""

from bistoch.lab.bench.flows import run_flow_bench as run_flow_bench
from bistoch.lab.bench.plan import Options as Options
from bistoch.lab.bench.run import run_bench as run_bench
