"""Tests which parameters share a bucket."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (needs torch)
from sparsesync.torch.gradients import Kind, Synchronized  # noqa: E402 (needs torch)
from sparsesync.torch.schedule import bucketing  # noqa: E402 (needs torch)

FULL = 1000.0


def planned(
    elements: list[int],
    *,
    kinds: dict[int, Kind] | None = None,
    touched: dict[int, float] | None = None,
    dtypes: dict[int, torch.dtype] | None = None,
    first: float = FULL,
) -> list[list[int]]:
    """Returns the buckets of parameters with these numbers of elements, as indices. The default type is f32. Gradients arrived in this
    order.
    """
    order = list(range(len(elements)))
    parameters = [
        Synchronized(i, f"p{i}", torch.nn.Parameter(torch.zeros(elements[i], dtype=(dtypes or {}).get(i, torch.float32)))) for i in order
    ]
    seen = bucketing.Observed(order, {i: (kinds or {}).get(i, Kind.DENSE) for i in order}, touched or {}, [])
    layers = bucketing.layers_of(parameters, [seen], frozenset())
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0)) as session:
        planner = sparsesync.SchedulePlanner(session, layers.native(), "lazy", FULL, first)
        buckets = planner.buckets
    return [[each.index for each in bucket.members] for bucket in layers.planned(buckets)]


def test_a_bucket_takes_gradients_until_it_is_full():
    assert planned([100, 100, 50]) == [[0, 1, 2]]
    assert planned([100, 150, 1, 1]) == [[0, 1], [2, 3]]
    assert planned([1000, 1000, 1]) == [[0], [1], [2]]
    assert planned([1]) == [[0]]


def test_the_first_bucket_may_be_full_earlier():
    assert planned([100, 100, 50, 100, 1], first=400) == [[0], [1, 2, 3], [4]]
    assert planned([10, 100, 100, 50, 100, 1], first=400) == [[0, 1], [2, 3, 4], [5]]


def test_a_bucket_is_of_one_kind_and_dtype():
    assert planned([1, 1, 1, 1], kinds={1: Kind.ROWS, 2: Kind.SPARSE}) == [[0], [1], [2], [3]]
    assert planned([1, 1, 1, 1], kinds={0: Kind.ROWS, 1: Kind.ROWS}) == [[0, 1], [2, 3]]
    assert planned([1, 1, 1], dtypes={1: torch.float64}) == [[0], [1], [2]]


def test_only_touched_rows_count():
    rows = dict.fromkeys(range(4), Kind.ROWS)
    assert planned([1000] * 4, kinds=rows, touched=dict.fromkeys(range(4), 0.1)) == [[0, 1, 2], [3]]


def in_order_of(*ready: int) -> list[int] | None:
    """Returns the new order of five parameters that became ready in numerical order at first, and in the order `ready` later. None:
    unchanged.
    """
    order = list(range(5))
    parameters = [Synchronized(i, f"p{i}", torch.nn.Parameter(torch.zeros(1))) for i in order]
    layers = bucketing.layers_of(parameters, [bucketing.Observed(order, dict.fromkeys(order, Kind.DENSE), {}, [])], frozenset())
    changed = layers.reordered(ready)
    if changed is not None:
        assert [each.index for each in reversed(layers.in_order(changed).members)] == changed
    return changed


def test_a_changed_order_is_learned_again():
    assert in_order_of(0, 1, 2, 3, 4) is None
    assert in_order_of(1, 3) is None, "parameters without a gradient do not change the order"
    assert in_order_of() is None
    assert in_order_of(4, 3, 2, 1, 0) == [4, 3, 2, 1, 0]
    assert in_order_of(3, 1) == [0, 3, 4, 1, 2], "a parameter without a gradient stays behind its predecessor"
    assert in_order_of(0, 2, 1, 3, 4) == [0, 2, 1, 3, 4]
