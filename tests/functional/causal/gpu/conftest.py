import pytest
import torch

from bistoch.functional.causal.triton import blocks
from bistoch.functional.elastic.triton.blocks import Blocks
from bistoch.functional.kernels.gpu import is_interpreted


@pytest.fixture(autouse=True)
def _quick_interpreter(request):
    # in Triton's interpreter if there is no GPU
    on_device = request.node.get_closest_marker("gpu") is not None
    if torch.cuda.is_available() and not on_device and not is_interpreted():
        pytest.skip("for Triton's interpreter: set TRITON_INTERPRET=1, and hide the GPU")
    if not torch.cuda.is_available():
        pytest.importorskip("triton")
        from interpreter import patch_once

        patch_once()


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 16 tokens, so that few tokens are several of them, and two parts of a cache."""
    from bistoch.functional.causal.triton import decode, differentiate, launch

    for module in (decode, differentiate, launch):
        monkeypatch.setattr(module, "blocks_of", lambda *_: Blocks(16, 16, 4, 1))
    monkeypatch.setattr(decode, "_splits", lambda programs, keys, tile: 1 if keys <= tile else 2)


@pytest.fixture
def short_spans(monkeypatch):
    """Sequences of more than two blocks keep the accounts of few of them."""
    monkeypatch.setattr(blocks, "ALL", 2)
    monkeypatch.setattr(blocks, "SHORTEST", 2)
    monkeypatch.setattr(blocks, "KEPT", 3)


@pytest.fixture
def ordered_products(monkeypatch):
    """Scores in the millions are the same bits in every pass; a device has that by its units."""
    if not torch.cuda.is_available():
        from interpreter import add_in_order

        add_in_order(monkeypatch)


@pytest.fixture
def truncated_products(monkeypatch):
    """What matrix units of NVIDIA are assumed to do to operands of more than 11 bits."""
    from interpreter import truncate_operands

    truncate_operands(monkeypatch)
