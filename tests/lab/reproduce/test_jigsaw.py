"""The jigsaw: its pieces, when a picture is whole, and verdicts that can say no."""

import torch
from rich.console import Console

from bistoch.lab.reproduce import jigsaw
from bistoch.lab.reproduce.jigsaw import METHODS, STUDY, cut, is_whole, shuffle
from bistoch.lab.study import Results, Row, Settings, read_record, run_study


def pictures():
    return torch.randint(1, 256, (5, 8, 8), dtype=torch.uint8)


def test_pieces_are_cut_row_by_row_and_found_again():
    whole = pictures()
    pieces = cut(whole)
    assert torch.equal(pieces[:, 6].view(5, 2, 2), whole[:, 2:4, 4:6])
    assert cut(torch.zeros(2, 8, 8, 3)).shape == (2, 16, 12)
    shuffled, place = shuffle(pieces, torch.Generator().manual_seed(0))
    assert (place.sort(-1).values == torch.arange(16)).all()
    for one in range(5):
        for piece, where in zip(shuffled[one], place[one], strict=True):
            assert torch.equal(piece, pieces[one, where])


def test_a_picture_is_whole_if_it_looks_like_the_original():
    whole = pictures()
    whole[:, :2] = 0
    pieces, place = shuffle(cut(whole), torch.Generator().manual_seed(0))
    assert is_whole(pieces, place, place).all()
    # the four places of the first row are black: any order of them will do, and holes too
    black = torch.where(place < 4, 3 - place, place)
    assert is_whole(pieces, place, black).all()
    assert is_whole(pieces, place, place.clamp_min(3)).all()
    # two pieces at one place leave a hole that is not black, a wrong piece shows
    assert not is_whole(pieces, place, place.clamp_max(14)).any()
    swapped = torch.where(place == 7, 8, torch.where(place == 8, 7, place))
    assert not is_whole(pieces, place, swapped).any()
    # a black piece on top of another one is seen, whichever comes last
    assert not is_whole(pieces, place, torch.where(place == 0, 9, place)).any()


def test_verdicts_can_say_no():
    def holds(soft, balanced):
        rows = []
        for method, good in zip(METHODS, (soft, balanced), strict=True):
            hits = "1" * good + "0" * (100 - good)
            result = {"whole": {"argmax": hits, "assigned": hits}}
            rows.append(Row(method, 0, {"method": method}, result))
        return [verdict.holds for verdict in jigsaw.checks(Results(rows))]

    assert holds(20, 50) == ["yes"] * 2
    assert holds(50, 20) == ["no, the opposite"] * 2
    assert holds(50, 50) == ["inconclusive"] * 2


def test_the_smoke_run_ends_in_a_report(tmp_path, monkeypatch):
    monkeypatch.delenv("BISTOCH_DATA", raising=False)
    page = run_study(STUDY, Settings(tmp_path, seeds=(0,), smoke=True), Console(quiet=True))
    results = read_record(page.parent / "report.json")
    assert results.names == list(METHODS)
    assert len(jigsaw.whole("argmax")(results.rows[0].result)) == 100
    assert (page.parent / "figures" / "jigsaw.png").read_bytes().startswith(b"\x89PNG")
