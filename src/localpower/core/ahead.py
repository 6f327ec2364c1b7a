"""Work that is begun before its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def ahead(
    items: Iterable[T], count: int, leave: Callable[[T], Any] = lambda item: None
) -> Iterator[T]:
    """Yield items in their order, while up to `count` more of them, such as futures, are begun.

    Those whose turn does not come any more are left.
    """
    waiting: deque[T] = deque()
    try:
        for item in items:
            waiting.append(item)
            if len(waiting) > count:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for item in waiting:
            leave(item)
