"""Examples of docstrings as code: mkdocstrings would take the prompts for quotations."""

import re
from typing import Any

import griffe

# lines from a prompt to the next empty line, or to the end
EXAMPLE = re.compile(r"^( *)>>> .*?(?=\n[ ]*\n|\Z)", re.MULTILINE | re.DOTALL)


class Fences(griffe.Extension):
    """Puts every doctest into a fenced block before docstrings are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that is read from the sources."""
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    r"""A docstring whose examples are fenced.

    >>> fence("One.\n\n>>> 1 + 1\n2").splitlines()
    ['One.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)
