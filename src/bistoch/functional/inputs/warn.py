"""Warnings that point at the line of the user's code."""

import contextlib
import os
import sys
import warnings

import torch

# code between the user's line and a warning: this package, torch (a module is called by it), and
# the standard library's with statements
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_INSIDE = (_PACKAGE + os.sep, os.path.dirname(torch.__file__) + os.sep, contextlib.__file__)


def warn_caller(sentence: str, category: type[Warning]) -> None:
    """Warn at the first frame outside of this package and of torch."""
    # warnings.warn knows skip_file_prefixes from Python 3.12 on only
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, category, stacklevel=level)
