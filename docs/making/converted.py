"""What the page on converting any model shows, from the record of benchmarks/convert.py."""

import json

from making.drawing import DOCS, put_table


def converted() -> None:
    """Exactness and price of converted models; times belong to the machine of the record."""
    record = json.loads((DOCS.parent / "benchmarks" / "convert.json").read_text(encoding="utf-8"))
    heads = ("model", "layers", "difference with softmax", "time with softmax", "with elastic")
    rows = [
        [
            name,
            str(row["layers"]),
            "0" if row["float32"] == 0 else f"{row['float32']:.0e}",
            *(
                f"{row[f'forward, {one}']:.2f}, {row[f'forward+backward, {one}']:.2f}"
                for one in ("softmax", "elastic")
            ),
        ]
        for name, row in record["models"].items()
    ]
    put_table("convert.md", "converted", heads, rows)
