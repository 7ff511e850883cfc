import pytest

from distributed.pool import Pool


@pytest.fixture(scope="session")
def pool():
    with Pool(4) as ranks:
        yield ranks
