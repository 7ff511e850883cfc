"""A forked child computes, whatever its parent ran before and whatever it runs itself.

Every parent is a process of its own, so that it ran what its name says and nothing else, and does
so again before each fork. A child that waits for threads of its parent is ended by its alarm.
"""

import subprocess
import sys

import pytest
import torch

import bistoch

SCRIPT = """
import io, os, signal, sys
import torch

SECONDS = 120
q = torch.randn(4, 97, 8, generator=torch.Generator().manual_seed(0))


def attend(name, backend):
    import bistoch
    leaf = q.clone().requires_grad_()
    result = getattr(bistoch, name)(leaf, leaf, leaf, backend=backend)
    result.sin().sum().backward()
    return torch.cat([result.detach(), leaf.grad])


def balance():
    import bistoch
    leaf = q[:, :5, :5].repeat(60, 1, 1).requires_grad_()
    plan = bistoch.balance(leaf, backend="cpu")
    plan.sin().sum().backward()
    return torch.cat([plan.detach(), leaf.grad])


def multiply():
    x = torch.ones(512, 512)
    return x @ x


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return attend("elastic_attention", "cpu")


def load():
    options = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": SECONDS}
    (batch,) = torch.utils.data.DataLoader(Samples(), **options)
    return batch[0]


CHILDREN = {
    "elastic": lambda: attend("elastic_attention", "cpu"),
    "causal": lambda: attend("causal_elastic_attention", "cpu"),
    "small matrices": balance,
    "streaming": lambda: attend("elastic_attention", "streaming"),
    "loader": load,
    "grandchild": lambda: forked(CHILDREN["causal"]),
}


def forked(function):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # the default action of this signal ends a process that waits in compiled code as well
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        code = 1
        try:
            with os.fdopen(write, "wb") as pipe:
                torch.save(function(), pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        written = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the child ended with status {status}")
    return torch.load(io.BytesIO(written))


def forward():
    import bistoch
    bistoch.elastic_attention(q, q, q, backend="cpu")
    bistoch.causal_elastic_attention(q, q, q, backend="cpu")


def both():
    for name in ("elastic", "causal", "small matrices"):
        CHILDREN[name]()


PARENTS = {
    "nothing": lambda: None, "torch": multiply, "forward": forward, "forward and backward": both
}

torch.set_num_threads(2)
parent, case, *children = sys.argv[1:]
if case != "imported late":
    # loaded once for all children, not run
    import bistoch.functional.causal.cpu.kernels
    import bistoch.functional.elastic.cpu.kernels
if case == "old runtime":
    bistoch._fork.openmp_library = lambda: object()
found = {}
for name in children:
    PARENTS[parent]()
    found[name] = forked(CHILDREN[name])
    print("computed", name, flush=True)
if case != "imported late":
    # parent and child both use a team again, unless it could not be ended
    assert forked(torch.get_num_threads) == (1 if case == "old runtime" else 2)
for name in children:
    torch.testing.assert_close(found[name], CHILDREN[name]())
"""


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Children read the kernels from the cache: compiling in each of them would take minutes."""
    x = torch.randn(2, 5, 5, requires_grad=True)
    for function in (bistoch.elastic_attention, bistoch.causal_elastic_attention):
        function(x, x, x, backend="cpu").sum().backward()
    bistoch.balance(x, backend="cpu").sum().backward()


def run(parent, children, case="team ended"):
    command = [sys.executable, "-c", SCRIPT, parent, case, *children]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"computed {child}" for child in children]


@pytest.mark.parametrize("parent", ["nothing", "torch", "forward", "forward and backward"])
def test_a_forked_child_computes(parent):
    run(parent, ["elastic", "causal", "small matrices", "streaming", "loader"])


def test_a_child_of_a_child_computes():
    run("forward", ["grandchild"])


def test_where_a_team_cannot_be_ended_a_child_has_one_thread():
    run("torch", ["streaming", "elastic", "grandchild"], "old runtime")


def test_a_child_that_imports_the_package_after_the_fork_computes():
    run("torch", ["elastic", "streaming"], "imported late")
