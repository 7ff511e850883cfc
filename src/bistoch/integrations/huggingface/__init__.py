"""The operators inside models of transformers: swap, restore, save and load.

`register` makes operators known to transformers by name; `convert` changes layers and heads of a
model that exists, and gives every head an elasticity of its own.
"""

from bistoch.integrations.huggingface.convert import convert as convert
from bistoch.integrations.huggingface.convert import converted_layers as converted_layers
from bistoch.integrations.huggingface.convert import restore as restore
from bistoch.integrations.huggingface.interface import register as register
from bistoch.integrations.huggingface.layers import attention_layers as attention_layers
from bistoch.integrations.huggingface.load import from_pretrained as from_pretrained
from bistoch.integrations.huggingface.shard import shard_sequence as shard_sequence
