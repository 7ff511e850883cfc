"""Analyse a pretrained Transformer: what its heads do, and what balance would change.

`bistoch inspect MODEL --text "..."` loads a model of transformers, measures every head on given
texts or images, swaps in the elastic operator without training, and writes a report.
"""

from bistoch.lab.inspect.load import Subject as Subject
from bistoch.lab.inspect.load import load_subject as load_subject
from bistoch.lab.inspect.run import run_inspect as run_inspect
from bistoch.lab.inspect.swap import embed as embed
from bistoch.lab.inspect.swap import swap_heads as swap_heads
