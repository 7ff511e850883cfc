"""The picture shows what was measured, and a number needs both a proof and a time to be in it."""

import io
from dataclasses import replace

from PIL import Image

from bistoch.lab.bench.measure import Cell
from bistoch.lab.bench.plot import draw_bench


def cells():
    for n, heads in ((64, 8), (256, 8), (16384, 1)):
        for direction in ("forward", "forward+backward"):
            for name, ratio in (("sdpa", 1.0), ("elastic streaming", 20.0), ("POT log", 30.0)):
                shape = [1, heads, n, 64]
                cell = Cell(f"n={n}", "attention", shape, "random", direction, name, 1.0, 10, None)
                cell.ratio, cell.seconds, cell.memory = ratio, ratio * n**2 * 1e-8, n * 1000
                yield cell


def test_the_picture_is_a_png_with_something_on_it():
    file = io.BytesIO()
    draw_bench(list(cells()), "8 heads").savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG")
    with Image.open(file) as picture:
        assert min(picture.size) > 300
        assert len(picture.convert("L").getcolors()) > 20


def test_one_line_per_contender_and_hollow_marks_for_other_heads():
    figure = draw_bench(list(cells()))
    assert len(figure.axes) == 4
    for panel in figure.axes:
        lines, names = panel.get_legend_handles_labels()
        assert names == ["sdpa", "elastic streaming", "POT log"]
        assert all(list(line.get_xdata()) == [64, 256] for line in lines)
        hollow = [line for line in panel.lines if line not in lines]
        assert [list(line.get_xdata()) for line in hollow] == [[16384]] * 3


def test_a_refused_contender_is_not_drawn():
    some = list(cells())
    for cell in some:
        if cell.contender == "POT log":
            cell.status, cell.ratio, cell.seconds = "wrong", None, None
    names = draw_bench(some).axes[0].get_legend_handles_labels()[1]
    assert names == ["sdpa", "elastic streaming"]


def test_nothing_measured_is_an_empty_picture():
    assert len(draw_bench([]).axes) == 2


def test_twenty_contenders_can_be_told_apart():
    some = list(cells())[:2]
    many = [replace(cell, contender=f"operator {i}") for i in range(20) for cell in some]
    lines = draw_bench(many).axes[0].get_lines()
    looks = {(x.get_color(), str(x._dash_pattern), x.get_marker()) for x in lines}
    assert len(looks) == 20
