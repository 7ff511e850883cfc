"""The pages of the API reference, generated from what the packages export.

A new public name appears by itself: names of `bistoch` are those of `bistoch._public`, names of a
package are those that its `__init__.py` defines or imports as themselves.
"""

import ast
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import bistoch
import bistoch.integrations

# what the lab offers to programs; the rest of it is behind the command line
LAB = ("data", "train", "compare", "study", "text")


def public_names(module: str) -> list[str]:
    """The names that a module defines, or imports as themselves."""
    tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8"))
    if module == "bistoch":
        # these are loaded when they are named; a few others are written out for type checkers
        names = list(vars(importlib.import_module("bistoch._public")))
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
        return [name for name in names if not is_private(name, getattr(bistoch, name, None))]
    names = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def is_private(name: str, value: object) -> bool:
    """Whether a name is not meant for users: by its underscore, or because it is a module."""
    return name.startswith("_") or isinstance(value, type(sys))


def packages() -> list[str]:
    """The packages that have a page, with the ones they export inside."""
    # the only tuple of words there: the packages that are loaded when they are named
    (loaded,) = (value for value in vars(bistoch).values() if isinstance(value, tuple))
    # the functions of functional are the names of bistoch itself
    found = [f"bistoch.{name}" for name in loaded if name != "functional"]
    inside = pkgutil.iter_modules(bistoch.integrations.__path__, "bistoch.integrations.")
    found += [module.name for module in inside] + [f"bistoch.lab.{name}" for name in LAB]
    for package in list(found):
        for name in public_names(package):
            if is_module(f"{package}.{name}"):
                found.insert(found.index(package) + 1, f"{package}.{name}")
    return found


def is_module(path: str) -> bool:
    """Whether a name of a package is a module that it exports whole, and no function in one."""
    package, _, name = path.rpartition(".")
    return isinstance(getattr(importlib.import_module(package), name), type(sys))


def pages() -> dict[str, str]:
    """The text of every page of the reference, by its file."""
    made = {"bistoch.md": functions()}
    made |= {f"{family}.md": operators(family) for family in families()}
    for package in packages():
        names = [name for name in public_names(package) if not is_module(f"{package}.{name}")]
        about = importlib.import_module(package).__doc__.strip()
        members = [(package, name) for name in names]
        made[f"{package.removeprefix('bistoch.')}.md"] = page(package, about, members)
    return made | {"command-line.md": command_line()}


def families() -> list[str]:
    """The families of operators, in the order of the table."""
    return list(dict.fromkeys(row.family for row in bistoch.OPERATORS.values()))


def operators(family: str) -> str:
    """The two functions of every operator of a family."""
    names = [name for name, row in bistoch.OPERATORS.items() if row.family == family]
    members = [("bistoch", f"{name}_{form}") for name in names for form in ("attention", "plan")]
    linked = ", ".join(f"[{name}](../operators/{name}.md)" for name in names)
    return page(
        f"Operators: {family}", f"Formulas, cost and limits are on the pages of {linked}.", members
    )


def functions() -> str:
    """The names of bistoch that are not one of the two functions of an operator."""
    paired = {f"{name}_{form}" for name in bistoch.OPERATORS for form in ("attention", "plan")}
    names = [name for name in public_names("bistoch") if name not in paired]
    about = "Everything of `import bistoch` besides the two functions of every operator."
    return page("bistoch", about, [("bistoch", name) for name in names])


def page(title: str, about: str, members: list[tuple[str, str]]) -> str:
    """One page of names, each with the package that users take it from."""
    return "\n\n".join([f"# {title}", about, *(entry(*member) for member in members)]) + "\n"


def entry(package: str, name: str) -> str:
    """What mkdocstrings replaces by signature and docstring, read where the name is defined."""
    value = inspect.unwrap(getattr(importlib.import_module(package), name))
    where = f"{package}.{name}".replace("bistoch.OPERATORS", "bistoch.functional.OPERATORS")
    if inspect.isfunction(value) or inspect.isclass(value):
        where = f"{value.__module__}.{value.__qualname__}"
    options = f"    options:\n      heading: {package}.{name}\n      toc_label: {name}"
    return f"::: {where}\n{options}"


def command_line() -> str:
    """All commands with their options, as typer writes them."""
    command = [sys.executable, "-m", "typer", "bistoch.cli", "utils", "docs", "--name", "bistoch"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    text = done.stdout.replace("# `bistoch`", "# The command line", 1)
    # lists of commands cut sentences short; the section of a command begins with the whole one
    whole = dict(re.findall(r"^#+ `(bistoch .+?)`\n\n(.+?)\n\n", text, re.M | re.S))
    lines, above = [], "bistoch"
    for line in text.splitlines():
        if heading := re.match(r"#+ `(.+)`", line):
            above = heading[1]
        elif found := re.match(r"(\* `(\w+)`: ).*\.\.\.$", line):
            line = found[1] + whole[f"{above} {found[2]}"]
        lines.append(line)
    return "\n".join(lines) + "\n"
