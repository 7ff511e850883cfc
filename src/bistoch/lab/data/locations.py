"""Where data are searched: BISTOCH_DATA, the cache, system packages, the package itself."""

import os
from dataclasses import dataclass
from pathlib import Path

from bistoch.lab.data.entry import Entry, Form
from bistoch.lab.data.kinds import DataMissingError

# Debian's data sets, for example the package dataset-fashion-mnist
SYSTEM = Path("/usr/share/datasets")
SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True)
class Found:
    """A data set on this machine: where it was found, its form, and the path of each file."""

    place: str
    form: Form
    paths: dict[str, Path]


def cache_folder() -> Path:
    """Where `bistoch data get` writes: BISTOCH_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("BISTOCH_CACHE"):
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("bistoch", appauthor=False))


def folders() -> dict[str, Path]:
    """The folders that are searched, in order; all have the same layout."""
    chosen = os.environ.get("BISTOCH_DATA")
    mine = {"BISTOCH_DATA": Path(chosen).expanduser()} if chosen else {}
    return mine | {"cache": cache_folder(), "system": SYSTEM, "package": SHIPPED}


def find(entry: Entry) -> Found | None:
    """The first folder that has all files of a form."""
    for place, folder in folders().items():
        for form in entry.forms:
            paths = {file.path: folder / file.path for file in form.files}
            if all(path.is_file() for path in paths.values()):
                return Found(place, form, paths)
    return None


def missing(entry: Entry) -> DataMissingError:
    """The error for a missing data set: what was searched, where, and how to get it."""
    forms = " or ".join(", ".join(file.path for file in form.files) for form in entry.forms)
    looked = ", ".join(
        f"{folder} ({place})" for place, folder in folders().items() if place != "package"
    )
    if entry.official:
        remedy = f"run `bistoch data get {entry.name}` to fetch it, or set BISTOCH_DATA to a folder"
    else:
        remedy = "it has no official direct download: set BISTOCH_DATA to a folder"
    unset = "" if os.environ.get("BISTOCH_DATA") else "; BISTOCH_DATA is not set"
    return DataMissingError(
        f"{entry.name} is not on this machine: looked for {forms} in {looked}{unset}; {remedy} "
        "that has it"
    )
