"""The rows of time series in the table of data sets."""

from bistoch.lab.data import read_series
from bistoch.lab.data.entry import Entry, File, Form

ETT = (
    "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/"
    "1d16c8f4f943005d613b5bc962e9eeb06058cf07/ETT-small/"
)
# twelve, four and four months of thirty days; what comes after is not used
HOURLY = {"train": 12 * 30 * 24, "valid": 4 * 30 * 24, "test": 4 * 30 * 24}
QUARTERS = {split: 4 * rows for split, rows in HOURLY.items()}


def _ett(name: str, counts: dict[str, int], size: int, csv: str, packed: int, gz: str) -> Entry:
    letter, number = name[3], name[4]
    file = f"ETT{letter}{number}.csv"
    pace = "hourly" if letter == "h" else "every 15 minutes"
    return Entry(
        name,
        "series",
        f"oil temperature and load of electricity transformer {number}, {pace}, 7 columns",
        "https://github.com/zhouhaoyi/ETDataset",
        "CC BY-ND 4.0",
        counts,
        forms=(
            Form(read_series.read_series, (File(f"{file}.gz", packed, gz),)),
            Form(read_series.read_series, (File(file, size, csv, ETT + file),)),
        ),
    )


SERIES = (
    _ett(
        "etth1",
        HOURLY,
        2589657,
        "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
        405601,
        "f1141f82f9d46968f05afa77ba16abfc4f790fe07583f9de06bb685b29a5411f",
    ),
    _ett(
        "etth2",
        HOURLY,
        2417960,
        "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
        428678,
        "41040ff6a385d9208bd0b6ca58c062859e92c380d1778d93e11dd093768b579a",
    ),
    _ett(
        "ettm1",
        QUARTERS,
        10360719,
        "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e",
        1551390,
        "a3d8dc1454f3762c72f6a3b5c56cf852077724ec52f5316896f17c937474cde7",
    ),
    _ett(
        "ettm2",
        QUARTERS,
        9677236,
        "db973ca252c6410a30d0469b13d696cf919648d0f3fd588c60f03fdbdbadd1fd",
        1520701,
        "975442df38506a4d905bb5b7e0aa8fb0ab22b5d2af9b9a933b0738902d99dbac",
    ),
    Entry(
        "weather",
        "series",
        "weather in Jena in 2020, every 10 minutes, 21 columns",
        "https://www.bgc-jena.mpg.de/wetter/",
        "none stated",
        {"train": 36887, "valid": 5270, "test": 10539},
        forms=(
            Form(
                read_series.read_series,
                (
                    File(
                        "weather.csv.gz",
                        2275774,
                        "e659cd0f7e9bde45adb03b9754dcdb56189e7a735fdb10c4e9542dfa6ab81355",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "exchange",
        "series",
        "exchange rates of 8 currencies, daily",
        "https://github.com/laiguokun/multivariate-time-series-data",
        "none stated",
        {"train": 5311, "valid": 760, "test": 1517},
        forms=(
            Form(
                read_series.read_series,
                (
                    File(
                        "exchange_rate.csv.gz",
                        190523,
                        "2fb0a9b8c67fc33a7d893d422588e41693e23b2d23466f8dac65484cb1af2eaf",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "illness",
        "series",
        "influenza-like illness in the United States, weekly, 7 columns",
        "https://gis.cdc.gov/grasp/fluview/fluportaldashboard.html",
        "none stated",
        {"train": 676, "valid": 97, "test": 193},
        forms=(
            Form(
                read_series.read_series,
                (
                    File(
                        "national_illness.csv.gz",
                        25589,
                        "25a5247c8d6ad2772c1b617d5117ad6d6187a1cffa389bcb7f7b9b79143f0a86",
                    ),
                ),
            ),
        ),
    ),
)
