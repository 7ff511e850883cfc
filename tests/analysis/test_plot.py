import itertools
import sys

import pytest
import torch

from bistoch.analysis import draw_plans


@pytest.fixture
def plans():
    return {name: torch.rand(5, 7).softmax(-1) for name in ("first", "second", "third")}


def axes_of(figure):
    return {axes.get_label(): axes for axes in figure.axes}


def test_every_plan_has_its_three_panels_with_its_data(plans):
    axes = axes_of(draw_plans(plans))
    assert len(axes) == 3 * len(plans) + 1
    for name, plan in plans.items():
        plan = plan.double()
        torch.testing.assert_close(torch.from_numpy(axes[name].images[0].get_array().data), plan)
        columns = torch.tensor([bar.get_height() for bar in axes[f"{name} columns"].patches])
        torch.testing.assert_close(columns, plan.sum(0))
        rows = torch.tensor([bar.get_width() for bar in axes[f"{name} rows"].patches])
        torch.testing.assert_close(rows, plan.sum(1))
        assert axes[f"{name} columns"].get_title() == name


def test_a_line_marks_the_balanced_column_sum(plans):
    axes = axes_of(draw_plans(plans))["first columns"]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([5 / 7, 5 / 7], abs=1e-6)


def test_colours_and_bars_share_one_scale():
    axes = axes_of(draw_plans({"even": torch.full((4, 4), 0.25), "hard": torch.eye(4)}))
    assert {axes[name].images[0].norm.vmax for name in ("even", "hard")} == {1.0}
    assert axes["even columns"].get_ylim() == axes["hard columns"].get_ylim()


def test_overloaded_and_neglected_columns_stand_out():
    unfair = torch.tensor([[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.2, 0.8, 0.0]])
    bars = axes_of(draw_plans({"unfair": unfair}))["unfair columns"].patches
    assert len({bar.get_facecolor() for bar in bars}) == 3


def test_many_plans_take_several_lines_of_equal_length():
    plan = torch.eye(3)
    wide = draw_plans({str(i): plan for i in range(4)}).get_size_inches()
    tall = draw_plans({str(i): plan for i in range(6)}).get_size_inches()
    assert tall[0] < wide[0]
    assert tall[1] > wide[1]


def test_a_plan_with_gradients_in_half_precision_on_one_row():
    plan = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    assert "one" in axes_of(draw_plans({"one": plan}))


@pytest.mark.parametrize("shape", [(2, 3, 3), (3,), (0, 3)])
def test_what_is_not_one_matrix_is_refused(shape):
    with pytest.raises(ValueError, match=r"the plan 'odd' must be one matrix \(n, m\)"):
        draw_plans({"odd": torch.ones(shape)})


def test_no_plan_at_all_is_refused():
    with pytest.raises(ValueError, match="at least one plan"):
        draw_plans({})


def test_a_missing_library_is_named_with_its_extra(monkeypatch, plans):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "bistoch\[plot\]"'):
        draw_plans(plans)


@pytest.mark.parametrize(
    "name", ["elastic_monarch(lam=0.5, iters=20)", "delta(" + "window=2, " * 20 + "sink=1)"]
)
def test_long_titles_stay_above_their_panels(name):
    figure = draw_plans({f"{i} {name}": torch.eye(3) for i in range(3)})
    figure.draw_without_rendering()
    boxes = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
    assert len(boxes) == 3
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    assert all(figure.bbox.x0 <= box.x0 and box.y1 <= figure.bbox.y1 for box in boxes)


def test_negative_weights_are_drawn_over_the_others():
    signed = torch.tensor([[1.0, 0.0], [1.2, -0.2]])
    axes = axes_of(draw_plans({"signed": signed, "even": torch.full((2, 2), 0.5)}))
    (over,) = axes["signed"].images[1:]
    assert over.get_array().mask.tolist() == [[True, True], [True, False]]
    assert over.get_array()[1, 1] == pytest.approx(0.2)
    assert axes["signed"].get_xlabel().endswith("red to -0.2")
    assert len(axes["even"].images) == 1
    # a column that sums to less than nothing hangs below the line
    assert axes["signed columns"].get_ylim()[0] == pytest.approx(-0.2)
