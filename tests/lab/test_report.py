"""A report is one file that holds all it shows."""

import re

import pytest

from bistoch.lab.report import Report

PIXEL = b"\x89PNG not really"


def test_what_a_user_wrote_is_text_and_not_markup(tmp_path):
    report = Report("<b>title</b>")
    report.heading("a < b")
    report.text("<script>alert(1)</script>")
    report.table(["<i>"], [["<u>"]], caption="<s>")
    report.code("<q>")
    report.image(PIXEL, 'a "quoted" caption')
    page = report.write(tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<(b|script|i|u|s|q)>", page)
    assert 'alt="a &quot;quoted&quot; caption"' in page


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
    assert re.findall(r'<td class="words">([^<]*)<', page) == ["elastic(lam=0.5)"]


def test_a_page_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    Report("new").write(path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert "<h1>new</h1>" in path.read_text(encoding="utf-8")
