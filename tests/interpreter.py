"""Triton's interpreter, made quicker: what it changes in `triton.language` stays changed.

It patches hundreds of functions at every call of a kernel, and of every function that a kernel
calls, and takes them back afterwards, which is most of its time. Here each module is patched once.
"""

import inspect


def patch_once():
    import triton.language as tl
    from triton.runtime import interpreter

    if getattr(interpreter._patch_lang, "once", False):
        return
    patched, patch = {}, interpreter._patch_lang

    class Kept:
        def restore(self):
            pass

    def patch_lang(function):
        modules = [x for x in function.__globals__.values() if inspect.ismodule(x)]
        names = frozenset(x.__name__ for x in modules if x in (tl, tl.core))
        if names not in patched:
            patched[names] = patch(function)
        return Kept()

    patch_lang.once = True
    interpreter._patch_lang = patch_lang


def add_in_order(monkeypatch):
    """Products of tiles add up features one by one, so an entry is the same in tiles of any shape.

    NumPy's products have another order for some shapes, and other ones on other processors.
    """
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(self, left, right, before, *rest):
        kind = before.data.dtype
        left_data, right_data = left.data.astype(kind), right.data.astype(kind)
        found = np.zeros_like(before.data)
        for column, row in zip(left_data.T, right_data, strict=True):
            found += column[:, None] * row[None, :]
        return TensorHandle(found + before.data, before.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def truncate_operands(monkeypatch):
    """Products of 11 bits drop the other bits of their operands, as matrix units of NVIDIA may."""
    import numpy as np
    from triton._C.libtriton import ir
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot = InterpreterBuilder.create_dot

    def cut(tile):
        bits = np.ascontiguousarray(tile.data).view(np.uint32) & np.uint32(0xFFFFE000)
        return TensorHandle(bits.view(np.float32), tile.dtype.scalar)

    def create_dot(self, left, right, before, precision, *rest):
        if precision == ir.INPUT_PRECISION.TF32 and left.data.dtype == np.float32:
            left, right = cut(left), cut(right)
        return dot(self, left, right, before, precision, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
