import io

import pytest
import torch
from rich.console import Console

from bistoch.analysis import TerminalPlans


def render(plans, *, width=80, coloured=False, encoding="utf-8"):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=out, width=width, force_terminal=coloured, legacy_windows=False,
        color_system="truecolor" if coloured else None, no_color=not coloured,
    )  # fmt: skip
    console.print(TerminalPlans(plans))
    out.flush()
    return out.buffer.getvalue().decode(encoding)


@pytest.fixture
def plans():
    return {f"plan {i}": torch.rand(6, 6).softmax(-1) for i in range(6)}


def test_row_sums_and_column_sums_are_written(plans):
    drawn = render(plans)
    for name, plan in plans.items():
        assert name in drawn
        columns = plan.double().sum(0)
        assert f"columns {columns.min():.2f} to {columns.max():.2f}" in drawn
    assert drawn.count(" 1.00") >= 6 * 6


def test_sums_that_are_not_one_are_written_as_they_are():
    assert " 0.25" in render({"odd": torch.full((1, 1), 0.25)})


def test_heavier_weights_are_darker_signs():
    drawn = render({"plan": torch.tensor([[1.0, 0.7, 0.0]])}).splitlines()
    assert drawn[1].startswith("██▓▓   ")


def test_bars_are_as_high_as_columns():
    plan = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    *_, top, middle, bottom, _ = render({"plan": plan}).splitlines()
    assert [line[:2] for line in (top, middle, bottom)] == ["██"] * 3
    assert "1.00" in bottom


@pytest.mark.parametrize("width", [10, 24, 40, 80, 81, 200])
def test_it_adapts_to_the_width(plans, width):
    drawn = render(plans, width=width).splitlines()
    assert max(len(line) for line in drawn) <= width
    assert sum(line.count("plan ") for line in drawn) == len(plans)


def test_a_wide_console_draws_side_by_side(plans):
    assert len(render(plans, width=200).splitlines()) < len(render(plans, width=40).splitlines())


def test_a_plan_wider_than_the_console_is_drawn_coarsely():
    drawn = render({"big": torch.full((100, 100), 0.01)}, width=40)
    assert max(len(line) for line in drawn.splitlines()) <= 40
    assert "columns 1.00 to 1.00" in drawn


def test_colours_where_there_are_colours(plans):
    assert "\x1b[48;2;" in render(plans, coloured=True)
    assert "\x1b[" not in render(plans)


def test_plain_letters_where_there_is_nothing_else(plans):
    assert render(plans, encoding="ascii").isascii()


def test_nothing_is_drawn_for_no_plan():
    assert render({}).strip() == ""


def test_what_is_not_one_matrix_is_refused():
    with pytest.raises(ValueError, match=r"the plan 'odd' must be one matrix"):
        TerminalPlans({"odd": torch.ones(2, 3, 3)})


@pytest.mark.parametrize(("encoding", "sign"), [("utf-8", "-"), ("ascii", "~")])
def test_negative_weights_are_signs_of_their_own(encoding, sign):
    signed = torch.tensor([[1.0, 0.0], [1.2, -0.2]])
    lines = render({"signed": signed}, encoding=encoding).splitlines()
    assert lines[2][2:4] == 2 * sign
    assert lines[-1].strip() == f"{sign} negative, to -0.2"
    assert "negative" not in render({"rounding": torch.tensor([[1.0, -1e-9]])})
    assert "--" in render({"signed": signed}, coloured=True)
