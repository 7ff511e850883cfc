"""The command line says what it is asked, and says mistakes in one sentence."""

import errno
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import bistoch
from bistoch.cli import app
from bistoch.cli.errors import user_errors
from bistoch.cli.operators import SHOWN
from bistoch.lab.device import DeviceLostError

SOURCE = Path(bistoch.__file__).parent


def run(*words, columns=100):
    return CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": "1"}).invoke(app, list(words))


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"bistoch {bistoch.__version__}\n"


def test_help_names_every_verb():
    result = run("--help")
    assert result.exit_code == 0
    assert "list" in result.stdout
    assert "show" in result.stdout


def test_list_shows_every_row():
    result = run("list")
    assert result.exit_code == 0
    for name, row in bistoch.OPERATORS.items():
        assert name in result.stdout
        assert row.source in result.stdout
        for option, default in row.options().items():
            assert f"{option}={default!r}" in result.stdout


def test_list_fits_a_small_terminal():
    lines = run("list", columns=80).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    # nothing was cut off, and every name has its promises beside it
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)
    heads = next(line.split() for line in lines if line.startswith(" operator"))
    for name in bistoch.OPERATORS:
        (row,) = (line for line in lines if line.startswith(f" {name} "))
        assert len(row.split()) == len(heads)


def test_list_as_json_is_the_table():
    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}
    assert list(rows) == list(bistoch.OPERATORS)
    for name, row in bistoch.OPERATORS.items():
        # JSON has lists for tuples
        assert rows[name]["options"] == json.loads(json.dumps(row.options()))
        assert rows[name]["backends"] == list(row.backends)
        for promise in ("rows_exact", "columns", "differentiable", "causal", "family", "longest"):
            assert rows[name][promise] == getattr(row, promise)


def test_show_draws_the_family_with_its_sums():
    result = run("show", "--size", "8")
    assert result.exit_code == 0
    assert result.stderr == ""
    for text in SHOWN:
        assert text in result.stdout
    assert result.stdout.count(" 1.00") >= 8 * len(SHOWN)
    assert result.stdout.count("columns ") == len(SHOWN)
    assert "columns 1.00 to 1.00" in result.stdout


def test_show_plants_a_sink_that_balance_removes():
    free, planted = (run("show", "softmax", "--sink", sink).stdout for sink in ("0", "4"))
    fullest = [float(drawn.split(" to ")[-1]) for drawn in (free, planted)]
    assert fullest[0] < 2 < 5 < fullest[1]
    assert "columns 1.00 to 1.00" in run("show", "sinkhorn(iters=50)", "--sink", "4").stdout


@pytest.mark.parametrize("name", bistoch.OPERATORS)
def test_show_draws_any_operator(name):
    result = run("show", name, "--size", "3")
    assert result.exit_code == 0
    assert name in result.stdout


def test_show_is_repeatable_and_the_seed_matters():
    first, again, other = (run("show", "softmax", "--seed", s).stdout for s in ("0", "0", "1"))
    assert first == again != other


def test_the_text_of_an_operator_wins_over_eps():
    plain, flat = run("show", "softmax").stdout, run("show", "softmax", "--eps", "50").stdout
    assert plain != flat
    kept = run("show", "softmax(eps=1)", "--eps", "50").stdout
    assert kept.replace("softmax(eps=1)", "softmax").split() == plain.split()


def test_show_writes_a_real_picture(tmp_path):
    from PIL import Image

    target = tmp_path / "plans.png"
    result = run("show", "--size", "5", "--out", str(target))
    assert result.exit_code == 0
    assert f"wrote {target}" in result.stdout.replace("\n", "")
    with Image.open(target) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300
        # not a blank page
        assert len(picture.convert("L").getcolors()) > 20


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nonsense"], "unknown name 'nonsense'"),
        (["elastic(lam=2)"], "lam must be in [0, 1]"),
        (["elastic(lamb=0.5)"], "unknown option 'lamb'"),
        (["elastic(lam='high')"], "lam must be a number"),
        (["elastic(mask=1)"], "unknown option 'mask'"),
        (["elastic(backend='abacus')"], "backend must be one of"),
        (["elastic("], "cannot read 'elastic('"),
        (["__import__('os')"], "cannot read"),
        (["softmax", "--eps", "0"], "eps must be positive"),
        (["softmax", "--sink", "nan"], "sink must be finite"),
        (["softmax", "--out", "no/such/folder/a.png"], "cannot read or write no/such/folder/a.png"),
        (["softmax", "--out", "plans.nonsense"], "'nonsense' is not supported"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(words, sentence):
    result = run("show", *words, "--size", "3")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("bistoch: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


def test_a_full_disk_is_one_sentence_whatever_it_says_of_the_file(capsys):
    with pytest.raises(typer.Exit), user_errors():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert capsys.readouterr().err == "bistoch: cannot read or write: No space left on device\n"


def test_who_reads_no_further_makes_no_mistake():
    with pytest.raises(BrokenPipeError), user_errors():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_gpu_without_room_is_a_sentence_that_helps(capsys):
    said = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79 GiB."
    with pytest.raises(typer.Exit) as ended, user_errors():
        raise torch.OutOfMemoryError(said)
    assert ended.value.exit_code == 2
    sentence = capsys.readouterr().err
    assert "too little memory for another 20.00 GiB: ask for less" in sentence
    assert "--batch-size" in sentence
    assert sentence.count("\n") == 1


def test_a_lost_gpu_is_a_sentence(capsys):
    with pytest.raises(typer.Exit), user_errors():
        raise DeviceLostError("bench: flex ended with an illegal memory access")
    assert capsys.readouterr().err == "bistoch: bench: flex ended with an illegal memory access\n"


def test_a_warning_is_user_errors():
    result = run("show", "elastic(iters=1, tol=1e-9)")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: elastic_plan: the column error is")
    assert result.stderr.count("\n") == 1


def test_the_same_warning_is_said_once(capsys):
    with user_errors():
        for said in ("no kernel", "slow", "no kernel"):
            warnings.warn(said, stacklevel=2)
    assert capsys.readouterr().err == "warning: no kernel\nwarning: slow\n"


def test_a_missing_drawing_library_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("show", "softmax", "--size", "3", "--out", str(tmp_path / "plans.png"))
    assert result.exit_code == 2
    assert 'pip install "bistoch[plot]"' in result.stderr
    # what the terminal can do, it did
    assert "columns" in result.stdout


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "bistoch", "--version"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == f"bistoch {bistoch.__version__}\n"
