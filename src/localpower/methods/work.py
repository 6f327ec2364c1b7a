"""How long pieces of work take: in operations of the products that engines are measured with.

Few operations run as fast as those. What is here is how many of them take the same time; numbers
are those of one core with BLAS and LAPACK, measured over sizes (`benchmarks/plans.py` tells how
well that predicts whole runs). Terms with lower powers stand for work that memory limits.
"""

from __future__ import annotations

from localpower.core.linalg import EIGH_COLUMNS

ROUND = 5e7  # what the coordinator does in every round, whatever the sizes
ITERATED = 1.3e8  # calls of a Lanczos iteration for a few eigenvectors
BLOCK = 1 << 19  # entries of the blocks of rows whose triangles are merged
LONG = 6000  # columns of which a few of a block, and of its product, fill the cache of a core
GATHERED = 6700  # numbers of a panel of sparse rows; the more, the less of it is in a cache
PANEL, FARTHEST = 12, 150  # columns of such a panel; what the way from memory takes at most


def in_cache(columns: int) -> float:
    """How many times as long a product of rows takes that are so long, as of short ones."""
    return 1 + min(columns / LONG, 1)


def sparse_product(width: float, columns: int) -> float:
    """An entry's part in a product of sparse rows."""
    return 160 + (30 + min(columns * min(width, PANEL) / GATHERED, FARTHEST)) * width


def eigenvectors(order: float) -> float:
    """All eigenvectors of a symmetric matrix."""
    return 14.0 * order**3 + 3300.0 * order**2


def leading_eigenvectors(order: float, count: int) -> float:
    """A few of them, and a proof that they are the leading ones."""
    if order <= EIGH_COLUMNS:
        return 0.5 * eigenvectors(order) + 4500.0 * order**2
    return ITERATED + 2.2 * order**3 + (400.0 + 40.0 * count) * order**2


def orthonormal(rows: float, columns: float) -> float:
    """An orthonormal basis of columns."""
    return rows * (48.0 * columns**2 + 2300.0 * columns)


def singular_vectors(rows: float, columns: float) -> float:
    """Singular vectors of a matrix with fewer columns than rows."""
    return rows * (28.0 * columns**2 + 2200.0 * columns) + 6500.0 * columns**2


def triangle(rows: float, columns: int) -> float:
    """The R factor: of blocks of rows, each below that of those before; wide ones are faster."""
    blocks = rows / max(2 * columns, BLOCK / columns)
    return max(6.5, min(31.0, 4300.0 / columns)) * columns**2 * (rows + columns * max(1, blocks))
