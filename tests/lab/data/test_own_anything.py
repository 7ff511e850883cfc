"""Whatever bytes a file of yours holds, it loads or says in one sentence what is wrong."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bistoch.lab.data import DataError, load

HEADS = [
    "",
    "text,label\n",
    "text\tlabel\tsplit\n",
    "date,a\n",
    '{"text": "a", "label": 1}\n',
    "P5 ",
]
WORDS = ["a", "1", "-1", "nan", ",", "\t", "\n", "\r", '"', "{", "}", "train", "test", "\0", "\x85"]
FILES = ["a.csv", "a.tsv", "a.jsonl", "a.txt", "a.npz", "a.csv.gz", "a.jsonl.xz"]


def written(head, words):
    return (head + "".join(words)).encode()


texts = st.builds(written, st.sampled_from(HEADS), st.lists(st.sampled_from(WORDS), max_size=40))


@pytest.mark.parametrize("name", FILES)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.one_of(texts, st.binary(max_size=60)))
def test_any_bytes(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    try:
        data = load(path)
    except DataError as told:
        assert str(path) in str(told)  # noqa: PT017
        assert len(str(told)) < 1000  # noqa: PT017
    else:
        assert data.name == "a"
