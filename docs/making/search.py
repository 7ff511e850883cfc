"""What the README shows first: a search with hubs and without, by the pieces of `bistoch demo`."""

from making.drawing import put_table, save
from rich.console import Console

from bistoch.lab.progress import progress
from bistoch.lab.search.demo import BANKS, LAMS, OURS, measure, searches_at_hubs
from bistoch.lab.search.draw import draw_pairs
from bistoch.lab.search.halves import load_halves
from bistoch.lab.search.methods import BASELINES

ROWS = {"bank": "bank of 4000 other queries", "known": "the queries themselves"}


def search_gain() -> None:
    """The picture of one hub, and first results that are right, by method and bank."""
    halves = load_halves()
    with progress(Console(quiet=True), 2 * (len(BASELINES) + len(LAMS)), animated=False) as display:
        found = measure(halves, display)
    before, after = found["bank", "cosine"], found["bank", OURS["bank"]]
    pairs = searches_at_hubs(before, after, hubs=1)
    save(draw_pairs(halves, pairs, before, after), "search")
    rows = []
    for bank in BANKS:
        recall = {
            name: f"{100 * one.recall():.1f}" for (at, name), one in found.items() if at == bank
        }
        rows.append(
            [ROWS[bank], *(recall[name] for name in BASELINES), f"**{recall[OURS[bank]]}**"]
        )
    put_table("../README.md", "search_gain", ["", *BASELINES, "balanced"], rows)
