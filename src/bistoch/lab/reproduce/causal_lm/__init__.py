"""Causal balance in a language model: does it help, and if so, is it the balance that helps?"""

from bistoch.lab.reproduce.causal_lm.run import run_causal_lm as run_causal_lm
