"""Blocks of rows that come one after the other, as a generator or a registered format has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from localpower.data.blocks import Block, Options
from localpower.data.readers.foreign import refuse_object
from localpower.data.readers.frames import frame_blocks, is_frame
from localpower.data.readers.matrix import as_matrix, columns_of, matrix_blocks
from localpower.data.spool import RowStorage
from localpower.worker.shard import is_stored


def stream_blocks(blocks: Iterable[Any], name: str, options: Options) -> Iterator[Block]:
    """Take the columns that are wanted of arrays, sparse matrices, data frames or `Block`s."""
    for number, block in enumerate(blocks):
        part = f"block {number} of {name}"
        if is_frame(block):
            yield from frame_blocks(block, options) or ()
            continue
        given = block if isinstance(block, Block) else Block(block)
        refuse_object(given.rows, part)
        rows = as_matrix(given.rows, part, RowStorage(0), options.gaps)
        rows = rows.read() if is_stored(rows) else rows
        columns = columns_of(rows.shape[1], rows.dtype, options, part, given.names)
        start = 0
        for found in matrix_blocks(rows, columns):
            stop = start + found.rows.shape[0]
            labels = found.labels if given.labels is None else given.labels[start:stop]
            yield Block(found.rows, labels, columns.names)
            start = stop
        if not start:
            yield columns.empty()
