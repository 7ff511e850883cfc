"""Causal balance in a language model: whether it helps, and whether it is the balance."""

from bistoch.lab.reproduce.causal_lm.run import run_causal_lm as run_causal_lm
