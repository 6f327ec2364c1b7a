"""Scores on the ranks of an MPI job: each has those of its own rows, and nothing is sent."""

from __future__ import annotations

import sys
from typing import Any


def own_rows(rows_of: Any) -> Any:
    """Rows of this rank, from a function of its number as `svd` takes it."""
    link = sys.modules.get("mpi4py.MPI")
    if link is None or link.COMM_WORLD.Get_size() == 1:
        raise ValueError(
            "data is a function, which tells the rows of a rank, and this is no MPI job; give the "
            "rows themselves, as [data(i) for i in range(workers)]"
        )
    return rows_of(link.COMM_WORLD.Get_rank())
