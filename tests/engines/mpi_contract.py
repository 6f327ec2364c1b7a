"""``mpiexec -n 4 python tests/engines/mpi_contract.py``: the contract suite, led by rank 0."""

import sys
from pathlib import Path

import pytest
from mpi4py import MPI

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

import helpers  # noqa: E402

import localpower as lp  # noqa: E402


class Turns:
    """Tells the other ranks after each test that there is another: closing ended their service."""

    def pytest_runtest_logfinish(self):
        MPI.COMM_WORLD.bcast(True)


def lead(arguments):
    helpers.ENGINES[:], helpers.REMOTE[:] = ["mpi"], []
    suite = str(TESTS / "contract" / "test_engine_contract.py")
    status = pytest.main(["-q", "-p", "no:cacheprovider", suite, *arguments], plugins=[Turns()])
    lp.connect("mpi").close()
    MPI.COMM_WORLD.bcast(False)
    return status


def follow():
    more = True
    while more:
        lp.connect("mpi").serve()
        more = MPI.COMM_WORLD.bcast(None)
    return 0


if __name__ == "__main__":
    sys.exit(lead(sys.argv[1:]) if MPI.COMM_WORLD.rank == 0 else follow())
