"""Working memory that kernels keep for the next call: one thread at a time has it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from bistoch.functional.kernels import workspace


@pytest.fixture(autouse=True)
def _empty():
    workspace.release()
    yield
    workspace.release()


def test_a_workspace_is_kept_and_can_be_released():
    room = workspace.borrow(workspace.SHORTEST, torch.float32)
    address = room.data_ptr()
    workspace.give_back(room)
    # whoever comes second gets another one
    again, other = (workspace.borrow(workspace.SHORTEST // 4, torch.float64) for _ in range(2))
    assert again.data_ptr() == address != other.data_ptr()
    assert again.numel() == workspace.SHORTEST // 4
    workspace.give_back(again)
    workspace.give_back(workspace.borrow(1000, torch.float32))
    assert sum(kept.numel() for kept in workspace._KEPT) == 4 * workspace.SHORTEST
    workspace.release()
    assert not workspace._KEPT


class Meeting(list):
    """A list at which two threads wait for each other: before they look, and before they take."""

    def __init__(self, entries):
        super().__init__(entries)
        self.barrier = threading.Barrier(2)

    def __bool__(self):
        found = len(self) > 0
        self.barrier.wait(timeout=30)
        return found

    def pop(self):
        self.barrier.wait(timeout=30)
        return super().pop()


def test_two_threads_never_share_it(monkeypatch):
    kept = torch.empty(workspace.SHORTEST, dtype=torch.uint8)
    monkeypatch.setattr(workspace, "_KEPT", Meeting([kept]))
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(workspace.borrow, workspace.SHORTEST // 4, torch.float32) for _ in range(2)
        ]
        rooms = [call.result(timeout=60) for call in calls]
    addresses = {room.data_ptr() for room in rooms}
    assert len(addresses) == 2
    assert kept.data_ptr() in addresses
    assert all(room.numel() == workspace.SHORTEST // 4 for room in rooms)


def test_one_of_what_two_threads_give_back_is_kept():
    rooms = [workspace.borrow(workspace.SHORTEST, torch.uint8) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(workspace.give_back, rooms))
    assert [kept.data_ptr() for kept in workspace._KEPT] in [[room.data_ptr()] for room in rooms]
