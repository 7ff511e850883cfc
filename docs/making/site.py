"""The site: `make site` copies the pages to one folder, as they lie here, and builds it.

Links between pages are then the same on the site and in the repository. The navigation is the map,
docs/index.md: a page that stands there is on the site.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from making.reference import pages

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "site"
# what is on the site besides docs/, and what its pages link to
OTHERS = (
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "benchmarks",
    "examples",
)  # fmt: skip
SECTION = re.compile(r"^\*\*(.+?)\*\*")
GROUP = re.compile(r"^\*([\w-]+)\*:")
ENTRY = re.compile(r"^(?:\*|\|) \[([^\]]+)\]\(([\w/]+\.md)\)")


def read_map(text: str) -> dict[str, list]:
    """Sections and pages of the map, as mkdocs wants its navigation."""
    sections: dict[str, list] = {}
    place: list = []
    for line in text.splitlines():
        if match := SECTION.match(line):
            place = sections[match[1]] = []
            section = place
        elif match := GROUP.match(line):
            place = []
            section.append({match[1]: place})
        elif match := ENTRY.match(line):
            place.append({match[1]: f"docs/{match[2]}"})
    return sections


def navigation(reference: list[str]) -> list[dict]:
    """The map, the reference, and what a contributor reads."""
    sections = read_map((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    return [
        {"Home": [{"Overview": "README.md"}, {"All pages": "docs/index.md"}]},
        *({name: entries} for name, entries in sections.items()),
        {"Reference": [f"docs/reference/{file}" for file in reference]},
        {
            "Project": [
                {"Changelog": "CHANGELOG.md"},
                {"Contributing": "CONTRIBUTING.md"},
                {"Recorded benchmarks": "benchmarks/README.md"},
            ]
        },
    ]


def prepare(folder: Path) -> Path:
    """Put all pages, the generated ones too, into a folder, and write its mkdocs.yml."""
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "source"
    clutter = shutil.ignore_patterns("*.py", "__pycache__")
    shutil.copytree(ROOT / "docs", source / "docs", ignore=clutter)
    for name in OTHERS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    made = pages()
    (source / "docs" / "reference").mkdir()
    for file, text in made.items():
        (source / "docs" / "reference" / file).write_text(text, encoding="utf-8")
    settings = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": str(source),
        "nav": navigation(list(made)),
    }
    config = folder / "mkdocs.yml"
    config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return config


def build(folder: Path, target: Path) -> None:
    """Build the site, without network; a broken link or an unknown name is an error."""
    config = prepare(folder)
    # --quiet would hide warnings from strict mode too, which counts them
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["--config-file", str(config), "--site-dir", str(target)]
    # it imports making.fences, and prints a notice about its own future
    paths = os.pathsep.join([str(ROOT / "docs"), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | {"PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, check=True, timeout=600, cwd=ROOT, env=variables)


if __name__ == "__main__":
    try:
        build(BUILD, ROOT / "site")
    except subprocess.CalledProcessError:
        sys.exit("the site was not built; the warnings above say why")
    print(f"open {ROOT / 'site' / 'index.html'}")
