"""How kernels are compiled: once for every machine and version, with a word to whoever waits.

What was compiled is kept in Numba's cache on disk. A file of the cache that is damaged, by a full
disk or a copy that was cut short, is compiled again and replaced.
"""

import hashlib
import logging
import pickle
import time
from pathlib import Path
from typing import Any

from numba import njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc

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


def jit(function):
    """Compile for the caller's types, for kernels only: nothing that Python could call is made."""
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)(function)


def body(function, kind, *, quick: bool = False) -> "Kernel":
    """Compile a kernel that is called by its address, for floats of one kind.

    Its argument is the address of its job: a pointer to such floats, which tells it their kind.
    What compiles quickly, within three seconds, is not announced.
    """
    # the disk cache looks only at the file of a function: a digest of all files is in its name
    function.__qualname__ = f"{function.__name__}_{_DIGEST}"
    kernel = Kernel(function, ((types.CPointer(kind),), types.void), {}, dict(OPTIONS))
    kernel.quick = quick
    kernel.enable_caching()
    kernel.compile()
    return kernel


class Kernel(CFunc):
    """A compiled kernel, from the cache if it is there."""

    quick = False
    # when the last slow one was compiled: those that follow soon need no second announcement
    _last = -PAUSE

    def enable_caching(self) -> None:
        """Keep it on disk, if there is a folder for it that can be written."""
        try:
            self._cache = _Cache(self.__wrapped__)
        except (RuntimeError, OSError) as error:
            # there is none: compile in every process instead
            _log.debug("no folder for the cache of Numba can be written: %s", error)

    def _compile_uncached(self):
        if self.quick:
            return super()._compile_uncached()
        if time.monotonic() - Kernel._last > PAUSE:
            _log.warning(
                "bistoch: compiling CPU kernels for this machine, which takes 10 to 30 seconds; "
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
