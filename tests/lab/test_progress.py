"""One display: bars with the time left on a terminal, one line per item elsewhere."""

import io

import pytest
from rich.console import Console

from bistoch.lab import progress as module
from bistoch.lab.progress import progress


def test_plain_lines_have_numbers_results_and_the_time_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=80)
    with progress(console, 3) as shown:
        for name, kept in (("old", True), ("a [x]", False), ("b", False)):
            shown.start(name)
            shown.step(1, 2, "loss 0.3")
            now[0] += 0 if kept else 50
            shown.finish(name, "loss 0.1", kept=kept)
    lines = console.file.getvalue().splitlines()
    assert lines == ["2/3 a [x]: loss 0.1 (50 s left)", "3/3 b: loss 0.1"]


def test_a_long_item_says_every_minute_how_far_it_is(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=80)
    with progress(console, 2) as shown:
        shown.start("flow")
        for step in range(1, 10):
            now[0] += 20
            shown.step(step, 10, "loss 0.3")
        shown.finish("flow")
    lines = console.file.getvalue().splitlines()
    assert lines == [
        "flow, step 3/10: loss 0.3 (6 min left)", "flow, step 6/10: loss 0.3 (5 min left)",
        "flow, step 9/10: loss 0.3 (4 min left)", "1/2 flow (3 min left)",
    ]  # fmt: skip


@pytest.mark.parametrize("animated", [True, False])
def test_bars_on_a_terminal(animated):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress(console, 2, animated=animated) as shown:
        shown.start("first")
        shown.step(1, 4, "loss 0.3")
        shown.print("a sentence that stays")
        shown.finish("first")
    text = console.file.getvalue()
    assert "a sentence that stays" in text
    assert animated or "first" in text


def test_an_interrupted_job_says_how_to_resume():
    console = Console(file=io.StringIO(), width=80)
    with pytest.raises(KeyboardInterrupt), progress(console, 2):
        raise KeyboardInterrupt
    assert "the same command resumes from here" in console.file.getvalue()
