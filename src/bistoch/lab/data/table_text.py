"""The rows of text in the table of data sets."""

from bistoch.lab.data import read_text
from bistoch.lab.data.entry import Entry, File, Form

POLARITY = ("negative", "positive")

TEXT = (
    Entry(
        "imdb",
        "text",
        "film reviews, half of them positive",
        "https://ai.stanford.edu/~amaas/data/sentiment/",
        "research use",
        {"train": 25000, "test": 25000},
        POLARITY,
        forms=(
            Form(
                read_text.read_imdb,
                (
                    File(
                        "imdb_train.jsonl.xz",
                        9216052,
                        "6b250fb95a4555ceb8040d49d60b5494048e70afbca3b2f8caf8e412a038a08a",
                    ),
                    File(
                        "imdb_test.jsonl.xz",
                        8980104,
                        "d27d836640ad730a67bd1d02c6e6990f5f2ee8b47aa0430e1b6a795d5b4c2333",
                    ),
                ),
            ),
            Form(
                read_text.read_imdb_archive,
                (
                    File(
                        "aclImdb_v1.tar.gz",
                        84125825,
                        "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
                        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "sst2",
        "text",
        "phrases of film reviews (GLUE); test is GLUE's dev, whose labels are public",
        "https://gluebenchmark.com",
        "none stated",
        {"train": 67349, "test": 872},
        POLARITY,
        forms=(
            Form(
                read_text.read_sst2,
                (
                    File(
                        "sst2_train.tsv.gz",
                        1445057,
                        "df0ba9700b2f7a6ded34f3be832e0ba23cb27276f5a145e9796fc619cf63febe",
                    ),
                    File(
                        "sst2_dev.tsv.gz",
                        38132,
                        "2b362b78d36eccad2d3304110e76d95a56654f860a5913f91fe4b12546d439b4",
                    ),
                ),
            ),
            Form(
                read_text.read_sst2_zip,
                (
                    File(
                        "SST-2.zip",
                        7439277,
                        "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
                        "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "agnews",
        "text",
        "news in four topics; train is a draw of 10001 from its 120000, test is whole",
        "http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
        "non-commercial",
        {"train": 10001, "test": 7600},
        ("World", "Sports", "Business", "Sci/Tech"),
        forms=(
            Form(
                read_text.read_split_table,
                (
                    File(
                        "agnews_dev_test.tsv.gz",
                        1429759,
                        "8560b1168bae3543e87aa77ccc72899452797e07b5beaa5c685cf80e5625c077",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "tweeteval-emotion",
        "text",
        "tweets by emotion, with a valid split of 374",
        "https://github.com/cardiffnlp/tweeteval",
        "Twitter's rules",
        {"train": 3257, "valid": 374, "test": 1421},
        ("anger", "joy", "optimism", "sadness"),
        forms=(
            Form(
                read_text.read_split_table,
                (
                    File(
                        "tweeteval_emotion.tsv.gz",
                        214306,
                        "de467000869a34d7f498fbfef2f108457e5904f4f8a2f07c1f7a1b0ce07eedce",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "multi30k",
        "pairs",
        "captions of pictures in English, German, French and Czech",
        "https://github.com/multi30k/dataset",
        "research use",
        {"train": 29000, "valid": 1014, "test": 1000},
        forms=(
            Form(
                read_text.read_multi30k,
                (
                    File(
                        "multi30k.tsv.gz",
                        3125014,
                        "e30075c115f6459d158461b98f7aede081dbe6d20fb8dcf49fb59315065e2652",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "wikitext2",
        "corpus",
        "articles of Wikipedia, words, rare ones as <unk>; articles of train in another order",
        "https://huggingface.co/datasets/Salesforce/wikitext",
        "CC BY-SA 3.0",
        {"train": 10780437, "valid": 1120192, "test": 1255018},
        forms=(
            Form(
                read_text.read_wikitext,
                (
                    File(
                        "wikitext2_train.txt.xz",
                        2736836,
                        "d46259d2bb7253768092a125351e2e69a0160f26cb5c466a1a72f905a230320f",
                    ),
                    File(
                        "wikitext2_valid.txt.xz",
                        305992,
                        "1322771e23310248961e17b3c55df138cd3e5c57f2e36ac1d131e9c6158ccd74",
                    ),
                    File(
                        "wikitext2_test.txt.xz",
                        336552,
                        "306c08b989e77ca6d5587c58d90bf8f8fa3be85671b0eda75315de9f68584fbe",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "tiny-shakespeare",
        "corpus",
        "plays of Shakespeare, 65 characters, cut 90 : 5 : 5",
        "https://github.com/karpathy/char-rnn",
        "public domain",
        {"train": 1003854, "valid": 55770, "test": 55770},
        forms=(
            Form(
                read_text.read_shakespeare,
                (
                    File(
                        "tinyshakespeare.txt.gz",
                        433884,
                        "13125fe8f49092165d7d489e3944db52d1ba546e64a60080cc9523bcd0c5e46a",
                    ),
                ),
            ),
            Form(
                read_text.read_shakespeare,
                (
                    File(
                        "tinyshakespeare.txt",
                        1115394,
                        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "enwik8",
        "corpus",
        "the first ten million bytes of enwik8 (Wikipedia as XML), cut 90 : 5 : 5",
        "https://mattmahoney.net/dc/textdata.html",
        "CC BY-SA and GFDL",
        {"train": 9000000, "valid": 500000, "test": 500000},
        forms=(
            Form(
                read_text.read_enwik8,
                (
                    File(
                        "enwik8_first10MB.xz",
                        2720256,
                        "d5aace90aebe4f79e45c46534f5d369ff2f08043fe73138618f72b707ad5acc9",
                    ),
                ),
            ),
            Form(
                read_text.read_enwik8,
                (
                    File(
                        "enwik8.zip",
                        36445475,
                        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
                        "https://mattmahoney.net/dc/enwik8.zip",
                    ),
                ),
            ),
        ),
    ),
)
