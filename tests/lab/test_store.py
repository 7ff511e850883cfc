"""A store keeps finished runs, tells configurations apart, and survives damaged files."""

from dataclasses import dataclass

import pytest

from bistoch.lab.store import Store


@dataclass(frozen=True)
class Setup:
    operator: str = "softmax"
    seeds: tuple[int, ...] = (0, 1)


def test_a_finished_run_is_read_and_not_repeated(tmp_path):
    run = Store(tmp_path).run("softmax, seed 0", {"setup": Setup(), "seed": 0})
    assert run.read() is None
    first = run.once(lambda: {"loss": 0.1 + 0.2, "sizes": (1, 2)})
    assert first == {"loss": 0.1 + 0.2, "sizes": [1, 2]}

    def repeated():
        raise RuntimeError("ran again")

    assert Store(tmp_path).run("softmax, seed 0", {"seed": 0, "setup": Setup()}).once(repeated) == (
        first
    )
    assert [file.name for file in tmp_path.iterdir()] == [run.path.name]
    assert run.folder == run.path.with_suffix("")
    assert not run.folder.exists()


def test_another_configuration_is_another_run(tmp_path):
    store = Store(tmp_path)
    runs = [
        store.run("a", {"setup": Setup(), "seed": 0}),
        store.run("a", {"setup": Setup(), "seed": 1}),
        store.run("a", {"setup": Setup("sinkhorn"), "seed": 0}),
    ]
    assert len({run.path for run in runs}) == 3
    runs[0].write({"x": 1})
    assert [run.read() for run in runs] == [{"x": 1}, None, None]


@pytest.mark.parametrize(
    "content", ["{ half a fi", "", "[1]", '{"configuration": 3}', '{"result": {}}', "\xff\xfe"]
)
def test_a_damaged_file_is_missing_and_said(tmp_path, content):
    said = []
    run = Store(tmp_path, said.append).run("a", {"seed": 0})
    run.write({"x": 1})
    run.path.write_bytes(content.encode("latin-1"))
    assert run.read() is None
    assert len(said) == 1
    assert "is damaged and its run is repeated" in said[0]
    assert run.once(lambda: {"x": 2}) == run.read() == {"x": 2}


def test_what_json_cannot_hold_is_said(tmp_path):
    with pytest.raises(TypeError, match="set cannot be kept as JSON"):
        Store(tmp_path).run("a", {"seeds": {1, 2}})
