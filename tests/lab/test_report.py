"""A report is one file that holds all it shows."""

import io
import json
import re

import pytest
from rich.console import Console

from bistoch.lab.report import Report, Table, print_table
from bistoch.lab.stats import Verdict

PIXEL = b"\x89PNG not really"


def test_what_a_user_wrote_is_text_and_not_markup(tmp_path):
    report = Report("<b>title</b>")
    report.heading("a < b")
    report.text("<script>alert(1)</script>")
    report.table(["<i>"], [["<u>"]], caption="<s>")
    report.code("<q>")
    report.verdicts([Verdict("<em>", "<em>", "<em>")])
    report.image(PIXEL, 'a "quoted" caption')
    page = report.write(tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<(b|script|i|u|s|q|em)>", page)
    assert 'alt="a &#34;quoted&#34; caption"' in page


def test_pictures_are_inside_and_nothing_comes_from_outside(tmp_path):
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1])
    report = Report("pictures")
    report.figure(figure, "a line")
    page = report.write(tmp_path / "new folder" / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="([^"]{0,15})', page) == ["data:image/png;"]
    assert "default-src 'none'" in page


def test_numbers_are_set_to_the_right_and_never_broken(tmp_path):
    report = Report("numbers")
    cells = ("elastic(lam=0.5)", "69.8 ± 1.1", "72,010", "+0.3 [-1.0, +1.6]", "12 %", "-", "")
    report.table([str(place) for place in range(len(cells))], [cells])
    page = report.write(tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'<td class="text">([^<]*)<', page) == ["elastic(lam=0.5)"]


def test_a_page_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    Report("new").write(path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert "<h1>new</h1>" in path.read_text(encoding="utf-8")


def test_markdown_and_record_beside_the_page(tmp_path):
    report = Report("<title>", "bistoch x")
    report.heading("Part")
    report.table(("a|b", "c"), [("x\ny", 0.123456)], "below")
    report.image(PIXEL, "curves", name="curves")
    report.verdicts([Verdict("it holds", "0.5 | 0.6", "yes")])
    path = report.write(tmp_path / "report.html", markdown=True, record={"x": 1})
    assert (tmp_path / "figures" / "curves.png").read_bytes() == PIXEL
    assert json.loads((tmp_path / "report.json").read_text()) == {"x": 1}
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# &lt;title>\n\n## Part\n")
    assert text.endswith("## Command\n\n```console\nbistoch x\n```\n")
    assert "| a\\|b | c |\n| --- | --- |\n| x y | 0.1235 |\n\nbelow\n" in text
    assert "![curves](figures/curves.png)" in text
    assert "| it holds | 0.5 \\| 0.6 | yes |" in text
    assert '<td class="text yes">yes</td>' in path.read_text(encoding="utf-8")


def test_what_is_printed_is_text_and_not_markup(tmp_path):
    console = Console(file=io.StringIO(), width=60)
    report = Report("printed", console=console)
    report.text("[red]seen[/red]", printed=True)
    report.text("not seen")
    report.table(("operator", "a long heading of numbers"), [("[b]x", "1.25")], "t", printed=True)
    report.warn(["careful", "careful"])
    report.write(tmp_path / "report.html")
    text = console.file.getvalue()
    assert "[red]seen[/red]" in text
    assert "not seen" not in text
    assert "[b]x" in text
    assert text.count("careful") == 1
    assert "report.html" in text


def test_without_matplotlib_the_page_says_so(tmp_path):
    def draw():
        raise ImportError("install it with pip")

    report = Report("no figures")
    report.figure(draw, "a figure")
    page = report.write(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No figure: install it with pip" in page


def test_a_table_that_is_too_wide_loses_deviations_and_then_columns():
    table = Table(("operator", "first", "second", "third"), [["softmax", *["0.123 ± 0.004"] * 3]])

    def printed(width):
        console = Console(file=io.StringIO(), width=width)
        print_table(console, table)
        return console.file.getvalue()

    assert printed(80).count("0.123 ± 0.004") == 3
    assert printed(44).count("0.123") == 3
    assert "±" not in printed(44)
    assert printed(30).count("0.123") == 2
    assert "Not shown here: third." in " ".join(printed(30).split())


def test_a_page_opens_with_what_was_found_and_ends_with_its_command(tmp_path):
    console = Console(file=io.StringIO(), width=80)
    report = Report("title", "bistoch x", console)
    report.text("first written")
    report.finding("Half of it <is> gone.", caption="unused")
    path = report.write(tmp_path / "report.html", markdown=True)
    page = path.read_text(encoding="utf-8")
    assert page.index('<p class="finding">Half of it &lt;is&gt;') < page.index("first written")
    assert page.index("first written") < page.index("<pre>bistoch x</pre>")
    assert "Half of it <is> gone." in console.file.getvalue()
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# title\n\n**Half of it &lt;is> gone.**\n")


def test_what_is_folded_is_between_its_tags(tmp_path):
    report = Report("title")
    with report.folded("No <difference>"):
        report.text("inside")
    report.text("outside")
    page = report.write(tmp_path / "report.html", markdown=True).read_text(encoding="utf-8")
    inside = re.search(r"<details><summary>(.*?)</summary>(.*?)</details>", page, re.DOTALL)
    assert inside[1] == "No &lt;difference&gt;"
    assert "inside" in inside[2]
    assert "outside" not in inside[2]
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "<details><summary>No &lt;difference></summary>\n\ninside\n\n</details>" in text


def test_tokens_of_any_script_and_signs_of_formulas_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    import torch

    from bistoch.analysis import draw_plans

    tokens = ["猫", "$x$", "a_b^c"]
    figure = draw_plans({"plan": torch.eye(3)}, queries=tokens, keys=tokens)
    report = Report("tokens")
    report.figure(figure, "tokens")
    assert "data:image/png" in report.write(tmp_path / "report.html").read_text(encoding="utf-8")
    axes = next(axes for axes in figure.axes if axes.get_label() == "plan")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["猫", r"\$x\$", "a_b^c"]


def test_drawings_turn_dark_photographs_do_not_and_telephones_get_their_own(tmp_path):
    figures = pytest.importorskip("matplotlib.figure")
    report = Report("figures")
    tall = figures.Figure(figsize=(1, 2))
    report.figure(figures.Figure(figsize=(2, 1)), "drawing", narrow=lambda: tall)
    report.figure(figures.Figure(figsize=(1, 1)), "photo", photos=True)
    page = report.write(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in page
    assert "figure img:not(.photos) { filter: invert(1)" in page
    assert (
        len(re.findall(r'<source media="\(max-width: 45rem\)" srcset="data:image/png', page)) == 1
    )
    assert re.findall(r'<img class="(\w+)" alt="(\w+)"', page) == [
        ("narrow", "drawing"), ("photos", "photo"),
    ]  # fmt: skip
