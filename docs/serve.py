"""Rank 0 has the data and the result; the other ranks serve."""

from mpi4py import MPI

import localpower as lp

with lp.connect(MPI.COMM_WORLD) as engine:
    if engine.rank == 0:
        result = lp.svd("rows.npy", 5, engine=engine, workers=4, rng=0)
        print(result.singular_values.round(1))
    else:
        engine.serve()  # returns when rank 0 closes the engine
