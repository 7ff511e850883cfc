"""The study of sorting: its sequences, its relaxations, and verdicts that can say no."""

import json

import pytest
import torch
from rich.console import Console

from bistoch.lab.reproduce import sorting
from bistoch.lab.reproduce.sorting import (
    FREE,
    METHODS,
    OURS,
    STUDY,
    Reader,
    Sizes,
    decode,
    draw_sequences,
    log_plan,
    neural_sort,
)
from bistoch.lab.study import Results, Row, Settings, read_record, run_study


def test_ranks_are_those_of_the_numbers():
    labels = torch.arange(10)
    places, rank = draw_sequences(labels, (0, 10), 50, 5, torch.Generator().manual_seed(0))
    value = [int("".join(map(str, digits))) for digits in places.flatten(0, 1).tolist()]
    for numbers, ranks in zip(torch.tensor(value).view(50, 5), rank, strict=True):
        ordered = numbers[ranks.argsort()]
        assert (ordered.diff() >= 0).all()


def test_a_split_draws_from_its_own_digits():
    labels = torch.arange(10)
    places, _ = draw_sequences(labels, (6, 10), 50, 5, torch.Generator())
    assert places.min() == 6
    assert places.max() == 9


def test_digits_stand_side_by_side():
    digits = torch.arange(3.0)[:, None, None].expand(3, 14, 14)
    seen = []
    reader = Reader(digits, 1, (2, 2, 2)).eval()
    reader.layers[0].register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    reader(torch.tensor([[[2, 0, 1, 1]]]))
    assert seen[0].shape == (1, 1, 14, 56)
    assert seen[0][0, 0, 5, ::14].tolist() == [2, 0, 1, 1]


def test_neural_sort_is_the_formula_of_the_paper():
    scalar = torch.tensor([0.3, 2.0, -1.0], dtype=torch.float64)
    plan = neural_sort(scalar[None], 0.7)[0].exp()
    for i in (1, 2, 3):
        # the paper has the highest first
        logits = [
            ((3 + 1 - 2 * i) * scalar[j] - (scalar[j] - scalar).abs().sum()) / 0.7 for j in range(3)
        ]
        torch.testing.assert_close(plan[:, 3 - i], torch.stack(logits).softmax(0))


@pytest.mark.parametrize("method", METHODS)
def test_log_plans_know_the_order_and_have_finite_gradients(method):
    n = 4
    rank = torch.tensor([[2, 0, 3, 1]])
    output = 2.0 * rank[..., None] - 3.0
    if method == FREE:
        output = 5 * torch.nn.functional.one_hot(rank, n).float()
    # the temperature comes last
    output = torch.cat([output, torch.full((1, n, 1), 0.1)], -1).requires_grad_()
    found = log_plan(output, method, Sizes())
    assert torch.equal(decode(output, method), rank)
    if method != sorting.ROWS:
        assert torch.equal(found.argmax(-1), rank)
    found.sum().backward()
    assert output.grad.isfinite().all()


def test_verdicts_can_say_no():
    def holds(shares):
        rows = []
        for n in (3, 5):
            for method in METHODS:
                good = round(100 * shares[method])
                result = {"sorted": "1" * good + "0" * (100 - good)}
                rows.append(Row(f"n = {n}: {method}", 0, {"n": n, "method": method}, result))
        return [verdict.holds for verdict in sorting.checks(Results(rows))]

    assert holds({name: 0.95 if name == OURS else 0.5 for name in METHODS}) == ["yes"] * 8
    behind = holds({name: 0.5 if name == OURS else 0.95 for name in METHODS})
    assert behind == ["no"] * 2 + ["no, the opposite"] * 6
    assert holds(dict.fromkeys(METHODS, 0.85)) == ["no", "yes"] + ["inconclusive"] * 6


def test_the_smoke_run_ends_in_a_report(tmp_path, monkeypatch):
    monkeypatch.delenv("BISTOCH_DATA", raising=False)
    settings = Settings(tmp_path, seeds=(0,), smoke=True)
    page = run_study(STUDY, settings, Console(quiet=True))
    results = read_record(page.parent / "report.json")
    assert len(results.names) == 2 * len(METHODS)
    assert all(len(row.result["sorted"]) == 20 for row in results.rows)
    assert (page.parent / "figures" / "sorting.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((page.parent / "report.json").read_text())["verdicts"]) == 8
    # a run that lacks some cells shows the others
    part = Results([row for row in results.rows if row.name != f"n = 5: {FREE}"])
    assert [row[0] for row in sorting.tables(part)[0].rows][:4] == list(METHODS)
    assert sorting.figure(part)
