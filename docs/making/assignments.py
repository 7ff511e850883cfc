"""What the pages on registration and sorting show, from the records of their studies."""

from making.drawing import DOCS, put_table, save

from bistoch.lab.reproduce import jigsaw as jigsaw_study
from bistoch.lab.reproduce import registration as registration_study
from bistoch.lab.reproduce import sorting as sorting_study
from bistoch.lab.study import read_record

RECORDS = DOCS.parent / "benchmarks" / "lab"
ASKED = ("asked", "measured", "holds")


def registration() -> None:
    """Rotations that were found, by method and setting."""
    results = read_record(RECORDS / "registration.json")
    save(registration_study.figure(results), "registration")
    success, differences = registration_study.tables(results)
    verdicts = registration_study.checks(results)
    put_table("registration.md", "registration_success", *success[:2])
    put_table("registration.md", "registration_differences", *differences[:2])
    put_table("registration.md", "registration_verdicts", ASKED, verdicts)


def sorting() -> None:
    """Sorted sequences by method and length."""
    results = read_record(RECORDS / "sorting.json")
    save(sorting_study.figure(results), "sorting")
    shares, details = sorting_study.tables(results)
    put_table("sorting.md", "sorting_shares", *shares[:2])
    put_table("sorting.md", "sorting_details", *details[:2])
    put_table("sorting.md", "sorting_verdicts", ASKED, sorting_study.checks(results))


def jigsaw() -> None:
    """Pictures that became whole."""
    results = read_record(RECORDS / "jigsaw.json")
    save(jigsaw_study.figure(results), "jigsaw")
    (whole,) = jigsaw_study.tables(results)
    put_table("sorting.md", "jigsaw_whole", *whole[:2])
    put_table("sorting.md", "jigsaw_verdicts", ASKED, jigsaw_study.checks(results))
