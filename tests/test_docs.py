"""The docs keep up with the code: pages, tables, pictures and links."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
from making import choosing, site
from making import reference as made

import bistoch
import bistoch._public

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def name(page):
    return str(page.relative_to(ROOT))


def anchors(page):
    """What the headings of a page can be linked by."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("operator", bistoch.OPERATORS)
def test_every_operator_has_a_page_and_a_row(operator):
    page = DOCS / "operators" / f"{operator}.md"
    assert page.read_text(encoding="utf-8").startswith(f"# {operator}\n")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(f"[`{operator}`](docs/operators/{operator}.md)") == 1
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert f"(operators/{operator}.md)" in index


# elastic has chapters instead
@pytest.mark.parametrize("operator", [name for name in bistoch.OPERATORS if name != "elastic"])
def test_every_page_answers_the_same_questions(operator):
    text = (DOCS / "operators" / f"{operator}.md").read_text(encoding="utf-8")
    for part in ("**Cost.**", "**When to use it.**", "**Limits.**", "```pycon", "\nReference"):
        assert part in text, f"the page of {operator} lacks {part}"


def families(text, heading):
    """The text under the heading of each family, up to the heading of the next."""
    names = dict.fromkeys(row.family for row in bistoch.OPERATORS.values())
    starts = {name: text.index(heading.format(name.capitalize())) for name in names}
    for name, start in starts.items():
        end = min((other for other in starts.values() if other > start), default=len(text))
        yield name, text[start:end]


def test_the_readme_groups_the_operators_as_the_table_does():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for family, text in families(readme, "* **{}**,"):
        linked = re.findall(r"\(docs/operators/(\w+)\.md\)", text)
        assert linked == [name for name, row in bistoch.OPERATORS.items() if row.family == family]


def test_the_tables_of_the_map_say_what_the_code_promises():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for family, table in families(index, "*{}*:"):
        cells = [line.split(" | ") for line in table.splitlines() if "](operators/" in line]
        members = [name for name, row in bistoch.OPERATORS.items() if row.family == family]
        assert [re.findall(r"\[(\w+)\]", first)[0] for first, *_ in cells] == members
        for operator, (*_, gradient, causal) in zip(members, cells, strict=True):
            assert (gradient == "yes") == bistoch.OPERATORS[operator].differentiable
            assert (causal.strip(" |") == "yes") == bistoch.OPERATORS[operator].causal


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_pictures_resolve(page):
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_file(), f"{name(page)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(linked), f"{name(page)}: no heading for {target}"


def test_every_page_is_on_the_map():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        path = page.relative_to(DOCS).as_posix()
        assert path == "index.md" or f"({path})" in index


def test_pictures_are_used_small_and_made_by_the_script():
    used = {target for page in PAGES for target in LINK.findall(page.read_text(encoding="utf-8"))}
    used = {Path(target).name for target in used if target.endswith(".png")}
    script = "".join(file.read_text(encoding="utf-8") for file in DOCS.glob("making/*.py"))
    pictures = list((DOCS / "figures").iterdir())
    assert {picture.name for picture in pictures} == used
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 200_000
        assert f'"{picture.stem}"' in script


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_measured_tables_are_filled(page):
    text = page.read_text(encoding="utf-8")
    opened = re.findall(r"<!-- measured: (\w+) -->\n\n\| ", text)
    assert len(opened) == text.count("<!-- measured:") == text.count("<!-- end -->")
    script = "".join(file.read_text(encoding="utf-8") for file in DOCS.glob("making/*.py"))
    for table in opened:
        assert f'"{table}"' in script


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_in_pages_is_run(page):
    # a block that is not a doctest could rot unseen
    kinds = re.findall(r"^```(\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(kinds) <= {"pycon", "diff", "console"}


def test_measured_advice_is_that_of_the_records():
    text = (DOCS / "choosing.md").read_text(encoding="utf-8")
    for heads, rows in (choosing.by_lam(), choosing.costs()):
        for row in (heads, *rows):
            assert f"| {' | '.join(row)} |" in text, "run docs/figures.py, or its part choosing"


@pytest.fixture(scope="module")
def reference():
    """All names that the reference explains, and the pages they are on."""
    pages = made.pages().items()
    found = {file: re.findall(r"^      heading: (\S+)$", text, re.M) for file, text in pages}
    return {name: file for file, names in found.items() for name in names}


def test_the_reference_has_every_public_name(reference):
    exported = {name for name in dir(bistoch) if not made.is_private(name, getattr(bistoch, name))}
    assert {f"bistoch.{name}" for name in exported & set(vars(bistoch._public))} <= set(reference)
    for package in made.packages():
        for name in made.public_names(package):
            assert f"{package}.{name}" in reference or made.is_module(f"{package}.{name}")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_a_page_names_is_in_the_reference(page, reference):
    # a name that is written out is meant for users, so they must be able to look it up
    packages = ["bistoch", *made.packages()]
    for path in set(re.findall(r"\bbistoch(?:\.\w+)+", page.read_text(encoding="utf-8"))):
        package, _, last = path.rpartition(".")
        if package not in packages or path in packages or not last[0].isalpha():
            continue
        value = getattr(importlib.import_module(package), last, None)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert path in reference, (
                f"{name(page)} names {path}, which the reference does not have"
            )


def test_every_page_is_on_the_site():
    linked = set(re.findall(r"docs/[\w/]+\.md", str(site.navigation([]))))
    assert linked == {name(page) for page in DOCS.rglob("*.md")}


def test_the_site_builds_and_asks_nobody(tmp_path):
    # strict: a broken link, a missing anchor or an unknown name stops it
    site.build(tmp_path / "build", tmp_path / "site")
    for page in DOCS.rglob("*.md"):
        assert (tmp_path / "site" / page.relative_to(ROOT).with_suffix(".html")).is_file()
    for page in (tmp_path / "site").rglob("*.html"):
        loads = re.findall(
            r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?([^\"\s>]+)"
            r"|<link[^>]*\shref=\"?([^\"\s>]+)",
            page.read_text(encoding="utf-8"),
        )
        assert loads
        assert not [one for pair in loads for one in pair if re.match("(https?:)?//", one)]
    index = (tmp_path / "site" / "search" / "search_index.js").read_text(encoding="utf-8")
    assert "bistoch.elastic_attention" in index
