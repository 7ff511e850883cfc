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
