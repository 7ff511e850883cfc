"""Fetching from a server on this machine: a whole proven file, or a sentence and nothing left."""

import errno
import http.server
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from io import StringIO

import pytest
from rich.console import Console

from bistoch.lab.data import DATASETS, DataError, download, fetch, find

# several chunks, so that what breaks can break in the middle
CONTENT = bytes(range(256)) * 1024
NAME = "sub/data.bin"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the server is told to."""

    def do_GET(self):
        server = self.server
        server.asked.append(self.path)
        if server.status != 200:
            self.send_error(server.status)
            return
        self.send_response(200)
        if server.announced is not None:
            self.send_header("Content-Length", str(server.announced))
        self.end_headers()
        half = len(server.content) // 2
        self.wfile.write(server.content[:half])
        self.wfile.flush()
        server.half_sent.set()
        server.go_on.wait(10)
        try:
            self.wfile.write(server.content[half:])
        except OSError:
            # whoever asked is gone
            return

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    # not an HTTPServer, which asks the network for the name of this machine
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.content, server.announced, server.status = CONTENT, len(CONTENT), 200
    server.asked, server.half_sent, server.go_on = [], threading.Event(), threading.Event()
    server.go_on.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.address = f"http://127.0.0.1:{server.server_address[1]}"
    yield server
    server.go_on.set()
    server.shutdown()
    thread.join(60)
    server.server_close()


@pytest.fixture
def row(entry, server):
    return entry({NAME: CONTENT}, url=server.address)


def left(tmp_path):
    """Every file in the cache."""
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


def quiet():
    return Console(file=StringIO())


def test_a_whole_file_is_kept_under_its_name(row, tmp_path):
    (path,) = fetch(row, quiet())
    assert path == tmp_path / "cache" / NAME
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["data.bin"]
    assert find(row).place == "cache"
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o644


def test_progress_is_shown(row):
    out = StringIO()
    fetch(row, Console(file=out, force_terminal=True, width=100))
    assert "data.bin" in out.getvalue()
    assert "262.1/262.1 kB" in out.getvalue()


def test_a_finished_file_is_never_touched(row, server, tmp_path):
    (path,) = fetch(row, quiet())
    before = path.stat()
    fetch(row, quiet())
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert server.asked == [f"/{NAME}"]


def test_a_wrong_file_of_yours_is_named_and_left_alone(row, server, put, tmp_path):
    put(tmp_path / "cache", {NAME: b"mine"})
    with pytest.raises(DataError, match="is not the file in the table"):
        fetch(row, quiet())
    assert (tmp_path / "cache" / NAME).read_bytes() == b"mine"
    assert server.asked == []


def test_a_wrong_checksum(row, server, tmp_path):
    server.content = CONTENT[:-1] + b"x"
    with pytest.raises(DataError, match=r"sent 262144 bytes with a sha256 .*; nothing was kept"):
        fetch(row, quiet())
    assert left(tmp_path) == []


def test_too_many_bytes(row, server, tmp_path):
    server.content, server.announced = CONTENT * 3, None
    with pytest.raises(DataError, match=r"expected 262144 and .*; nothing was kept"):
        fetch(row, quiet())
    assert left(tmp_path) == []


@pytest.mark.parametrize("announced", [len(CONTENT), None, 1000])
def test_a_cut_download(row, server, tmp_path, announced):
    server.content, server.announced = CONTENT[:1000], announced
    with pytest.raises(DataError, match=r"broke off after 1000 of 262144 bytes.*nothing was kept"):
        fetch(row, quiet())
    assert left(tmp_path) == []


@pytest.mark.parametrize(("status", "words"), [(404, "404 Not Found"), (503, "503 Service")])
def test_an_error_of_the_server(row, server, tmp_path, status, words):
    server.status = status
    with pytest.raises(DataError, match=f"little: http://.* answered {words}.*BISTOCH_DATA"):
        fetch(row, quiet())
    assert left(tmp_path) == []


def test_nobody_answers(entry, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    row = entry({NAME: CONTENT}, url="http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"cannot be reached .* 0 of 262144 bytes \(.*refused\)"):
        fetch(row, quiet())
    assert left(tmp_path) == []


def test_a_server_that_falls_silent(row, server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    server.go_on.clear()
    with pytest.raises(DataError, match=r"broke off after \d+ of 262144 bytes \(.*timed out\)"):
        fetch(row, quiet())
    assert left(tmp_path) == []


@pytest.fixture(params=[100_000, 262_000])
def full(request):
    """A disk on which a file cannot grow beyond a few chunks, or can by all but its last bytes."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (request.param, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(row, full, tmp_path):
    with pytest.raises(
        DataError, match=r"cannot write .*data\.bin: File too large.*nothing was kept"
    ):
        fetch(row, quiet())
    assert left(tmp_path) == []


def test_a_disk_that_fails_at_the_last_step(row, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(download.os, "replace", refuse)
    with pytest.raises(DataError, match=r"cannot write .*data\.bin: No space left .*BISTOCH_CACHE"):
        fetch(row, quiet())
    assert left(tmp_path) == []


def test_a_cache_that_cannot_be_made(row, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BISTOCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot write .*data\.bin"):
        fetch(row, quiet())


def test_interrupted(row, tmp_path):
    (file,) = row.forms[0].files

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download.download("little", file, tmp_path / "cache" / NAME, interrupt)
    assert left(tmp_path) == []


KILLED = """
import sys
from pathlib import Path
from bistoch.lab.data.entry import File
from bistoch.lab.data.download import download
path, size, sha256, url = sys.argv[1:]
download("little", File("data.bin", int(size), sha256, url), Path(path), lambda n: None)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a signal that cannot be caught")
def test_killed_in_the_middle(row, server, tmp_path):
    server.go_on.clear()
    (file,) = row.forms[0].files
    words = (str(tmp_path / "cache" / NAME), str(file.size), file.sha256, file.url)
    child = subprocess.Popen([sys.executable, "-c", KILLED, *words])
    assert server.half_sent.wait(60)
    until = time.monotonic() + 10
    while not left(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    (part,) = left(tmp_path)
    assert part.endswith(".part")
    assert find(row) is None
    server.go_on.set()
    fetch(row, quiet())
    assert (tmp_path / "cache" / NAME).read_bytes() == CONTENT
    # and what the killed one left is gone
    assert left(tmp_path) == [NAME]


def test_several_fetch_at_once(row, server, tmp_path):
    server.go_on.clear()
    told = []

    def one():
        told.append(fetch(row, quiet()))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 10
    while len(server.asked) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    server.go_on.set()
    for thread in threads:
        thread.join(60)
    assert told == [[tmp_path / "cache" / NAME]] * 4
    assert left(tmp_path) == ["data.bin"]
    assert (tmp_path / "cache" / NAME).read_bytes() == CONTENT


def test_the_second_of_two_files_fails_and_the_first_stays(entry, server, tmp_path):
    row = entry({"a": CONTENT, "b": CONTENT[:-1] + b"x"}, url=server.address)
    with pytest.raises(DataError, match="/b sent"):
        fetch(row, quiet())
    assert left(tmp_path) == ["a"]
    assert find(row) is None


@pytest.mark.parametrize("name", ["agnews", "modelnet10", "fashion-mnist-small"])
def test_what_has_no_official_file_says_how_to_provide_it(name):
    with pytest.raises(DataError, match="no official file") as told:
        fetch(DATASETS[name], quiet())
    (file,) = DATASETS[name].forms[0].files
    for part in (file.path, file.sha256, DATASETS[name].home, "BISTOCH_DATA"):
        assert part in str(told.value)


def test_what_is_made_is_not_fetched():
    with pytest.raises(DataError, match="shapes is made from a seed"):
        fetch(DATASETS["shapes"], quiet())
