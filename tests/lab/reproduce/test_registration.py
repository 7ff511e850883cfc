"""The study of registration: its clouds, and verdicts that can say no."""

import json

import torch
from rich.console import Console

from bistoch.lab.registration import angle
from bistoch.lab.reproduce import registration
from bistoch.lab.reproduce.registration import METHODS, SETTINGS, STUDY, Setting, Sizes, draw_pairs
from bistoch.lab.study import Results, Row, Settings, read_record, run_study

SMALL = Sizes(points=30, noise=0.0)


def shapes():
    return torch.rand(4, 100, 3, generator=torch.Generator().manual_seed(0)) - 0.5


def test_source_and_target_are_other_points_of_one_shape():
    source, target, rotation = draw_pairs(shapes(), Setting(60), SMALL, 3)
    still = torch.eye(3).expand(4, 3, 3)
    torch.testing.assert_close(angle(rotation, still), torch.full((4,), 60.0), atol=0.01, rtol=0)
    back = (target - target.mean(1, keepdim=True)) @ rotation
    # up to the shift the target consists of points of the shape, none of which is in the source
    for shape, some, others in zip(shapes(), source, back, strict=True):
        left = [p for p in shape if not (some == p).all(-1).any()]
        assert len(left) == 70
        gaps = torch.cdist(others[1:] - others[0], torch.stack([p - q for p in left for q in left]))
        assert gaps.min(-1).values.max() < 1e-3


def test_outliers_and_crops_are_of_the_stated_share():
    clean, *_ = draw_pairs(shapes(), Setting(60), SMALL, 3)
    source, target, _ = draw_pairs(shapes(), Setting(60, 40, both=True), SMALL, 3)
    assert (source != clean).any(-1).sum(-1).tolist() == [12] * 4
    assert target.shape == (4, 30, 3)
    # a crop removes one side of every shape
    whole = draw_pairs(shapes(), Setting(30), SMALL, 3)[1]
    cropped = draw_pairs(shapes(), Setting(30, crop=60), SMALL, 3)[1]
    assert (cropped.var(1).sum(-1) < whole.var(1).sum(-1)).all()


def test_verdicts_can_say_no():
    def holds(good):
        rows = []
        for setting in map(str, SETTINGS):
            for method in METHODS:
                is_good = method in good[setting]
                errors = ["3.00" if is_good or i % 4 == 0 else "50.00" for i in range(60)]
                options = {"setting": setting, "method": method}
                rows.append(Row(f"{setting}: {method}", 0, options, {"errors": " ".join(errors)}))
        return [verdict.holds for verdict in registration.checks(Results(rows))]

    clean, *dirty = map(str, SETTINGS)
    expected = holds({clean: ("lam 1",), **dict.fromkeys(dirty, ("lam 0", "slack"))})
    assert expected[:4] == ["yes", "yes", "inconclusive", "yes"]
    assert expected[4:7] == ["no, the opposite", "inconclusive", "yes"]
    other = holds({clean: ("lam 0",), **dict.fromkeys(dirty, ("lam 0.9", "lam 1"))})
    assert other[:4] == ["no, the opposite", "no, the opposite", "yes", "no, the opposite"]
    assert other[4:7] == ["yes", "inconclusive", "no, the opposite"]


def test_the_smoke_run_ends_in_a_report(tmp_path, monkeypatch):
    monkeypatch.delenv("BISTOCH_DATA", raising=False)
    settings = Settings(tmp_path, seeds=(0,), smoke=True)
    page = run_study(STUDY, settings, Console(quiet=True))
    results = read_record(page.parent / "report.json")
    assert len(results.names) == 3 * len(METHODS)
    assert len(registration.degrees(results.rows[0].result)) == 12
    assert (page.parent / "figures" / "registration.png").read_bytes().startswith(b"\x89PNG")
    # what is missing in a part of the cells is left blank
    part = Results([row for row in results.rows if row.options["method"] != "slack"])
    assert registration.tables(part)[0].rows[0][-1] == ""
    assert registration.figure(part)
    verdicts = json.loads((page.parent / "report.json").read_text())["verdicts"]
    assert len(verdicts) == 12
