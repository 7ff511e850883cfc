"""Compiled kernels are kept on disk, not trusted when damaged, and nobody waits without a word."""

import importlib.util
import logging
import subprocess
import sys

import numba
import numpy as np
import pytest
from numba import types

from bistoch.functional.kernels import compile as compiling
from bistoch.functional.kernels.runtime import body, entry

SOURCE = """
from numba import carray

def double(pointer):
    carray(pointer, (1,))[0] *= 2
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A function that compiles a kernel, or reads it from a cache of its own, and runs it."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "kernel.py"
    path.write_text(SOURCE)

    def make(kind=types.float64, **options):
        monkeypatch.setattr(compiling.Kernel, "_last", -compiling.PAUSE)
        spec = importlib.util.spec_from_file_location("kernel", path)
        module = importlib.util.module_from_spec(spec)
        # as every module that was imported, where a kernel from the cache finds its names
        monkeypatch.setitem(sys.modules, "kernel", module)
        spec.loader.exec_module(module)
        number = np.array([1.5], kind.name)
        made = body(module.double, kind, **options)
        call, arguments = entry(made.address, number.ctypes.data, 1)
        call(*arguments)
        assert number == 3
        return made

    return make


def files(tmp_path, ending):
    return sorted((tmp_path / "cache").rglob(f"*.{ending}"))


def test_compiling_is_announced_and_done_once(kernel, caplog):
    with caplog.at_level(logging.WARNING, "bistoch"):
        kernel()
        assert len(caplog.messages) == 1
        assert "compiling CPU kernels" in caplog.messages[0]
        assert kernel().cache_hits == 1
        assert len(caplog.messages) == 1


def test_a_wait_is_one_line_on_stderr(tmp_path):
    """Of a program that has set nothing up, even if it makes errors of warnings."""
    code = """
import numba
numba.config.CACHE_DIR = "cache"
from bistoch.functional.kernels.runtime import body
from kernel import double
body(double, numba.types.float64), body(double, numba.types.float32)
"""
    (tmp_path / "kernel.py").write_text(SOURCE)
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path
    )
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    assert "compiling CPU kernels" in line
    assert "cache" in line


def cut(content):
    return content[: len(content) // 2]


def overwrite(content):
    middle = len(content) // 2
    return content[:middle] + bytes(255 - byte for byte in content[middle : middle + 64])


@pytest.mark.parametrize("damage", [cut, overwrite, lambda content: b""])
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_a_damaged_cache_is_compiled_again_and_replaced(kernel, tmp_path, ending, damage):
    kernel()
    (path,) = files(tmp_path, ending)
    path.write_bytes(damage(path.read_bytes()))
    assert kernel().cache_hits == 0
    assert kernel().cache_hits == 1


def test_machine_code_that_was_changed_does_not_run(kernel, tmp_path):
    kernel()
    (path,) = files(tmp_path, "nbc")
    content = bytearray(path.read_bytes())
    # the code itself: still a pickle, and of the same length
    content[content.index(b"ELF") + 200] ^= 1
    path.write_bytes(content)
    assert kernel().cache_hits == 0


def test_machine_code_of_another_kernel_does_not_run(kernel, tmp_path):
    """A process may end between the index of the cache and the file that it points to."""
    kernel(types.float64)
    kernel(types.float32)
    one, other = files(tmp_path, "nbc")
    one.write_bytes(other.read_bytes())
    assert kernel(types.float64).cache_hits == 0
    assert kernel(types.float64).cache_hits == 1


def test_a_file_that_is_gone_is_made_again(kernel, tmp_path):
    kernel()
    files(tmp_path, "nbc")[0].unlink()
    assert kernel().cache_hits == 0
    assert kernel().cache_hits == 1


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(kernel, tmp_path, monkeypatch):
    kernel()
    (path,) = files(tmp_path, "nbc")
    path.write_bytes(b"")
    monkeypatch.setattr(compiling._File, "_open_for_write", refuse)
    assert kernel().cache_hits == 0
    assert path.read_bytes() == b""


def refuse(*_):
    raise PermissionError(13, "Permission denied")


def test_a_full_disk_is_no_reason_to_fail(kernel, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiling._File, "save", fail)
    assert kernel().cache_hits == 0
    assert files(tmp_path, "nbc") == []
