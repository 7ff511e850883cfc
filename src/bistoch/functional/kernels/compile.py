"""How kernels are compiled: once for every machine and version, with a message if it takes long.

What was compiled is kept in Numba's cache on disk. A file of the cache that is damaged, by a full
disk or a copy that was cut short, is compiled again and replaced.
"""

import gc
import hashlib
import logging
import pickle
import time
from pathlib import Path
from typing import Any

from numba import njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import InlineOverloads, NativeLowering, NopythonRewrites
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FindLiterallyCalls,
    InlineClosureLikes,
    InlineInlinables,
    LiteralPropagationSubPipelinePass,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    RewriteDynamicRaises,
    WithLifting,
)

# infinities are ordinary here, NaN never occurs: everything of fastmath but "ninf" and "afn"
FAST = {"nnan", "nsz", "reassoc", "contract", "arcp"}
OPTIONS: Any = {"fastmath": FAST, "error_model": "numpy"}

# what a kernel is compiled from: it calls functions in other files than its own
_FOLDERS = [Path(__file__).parent, *Path(__file__).parents[1].glob("*/cpu")]
_SOURCES = sorted(path for folder in _FOLDERS for path in folder.glob("*.py"))
_DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:12]

# A wait is announced through logging, at the level that Python writes to stderr when a program has
# set nothing up. A warning would be an error in programs that make errors of warnings, and a print
# could not be silenced by logging.getLogger("bistoch").
_log = logging.getLogger("bistoch")
# seconds between two compilations that make a second announcement worth a line
PAUSE = 10.0


# passes of Numba that look for what no kernel has: closures, array expressions, literal types ...
_NEEDLESS = {
    DeadBranchPrune, FindLiterallyCalls, InlineClosureLikes, InlineInlinables, InlineOverloads,
    LiteralPropagationSubPipelinePass, LiteralUnroll, MakeFunctionToJitFunction, NopythonRewrites,
    RewriteDynamicRaises, WithLifting,
}  # fmt: skip


class _Whole(JITCodeLibrary):
    """A kernel with all its parts, optimised once.

    Numba does it twice, to find counts of references that cancel out; here there are none.
    """

    def _optimize_final_module(self):
        made = self._codegen._module_pass_manager()
        if not isinstance(made, tuple):
            # before Numba 0.62
            super()._optimize_final_module()
            return
        passes, builder = made
        passes.run(self._final_module, builder)


class _Part(_Whole):
    """Code that exists to be copied into kernels: it is optimised there, and never runs itself.

    Numba would optimise it, with all that it calls, and make machine code of it here as well. That
    takes half of the time of a compilation.
    """

    def _optimize_functions(self, ll_module):
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name):
        return 0

    @property
    def codegen(self):
        # asked only for the next method
        return self

    def set_env(self, name, env):
        # what Python objects code would use
        pass


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """Without counting references to arrays: all memory belongs to the caller of a kernel."""

    _name = "lowering_without_counts"

    def run_pass(self, state):
        state.targetctx = state.targetctx.subtarget(enable_nrt=False)
        return super().run_pass(state)


class _Kernels(Compiler):
    """Numba's compiler, for kernels."""

    library = _Whole

    def define_pipelines(self):
        state = self.state
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        if self.library is _Whole:
            state.library.enable_object_caching()
        (passes,) = super().define_pipelines()
        passes.passes = [
            (_Lowering if which is NativeLowering else which, what)
            for which, what in passes.passes
            if which not in _NEEDLESS
        ]
        passes.finalize()
        return [passes]


class _Parts(_Kernels):
    """Numba's compiler, for parts of kernels."""

    library = _Part


# options of what kernels call
PART: Any = {**OPTIONS, "pipeline_class": _Parts}


def jit(function):
    """Compile for the caller's types, for kernels only: nothing that Python could call is made."""
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled = njit(**wrappers, **PART)(function)
    by_types = compiled.get_call_template

    def by_plain_types(args, kws):
        # else it would be compiled anew for every constant that it is called with
        return by_types([types.unliteral(kind) for kind in args], kws)

    compiled.get_call_template = by_plain_types
    return compiled


def body(function, kind) -> "Kernel":
    """Compile a kernel that is called by its address, for floats of one kind.

    Its argument is the address of its job: a pointer to such floats, which tells it their kind.
    """
    # the disk cache looks only at the file of a function: a digest of all files is in its name
    function.__qualname__ = f"{function.__name__}_{_DIGEST}"
    kernel = Kernel(function, ((types.CPointer(kind),), types.void), {}, dict(OPTIONS), _Kernels)
    kernel.enable_caching()
    kernel.compile()
    return kernel


class Kernel(CFunc):
    """A compiled kernel, from the cache if it is there."""

    # when the last slow one was compiled: those that follow soon need no second announcement
    _last = -PAUSE

    def enable_caching(self) -> None:
        """Keep it on disk, if there is a folder for it that can be written."""
        try:
            self._cache = _Cache(self.__wrapped__)
        except (RuntimeError, OSError) as error:
            # there is none: compile in every process instead
            _log.debug("no folder for the cache of Numba can be written: %s", error)

    def compile(self) -> None:
        """Compile it, or read it from the cache; what is made meanwhile is no garbage."""
        collects = gc.isenabled()
        gc.disable()
        try:
            super().compile()
        finally:
            if collects:
                gc.enable()

    def _compile_uncached(self):
        if time.monotonic() - Kernel._last > PAUSE:
            _log.warning(
                "bistoch: compiling CPU kernels for this machine, which takes 3 to 15 seconds; "
                "later runs find them in %s",
                getattr(self._cache, "cache_path", "no folder, since none can be written"),
            )
        try:
            return super()._compile_uncached()
        finally:
            Kernel._last = time.monotonic()


class _File(IndexDataCacheFile):
    """Files that know what they are: damaged or exchanged machine code must never run.

    A file of data holds its own key, since a process may end between the index and the data that it
    points to, and ends with a checksum.
    """

    def save(self, key, data):
        super().save(key, (key, data))

    def load(self, key):
        found = super().load(key)
        if found is None:
            return None
        own, data = found
        if own != key:
            raise ValueError("a file of the cache belongs to another kernel")
        return data

    def _save_data(self, name, data):
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(content + hashlib.sha256(content).digest())

    def _load_data(self, name):
        content = Path(self._data_path(name)).read_bytes()
        data, checksum = content[:-32], content[-32:]
        if hashlib.sha256(data).digest() != checksum:
            raise ValueError(f"{name} is damaged")
        return pickle.loads(data)


class _Cache(FunctionCache):
    """Numba's cache on disk, which is never a reason to fail."""

    def __init__(self, function):
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _File(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig, target_context):
        try:
            return super().load_overload(sig, target_context)
        # unpickling what is damaged may raise anything
        except Exception as error:
            _log.debug("a kernel is compiled again: %s", error)
            try:
                self.flush()
            except OSError:
                # nor can it be replaced
                self.disable()
            return None

    def save_overload(self, sig, data):
        try:
            super().save_overload(sig, data)
        # a full disk, say, or an index that another process has damaged since
        except Exception as error:
            _log.debug("a kernel is not kept: %s", error)
