"""Analyse a trained Transformer: what its heads do, and what balance would change.

`bistoch inspect MODEL --text "..."` loads a model of transformers or a run of `bistoch train`,
measures every head on texts, images or test samples, swaps in the elastic operator without
training, and writes a report.
"""

from bistoch.lab.inspect.load import load_subject as load_subject
from bistoch.lab.inspect.run import run_inspect as run_inspect
from bistoch.lab.inspect.subject import Subject as Subject
from bistoch.lab.inspect.swap import embed as embed
from bistoch.lab.inspect.swap import swap_heads as swap_heads
