"""The table of data sets: what each is, its source and licence, and the files it is read from.

A file without an address was packed for this project. An address is given only where the checksum
in `checksums.txt` (sha256, bytes, path, and the checksum of the same content packed by someone
else) belongs to exactly the bytes at that address.
"""

from pathlib import Path
from typing import Any

from bistoch.lab.data import read_images, read_series, read_text, synthetic
from bistoch.lab.data.entry import Entry, File, Form

CHECKSUMS = {
    line.split()[2]: line.split()
    for line in Path(__file__).with_name("checksums.txt").read_text().splitlines()
}
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
CIFAR = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
FURNITURE = (
    "bathtub", "bed", "chair", "desk", "dresser",
    "monitor", "night_stand", "sofa", "table", "toilet",
)  # fmt: skip
POLARITY = ("negative", "positive")
ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
# a mirror with the same bytes, since LeCun's own server often refuses
MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
ETT = (
    "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/"
    "1d16c8f4f943005d613b5bc962e9eeb06058cf07/ETT-small/"
)
# twelve, four and four months of thirty days; what comes after is not used
HOURLY = {"train": 12 * 30 * 24, "valid": 4 * 30 * 24, "test": 4 * 30 * 24}
QUARTERS = {split: 4 * rows for split, rows in HOURLY.items()}


def _form(read: Any, *paths: str, url: str = "") -> Form:
    """Files and their reader; an address that ends in a slash is that of their folder."""
    files = []
    for path in paths:
        sha256, size, _, *repacked = CHECKSUMS[path]
        address = f"{url}{Path(path).name}" if url.endswith("/") else url
        files.append(File(path, int(size), sha256, address or None, *repacked))
    return Form(read, tuple(files))


def _idx(folder: str, url: str) -> Form:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return _form(read_images.read_idx, *(f"{folder}/{name}-ubyte.gz" for name in names), url=url)


def _ett(name: str, counts: dict[str, int]) -> Entry:
    letter, number = name[3], name[4]
    file = f"ETT{letter}{number}.csv"
    interval = "hourly" if letter == "h" else "every 15 minutes"
    return Entry(
        name, "series",
        f"oil temperature and load of electricity transformer {number}, {interval}, 7 columns",
        "https://github.com/zhouhaoyi/ETDataset", "CC BY-ND 4.0", counts,
        forms=(
            _form(read_series.read_series, f"{file}.gz"),
            _form(read_series.read_series, file, url=ETT),
        ),
    )  # fmt: skip


IMAGES = (
    Entry(
        "fashion-mnist-small", "images",
        "400 + 100 images of each class of fashion-mnist; comes with the package",
        "https://github.com/zalandoresearch/fashion-mnist", "MIT",
        {"train": 4000, "test": 1000}, CLOTHES,
        forms=(_form(read_images.read_npz, "fashion-mnist-small.npz"),),
    ),
    Entry(
        "fashion-mnist", "images", "articles of clothing, 28 x 28, grey",
        "https://github.com/zalandoresearch/fashion-mnist", "MIT",
        {"train": 60000, "test": 10000}, CLOTHES,
        # the first checksum is that of Zalando's file, the second that of Debian's package
        forms=(_idx("fashion-mnist", ZALANDO),),
    ),
    Entry(
        "mnist", "images", "handwritten digits, 28 x 28, grey",
        "http://yann.lecun.com/exdb/mnist/", "CC BY-SA 3.0",
        {"train": 60000, "test": 10000}, tuple("0123456789"),
        forms=(_form(read_images.read_npz, "mnist.npz"), _idx("mnist", MNIST)),
    ),
    Entry(
        "cifar10", "images",
        "animals and vehicles, 32 x 32, colour; the packed form is JPEG, not equal bit by bit",
        "https://www.cs.toronto.edu/~kriz/cifar.html", "none stated",
        {"train": 50000, "test": 10000}, CIFAR,
        forms=(
            _form(read_images.read_jpeg_npz, "cifar10_jpeg.npz"),
            _form(
                read_images.read_cifar_binary, "cifar-10-binary.tar.gz",
                url="https://www.cs.toronto.edu/~kriz/",
            ),
        ),
    ),
    Entry(
        "modelnet10", "points",
        "furniture, 1024 points drawn from each surface, centred, in the unit sphere",
        "https://modelnet.cs.princeton.edu", "academic use",
        {"train": 3991, "test": 908}, FURNITURE,
        forms=(_form(read_images.read_npz, "modelnet10_1024.npz"),),
    ),
)  # fmt: skip
TEXT = (
    Entry(
        "imdb", "text", "film reviews, half of them positive",
        "https://ai.stanford.edu/~amaas/data/sentiment/", "research use",
        {"train": 25000, "test": 25000}, POLARITY,
        forms=(
            _form(read_text.read_imdb, "imdb_train.jsonl.xz", "imdb_test.jsonl.xz"),
            _form(
                read_text.read_imdb_archive, "aclImdb_v1.tar.gz",
                url="https://ai.stanford.edu/~amaas/data/sentiment/",
            ),
        ),
    ),
    Entry(
        "sst2", "text",
        "phrases of film reviews (GLUE); test is GLUE's dev, whose labels are public",
        "https://gluebenchmark.com", "none stated", {"train": 67349, "test": 872}, POLARITY,
        forms=(
            _form(read_text.read_sst2, "sst2_train.tsv.gz", "sst2_dev.tsv.gz"),
            _form(
                read_text.read_sst2_zip, "SST-2.zip",
                url="https://dl.fbaipublicfiles.com/glue/data/",
            ),
        ),
    ),
    Entry(
        "agnews", "text",
        "news in four topics; train is a draw of 10001 from its 120000, test is whole",
        "http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html", "non-commercial",
        {"train": 10001, "test": 7600}, ("World", "Sports", "Business", "Sci/Tech"),
        forms=(_form(read_text.read_split_table, "agnews_dev_test.tsv.gz"),),
    ),
    Entry(
        "tweeteval-emotion", "text", "tweets by emotion, with a valid split of 374",
        "https://github.com/cardiffnlp/tweeteval", "Twitter's rules",
        {"train": 3257, "valid": 374, "test": 1421}, ("anger", "joy", "optimism", "sadness"),
        forms=(_form(read_text.read_split_table, "tweeteval_emotion.tsv.gz"),),
    ),
    Entry(
        "multi30k", "pairs", "captions of pictures in English, German, French and Czech",
        "https://github.com/multi30k/dataset", "research use",
        {"train": 29000, "valid": 1014, "test": 1000},
        forms=(_form(read_text.read_multi30k, "multi30k.tsv.gz"),),
    ),
    Entry(
        "wikitext2", "corpus",
        "articles of Wikipedia, words, rare ones as <unk>; articles of train in another order",
        "https://huggingface.co/datasets/Salesforce/wikitext", "CC BY-SA 3.0",
        {"train": 10780437, "valid": 1120192, "test": 1255018},
        forms=(
            _form(
                read_text.read_wikitext,
                *(f"wikitext2_{split}.txt.xz" for split in ("train", "valid", "test")),
            ),
        ),
    ),
    Entry(
        "tiny-shakespeare", "corpus", "plays of Shakespeare, 65 characters, cut 90 : 5 : 5",
        "https://github.com/karpathy/char-rnn", "public domain",
        {"train": 1003854, "valid": 55770, "test": 55770},
        forms=(
            _form(read_text.read_shakespeare, "tinyshakespeare.txt.gz"),
            _form(
                read_text.read_shakespeare, "tinyshakespeare.txt",
                url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
                "tinyshakespeare/input.txt",
            ),
        ),
    ),
    Entry(
        "enwik8", "corpus",
        "the first ten million bytes of enwik8 (Wikipedia as XML), cut 90 : 5 : 5",
        "https://mattmahoney.net/dc/textdata.html", "CC BY-SA and GFDL",
        {"train": 9000000, "valid": 500000, "test": 500000},
        forms=(
            _form(read_text.read_enwik8, "enwik8_first10MB.xz"),
            _form(read_text.read_enwik8, "enwik8.zip", url="https://mattmahoney.net/dc/"),
        ),
    ),
)  # fmt: skip
SERIES = (
    _ett("etth1", HOURLY), _ett("etth2", HOURLY), _ett("ettm1", QUARTERS), _ett("ettm2", QUARTERS),
    Entry(
        "weather", "series", "weather in Jena in 2020, every 10 minutes, 21 columns",
        "https://www.bgc-jena.mpg.de/wetter/", "none stated",
        {"train": 36887, "valid": 5270, "test": 10539},
        forms=(_form(read_series.read_series, "weather.csv.gz"),),
    ),
    Entry(
        "exchange", "series", "exchange rates of 8 currencies, daily",
        "https://github.com/laiguokun/multivariate-time-series-data", "none stated",
        {"train": 5311, "valid": 760, "test": 1517},
        forms=(_form(read_series.read_series, "exchange_rate.csv.gz"),),
    ),
    Entry(
        "illness", "series", "influenza-like illness in the United States, weekly, 7 columns",
        "https://gis.cdc.gov/grasp/fluview/fluportaldashboard.html", "none stated",
        {"train": 676, "valid": 97, "test": 193},
        forms=(_form(read_series.read_series, "national_illness.csv.gz"),),
    ),
)  # fmt: skip
MADE = (
    Entry(
        "shapes", "points",
        "64 points on a sphere, cube, cylinder, cone or torus, turned at random; from a seed",
        "bistoch.lab.data.point_shapes", "MIT", {"train": 1000, "test": 500}, synthetic.SHAPES,
        make=synthetic.make_shapes,
    ),
    Entry(
        "recall", "tokens",
        "8 pairs of key and value, then a key again: which value was it? From a seed",
        "bistoch.lab.data.recall", "MIT", {"train": 4000, "test": 1000},
        tuple(str(value) for value in range(synthetic.VALUES)), make=synthetic.make_recall,
    ),
)  # fmt: skip
DATASETS: dict[str, Entry] = {entry.name: entry for entry in (*IMAGES, *TEXT, *SERIES, *MADE)}
