"""Readers of labelled texts, sentences in several languages, and corpora."""

import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bistoch.lab.data.kinds import Corpus, DataError, Dataset, Pairs
from bistoch.lab.data.read_files import damage_errors, read_bytes, read_lines, read_text

if TYPE_CHECKING:
    from bistoch.lab.data.entry import Entry

Rows = list[tuple[str, int]]


def _dataset(entry: "Entry", train: Rows, test: Rows, valid: Rows | None = None) -> Dataset:
    splits = {"train": train, "test": test} | ({"valid": valid} if valid else {})
    x = {split: [text for text, _ in rows] for split, rows in splits.items()}
    y = {split: np.array([label for _, label in rows]) for split, rows in splits.items()}
    return Dataset.from_splits(entry.name, "text", x, y, entry.classes)


def _sentence_and_label(lines: list[str]) -> Rows:
    rows = (line.split("\t") for line in lines[1:])
    return [(sentence, int(label)) for sentence, label in rows]


def read_sst2(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """Two tables `sentence, label`, train and dev: the labels of GLUE's own test are secret."""
    train, dev = (_sentence_and_label(read_lines(path)) for path in paths.values())
    return _dataset(entry, train, dev)


def read_sst2_zip(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """The same two tables inside the archive of GLUE."""
    (path,) = paths.values()
    with damage_errors(path), zipfile.ZipFile(path) as archive:
        train, dev = (
            _sentence_and_label(archive.read(f"SST-2/{split}.tsv").decode().strip("\n").split("\n"))
            for split in ("train", "dev")
        )
    return _dataset(entry, train, dev)


def read_split_table(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """One table `split, label, text`; a set without train is trained on dev."""
    (path,) = paths.values()
    splits: dict[str, Rows] = {}
    for line in read_lines(path)[1:]:
        split, label, text = line.split("\t")
        splits.setdefault(split, []).append((text, int(label)))
    train = splits["train"] if "train" in splits else splits["dev"]
    return _dataset(entry, train, splits["test"], splits.get("val"))


def read_imdb(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """Two files with one JSON object `label, text` per line."""
    train, test = (
        [(row["text"], row["label"]) for row in map(json.loads, read_lines(path))]
        for path in paths.values()
    )
    return _dataset(entry, train, test)


def read_imdb_archive(entry: "Entry", paths: Mapping[str, Path]) -> Dataset:
    """The official archive: one file per review, in folders train/pos, train/neg, test/pos, ..."""
    (path,) = paths.values()
    reviews: dict[str, list[tuple[str, str, int]]] = {"train": [], "test": []}
    with damage_errors(path), tarfile.open(path) as archive:
        for member in archive:
            parts = Path(member.name).parts
            labelled = len(parts) == 4 and parts[2] in {"neg", "pos"} and parts[1] in reviews
            if labelled and (stream := archive.extractfile(member)):
                text = stream.read().decode("utf-8")
                reviews[parts[1]].append((parts[3], text, int(parts[2] == "pos")))
    # by file name, which mixes both labels and does not depend on how the archive was packed
    train, test = (
        [(text, label) for _, text, label in sorted(reviews[s])] for s in ("train", "test")
    )
    return _dataset(entry, train, test)


def read_multi30k(entry: "Entry", paths: Mapping[str, Path]) -> Pairs:
    """One table `split, en, de, fr, cs`."""
    (path,) = paths.values()
    head, *rows = [line.split("\t") for line in read_lines(path)]
    splits = {
        split: {
            language: [row[column] for row in rows if row[0] == split]
            for column, language in enumerate(head)
            if column
        }
        for split in ("train", "val", "test2016")
    }
    return Pairs(entry.name, "pairs", splits["train"], splits["val"], splits["test2016"])


def read_wikitext(entry: "Entry", paths: Mapping[str, Path]) -> Corpus:
    """Three text files: train, valid, test."""
    train, valid, test = (read_text(path) for path in paths.values())
    return Corpus(entry.name, "corpus", train, valid, test)


def read_shakespeare(entry: "Entry", paths: Mapping[str, Path]) -> Corpus:
    """One text: the first 90 % for training, then 5 % and 5 %."""
    (path,) = paths.values()
    return _cut(entry, read_text(path))


def read_enwik8(entry: "Entry", paths: Mapping[str, Path]) -> Corpus:
    """The first ten million bytes of enwik8, cut 90 : 5 : 5 as is usual for the whole."""
    (path,) = paths.values()
    limit = sum(entry.counts.values())
    if path.suffix == ".zip":
        with (
            damage_errors(path),
            zipfile.ZipFile(path) as archive,
            archive.open("enwik8") as stream,
        ):
            content = stream.read(limit)
    else:
        content = read_bytes(path, limit)
    if len(content) != limit:
        raise DataError(f"{path} is cut: it has {len(content)} bytes, expected {limit}")
    return _cut(entry, content)


def _cut(entry: "Entry", content: str | bytes) -> Corpus:
    train, valid = entry.counts["train"], entry.counts["train"] + entry.counts["valid"]
    return Corpus(entry.name, "corpus", content[:train], content[train:valid], content[valid:])
