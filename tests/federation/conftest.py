"""One federation of three real processes for all tests that need it."""

import pytest


@pytest.fixture(scope="session")
def sites(tmp_path_factory):
    pytest.importorskip("grpc", reason="the extra 'federation' is not installed")
    from real_sites import Sites

    found = Sites(tmp_path_factory.mktemp("federation") / "of three")
    found.start("north", "south", "west")
    try:
        yield found
        assert set(found.stop().values()) == {0}
    finally:
        for name in tuple(found.processes):
            found.kill(name)
