"""Files appear whole, and what killed processes left is removed."""

import os
import subprocess
import sys

import pytest

from bistoch.lab.files import held, new_part, write_whole

KILLED = """
import os, signal, sys
from pathlib import Path
from bistoch.lab.files import write_whole
Path.write_bytes = lambda path, content: (path.touch(), os.kill(os.getpid(), signal.SIGKILL))
write_whole(Path(sys.argv[1]), b"half")
"""


@pytest.mark.skipif(os.name != "posix", reason="needs a signal that cannot be caught")
def test_the_next_write_removes_what_a_killed_one_left(tmp_path):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "a.json")], timeout=120, check=False
    )
    assert killed.returncode < 0
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".part")
    # of a process that is alive, and of something else
    others = [f".b.{os.getppid()}.0a1b.part", ".mine.part"]
    for name in others:
        (tmp_path / name).touch()
    write_whole(tmp_path / "b.json", b"all")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "b.json"])


def test_two_parts_of_one_file_differ(tmp_path):
    assert new_part(tmp_path / "a") != new_part(tmp_path / "a")


def test_a_folder_is_held_once(tmp_path):
    with (
        held(tmp_path),
        pytest.raises(ValueError, match="is in use by another process"),
        held(tmp_path),
    ):
        pass
