"""Operators inside any nn.Module: `bistoch.convert(model, operator)`, restore, save and load."""

import inspect
import sys
from types import ModuleType

from bistoch.convert.api import convert as convert
from bistoch.convert.api import converted_layers as converted_layers
from bistoch.convert.api import restore as restore
from bistoch.convert.layers import attention_layers as attention_layers
from bistoch.convert.saving import apply as apply
from bistoch.convert.saving import load as load
from bistoch.convert.saving import record as record
from bistoch.convert.saving import save as save


class CallableModule(ModuleType):
    """A package that is called: `bistoch.convert` is the function and the place of its siblings."""

    __call__ = staticmethod(convert)
    attention_layers = staticmethod(attention_layers)
    converted_layers = staticmethod(converted_layers)
    apply = staticmethod(apply)
    load = staticmethod(load)
    record = staticmethod(record)
    save = staticmethod(save)


sys.modules[__name__].__class__ = CallableModule
__signature__ = inspect.signature(convert)
