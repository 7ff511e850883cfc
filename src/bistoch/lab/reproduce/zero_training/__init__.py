"""Balance swapped into a trained sentence encoder, without any training, and what is left of it.

For several elasticities, in all heads and in the half of the heads that tolerate it best (chosen
on other sentences), the embeddings are compared with those of the model as it is.
"""

from bistoch.lab.reproduce.zero_training.run import run_zero_training as run_zero_training
