"""Work that is begun before its turn: in order, only so much of it, and left if nobody takes it."""

import pytest

from localpower.core.ahead import ahead


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_items_come_in_order_and_only_so_many_more_are_begun(count):
    begun, taken = [], []
    for item in ahead((begun.append(n) or n for n in range(7)), count):
        taken.append(item)
        assert len(begun) == min(len(taken) + count, 7)
    assert taken == list(range(7))


def test_items_whose_turn_does_not_come_are_left():
    left = []
    items = ahead(range(7), 2, left.append)
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert left == [2, 3]


def test_an_error_of_an_item_to_come_is_raised_at_once_and_others_are_left():
    def items():
        yield from range(3)
        raise KeyError("mine")

    left = []
    found = ahead(items(), 1, left.append)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(KeyError, match="mine"):
        next(found)
    assert left == [2]
