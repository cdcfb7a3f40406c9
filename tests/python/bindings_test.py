"""The package without torch: kernels on arrays and what they refuse, index codes, traces, errors, what is typed."""

import ast
import gc
import importlib
import inspect
import json
import math
import pathlib
import pickle
import re
import struct
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import sparsesync
from bindings_support import DTYPES, STORED, numbers_of, package_folder, python, stored
from sparsesync import InputError, _native

BEYOND_24 = 2**24 + 3
BEYOND_31 = 2**31 + 5
BEYOND_32 = 2**32 + 7


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def some_values(random, shape, dtype):
    """Any finite values of that type."""
    if dtype in ("i32", "i64"):
        limits = np.iinfo(STORED[dtype])
        return random.integers(limits.min, limits.max, shape, STORED[dtype], endpoint=True)
    return stored(random.standard_normal(shape) * 10.0 ** random.integers(-3, 3, shape), dtype)


# Coalesce


def summed_in_order(indices, values, dtype):
    """Distinct rows and their sums, one addition after another; narrow types in f32, rounded once; integers wrap."""
    numbers = numbers_of(values, dtype)
    distinct = np.unique(indices)
    sums = np.zeros((len(distinct), *values.shape[1:]), numbers.dtype)
    places = np.searchsorted(distinct, indices)
    begun = set()
    with np.errstate(over="ignore"):
        for place, row in zip(places.tolist(), numbers, strict=True):
            sums[place] = sums[place] + row if place in begun else row
            begun.add(place)
        return distinct, stored(sums, dtype).reshape(len(distinct), math.prod(values.shape[1:]))


EDGES = {"beyond 2^24": BEYOND_24, "beyond 2^31": BEYOND_31, "beyond 2^32": BEYOND_32}
KINDS = {
    "none": lambda random: (np.empty(0, np.int64), 10),
    "the first row": lambda random: (np.zeros(1, np.int64), 1),
    "the last row": lambda random: (np.array([9]), 10),
    "in order": lambda random: (np.sort(random.choice(500, 60, replace=False)), 500),
    "without repeats": lambda random: (random.permutation(500)[:60], 500),
    "one row only": lambda random: (np.full(50, 3), 7),
    "all rows": lambda random: (random.permutation(64), 64),
    "many repeats": lambda random: (random.integers(0, 40, 3000), 40),
    **dict.fromkeys(EDGES),
}


def drawn_indices(random, kind):
    """Indices and how many rows there are."""
    if kind not in EDGES:
        return KINDS[kind](random)
    rows = EDGES[kind]
    edges = [0, rows - 1, rows // 2, 2**24 - 1, 2**24, rows - 1, 0]
    return np.concatenate([np.array(edges), random.integers(0, rows, 40)]), rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_coalesce(random, kind, dtype):
    for shape in ((1,), (3,), (16,), (2, 5)):
        indices, rows = drawn_indices(random, kind)
        values = some_values(random, (len(indices), *shape), dtype)
        given = indices.copy(), values.copy()
        found, sums = sparsesync.coalesce(indices, values, rows)
        expected = summed_in_order(indices, values, dtype)
        assert found.dtype == np.int64 and np.array_equal(found, expected[0])
        assert same_bits(sums, expected[1]), (shape, sums, expected[1])
        assert np.array_equal(indices, given[0]) and same_bits(values, given[1]), "what was given is as it was"


def test_coalesce_takes_values_of_one_dimension_as_rows_of_one_element():
    found, sums = sparsesync.coalesce(np.array([4, 1, 4]), np.array([1.0, 2, 4], np.float32), 5)
    assert found.tolist() == [1, 4] and sums.tolist() == [[2], [5]]


def test_coalesce_of_rows_without_elements():
    found, sums = sparsesync.coalesce(np.array([4, 1, 4]), np.empty((3, 0)), 5)
    assert found.tolist() == [1, 4] and sums.shape == (2, 0)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_coalesce_lets_what_is_no_number_through(dtype):
    values = stored(np.array([[np.inf], [1.0], [-np.inf], [np.nan], [np.inf], [-0.0]]), dtype)
    found, sums = sparsesync.coalesce(np.array([0, 1, 0, 1, 2, 3]), values, 5)
    assert found.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(numbers_of(sums, dtype), np.array([[np.nan], [np.nan], [np.inf], [0.0]], np.float32))


# Compact


def dense_case(random, kind, dtype):
    values = some_values(random, (200, 6), dtype)
    zero = stored(np.zeros((200, 6)), dtype)
    if kind == "nothing":
        return zero
    if kind == "everything":
        return np.where(numbers_of(values, dtype) == 0, stored(np.ones(1), dtype), values).astype(values.dtype)
    if kind == "some rows":
        keep = random.random(200) < 0.1
    elif kind == "the first row":
        keep = np.arange(200) == 0
    else:  # some elements
        return np.where(random.random((200, 6)) < 0.01, values, zero).astype(values.dtype)
    return np.where(keep[:, None], values, zero).astype(values.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["nothing", "everything", "some rows", "the first row", "some elements"])
def test_compact(random, kind, dtype):
    dense = dense_case(random, kind, dtype)
    for shaped in (dense, dense.reshape(-1), dense.reshape(100, 4, 3)):
        rows = shaped.reshape(len(shaped), -1)
        expected = np.flatnonzero((numbers_of(rows, dtype) != 0).any(axis=1))
        found, values = sparsesync.compact(shaped)
        assert found.dtype == np.int64 and np.array_equal(found, expected)
        assert same_bits(values, rows[expected])


@pytest.mark.parametrize("dtype", DTYPES)
def test_compact_never_judges_a_row_by_its_sum(dtype):
    dense = stored(np.array([[1, -1], [0, 0], [-1, 1]]), dtype)
    found, values = sparsesync.compact(dense)
    assert found.tolist() == [0, 2] and same_bits(values, dense[[0, 2]])


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_compact_takes_minus_zero_for_zero_and_what_is_no_number_for_something(dtype):
    dense = stored(np.array([[-0.0, -0.0], [0.0, np.nan], [-0.0, 0.0], [np.inf, 0.0], [-np.inf, -0.0]]), dtype)
    found, values = sparsesync.compact(dense)
    assert found.tolist() == [1, 3, 4] and same_bits(values, dense[[1, 3, 4]])


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_compact_keeps_the_smallest_number_that_there_is(dtype):
    bits = {"f32": np.uint32, "f64": np.uint64, "f16": np.uint16, "bf16": np.uint16}[dtype]
    dense = np.array([[0], [1]], bits).view(STORED[dtype])
    found, values = sparsesync.compact(dense)
    assert found.tolist() == [1] and same_bits(values, dense[1:])


@pytest.mark.parametrize("shape", [(0,), (0, 4), (5, 0), (0, 0)])
def test_compact_of_nothing(shape):
    found, values = sparsesync.compact(np.ones(shape))
    assert found.shape == (0,) and values.shape == (0, int(np.prod(shape[1:])))


def test_compact_undoes_itself(random):
    dense = dense_case(random, "some rows", "f32")
    found, values = sparsesync.compact(dense)
    again = np.zeros_like(dense)
    again[found] = values
    assert same_bits(again, dense)


# Index codes, each read and written by NumPy


def elias_fano_layout(rows, count):
    """(low bits, bytes of the high parts, bytes of all): the fewest bytes, the fewest low bits where they tie."""

    def sizes(low_bits):
        high = (count + ((rows - 1) >> low_bits) + 7) // 8
        return high, high + (count * low_bits + 7) // 8

    best = min(range((rows - 1).bit_length() + 1), key=lambda low_bits: sizes(low_bits)[1])
    return best, *sizes(best)


def bits_to_numbers(bits, width):
    return (bits.reshape(-1, width).astype(np.int64) << np.arange(width)).sum(axis=1)


def read_by_numpy(code, data, rows, count):
    if code == "all":
        assert data == b""
        return np.arange(rows)
    if code == "coo":
        return np.frombuffer(data, "<u4" if rows <= 2**32 else "<u8").astype(np.int64)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if code == "bitmap":
        return np.flatnonzero(bits)
    low_bits, high_bytes, all_bytes = elias_fano_layout(rows, count)
    assert len(data) == all_bytes
    high = np.flatnonzero(bits[: 8 * high_bytes]) - np.arange(count)
    low = bits[8 * high_bytes :][: count * low_bits]
    return (high << low_bits) + (bits_to_numbers(low, low_bits) if low_bits else 0)


def drawn_set(random, rows, count):
    if count == rows:
        return np.arange(rows)
    if rows < 2**20:
        return np.sort(random.choice(rows, count, replace=False)).astype(np.int64)
    return np.unique(np.concatenate([[0, rows - 1], random.integers(0, rows, count)]))[:count].astype(np.int64)


SETS = [
    *((0, 0), (1, 1), (10, 0), (10, 1), (10, 10), (1000, 3), (1000, 500), (1000, 999), (1000, 1000)),
    *((BEYOND_24, 2), (BEYOND_24, 3000), (BEYOND_31, 50), (2**32, 20), (BEYOND_32, 1000), (2**62, 40)),
]


def can_write(code, rows, count):
    """All rows alone in no bytes; no bitmap of gigabytes."""
    return {"all": count == rows, "bitmap": rows <= BEYOND_24}.get(code, True)


CODED = [
    (code, *each) for code in ("coo", "elias_fano", "bitmap", "all", None) for each in SETS if can_write(code, *each)
]


@pytest.mark.parametrize(("code", "rows", "count"), CODED)
def test_index_codes(random, code, rows, count):
    indices = drawn_set(random, rows, count)
    count = len(indices)
    name, data = sparsesync.encode_indices(indices, rows, code)
    assert code in (None, name) and isinstance(data, bytes)
    if count:
        assert np.array_equal(read_by_numpy(name, data, rows, count), indices)
    else:
        assert data == b""
    decoded = sparsesync.decode_indices(name, data, rows, count)
    assert decoded.dtype == np.int64 and np.array_equal(decoded, indices)
    decoded[:] = 0  # it is the caller's


@pytest.mark.parametrize(("rows", "count"), [each for each in SETS if each[0] <= BEYOND_24])
def test_without_a_code_the_shortest_is_taken(random, rows, count):
    indices = drawn_set(random, rows, count)
    codes = ["coo", "elias_fano", "bitmap"] + ["all"] * (count == rows)
    shortest = min(len(sparsesync.encode_indices(indices, rows, code)[1]) for code in codes)
    assert len(sparsesync.encode_indices(indices, rows)[1]) == shortest


DAMAGED = {
    "coo cut": ("coo", b"\1\0\0\0\2\0\0", 10, 2),
    "coo longer": ("coo", b"\1\0\0\0\2\0\0\0\0", 10, 2),
    "coo outside": ("coo", b"\1\0\0\0\x0a\0\0\0", 10, 2),
    "coo decreasing": ("coo", b"\2\0\0\0\1\0\0\0", 10, 2),
    "coo twice": ("coo", b"\2\0\0\0\2\0\0\0", 10, 2),
    "coo of another width": ("coo", b"\1\0\0\0\0\0\0\0", 10, 1),
    "coo beyond 2^63": ("coo", b"\xff" * 8, BEYOND_32, 1),
    "bitmap cut": ("bitmap", b"\3", 10, 2),
    "bitmap longer": ("bitmap", b"\3\0\0", 10, 2),
    "bitmap outside": ("bitmap", b"\1\4", 10, 2),
    "bitmap of fewer": ("bitmap", b"\1\0", 10, 2),
    "bitmap of more": ("bitmap", b"\7\0", 10, 2),
    "elias-fano of nothing": ("elias_fano", b"", 10, 2),
    "elias-fano cut": ("elias_fano", b"\0", 1000, 40),
    "all of fewer": ("all", b"", 10, 9),
    "all with bytes": ("all", b"\0", 10, 10),
    "none with bytes": ("coo", b"\0\0\0\0", 10, 0),
    "a count that no memory holds": ("coo", b"", 2**60, 2**58),
    "a count that no bytes hold": ("elias_fano", b"1234", 2**62, 2**61),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_codes_are_told(case):
    with pytest.raises(sparsesync.CorruptDataError) as told:
        sparsesync.decode_indices(*DAMAGED[case])
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("code", ["coo", "elias_fano", "bitmap"])
def test_any_bytes_are_indices_or_told(random, code):
    """Flipped bits, cut and lengthened codes, noise: what is read is a set of so many rows, or nothing."""
    told = read = 0
    for _ in range(500):
        rows = int(random.integers(1, 300))
        count = int(random.integers(0, rows + 1))
        data = bytearray(sparsesync.encode_indices(drawn_set(random, rows, count), rows, code)[1])
        for _ in range(int(random.integers(1, 4))):
            if data:
                data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
        if random.random() < 0.2:
            data = bytearray(random.bytes(len(data)))
        if random.random() < 0.2:
            data = data[: int(random.integers(len(data) + 1))] + random.bytes(int(random.integers(3)))
        try:
            indices = sparsesync.decode_indices(code, bytes(data), rows, count)
        except sparsesync.CorruptDataError:
            told += 1
            continue
        read += 1
        assert len(indices) == count
        assert (np.diff(indices) > 0).all() and (count == 0 or (indices[0] >= 0 and indices[-1] < rows))
        if code != "elias_fano":  # which passes over bits behind its last number
            assert sparsesync.encode_indices(indices, rows, code)[1] == bytes(data), "two codes of the same set"
    assert told > 50 and read > 5, "damage of both kinds was tried"


# What is refused: typed, in one line, and nothing crashes


def unaligned(array):
    """The same one byte off."""
    memory = bytearray(array.nbytes + 1)
    moved = np.frombuffer(memory, array.dtype, array.size, offset=1).reshape(array.shape)
    moved[...] = array
    return moved


ROWS, VALUES = np.arange(4), np.ones((4, 2), np.float32)

NO_INDICES = {
    "int32": ROWS.astype(np.int32),
    "uint64": ROWS.astype(np.uint64),
    "floats": ROWS.astype(float),
    "booleans": ROWS.astype(bool),
    "big-endian": ROWS.astype(">i8"),
    "two dimensions": ROWS.reshape(2, 2),
    "no dimension": np.int64(3),
    "every second": np.arange(8)[::2],
    "backwards": ROWS[::-1],
    "unaligned": unaligned(ROWS),
    "one repeated": np.broadcast_to(np.int64(1), (4,)),
    "a list": [0, 1, 2, 3],
    "None": None,
    "text": "0123",
    "bytes": bytes(32),
    "datetimes": ROWS.astype("datetime64[s]"),
}
NO_VALUES = {
    "every second": np.ones((8, 2), np.float32)[::2],
    "some columns": np.ones((4, 4), np.float32)[:, :2],
    "transposed": np.ones((2, 4), np.float32).T,
    "one repeated": np.broadcast_to(np.float32(1), (4, 2)),
    "unaligned": unaligned(VALUES),
    "big-endian": VALUES.astype(">f4"),
    "complex": VALUES.astype(np.complex64),
    "booleans": VALUES.astype(bool),
    "int8": VALUES.astype(np.int8),
    "uint32": VALUES.astype(np.uint32),
    "objects": VALUES.astype(object),
    "records": np.zeros(4, [("a", "f4"), ("b", "f4")]),
    "long doubles": VALUES.astype(np.longdouble),
    "no dimension": np.float32(1),
    "an array without a dimension": np.array(1.0),
    "a list": [[1.0, 2]] * 4,
    "None": None,
}


def one_line(error):
    assert isinstance(error, ValueError) and "\n" not in str(error) and len(str(error)) < 300, str(error)
    return str(error)


@pytest.mark.parametrize("case", NO_INDICES)
def test_what_are_no_indices_is_told(case):
    with pytest.raises(InputError) as told:
        sparsesync.coalesce(NO_INDICES[case], VALUES, 4)
    assert one_line(told.value).startswith("indices")
    with pytest.raises(InputError) as told:
        sparsesync.encode_indices(NO_INDICES[case], 100)
    assert one_line(told.value).startswith("indices")


@pytest.mark.parametrize("case", NO_VALUES)
def test_what_are_no_values_is_told(case):
    with pytest.raises(InputError) as told:
        sparsesync.coalesce(ROWS, NO_VALUES[case], 4)
    assert one_line(told.value).startswith("values")
    with pytest.raises(InputError) as told:
        sparsesync.compact(NO_VALUES[case])
    assert one_line(told.value).startswith("dense")


def test_an_error_says_what_was_given_and_how_to_mend_it():
    with pytest.raises(InputError) as told:
        sparsesync.coalesce(NO_INDICES["int32"], VALUES, 4)
    assert "int64 with one dimension" in str(told.value) and "of int32 (4,)" in str(told.value)
    with pytest.raises(InputError) as told:
        sparsesync.compact(NO_VALUES["transposed"])
    assert "numpy.ascontiguousarray" in str(told.value)


REFUSED = {
    "an index below 0": (lambda: sparsesync.coalesce(np.array([0, -1]), VALUES[:2], 4), "index -1 at place 1"),
    "an index beyond": (
        lambda: sparsesync.coalesce(np.array([3, 0, 4]), VALUES[:3], 4),
        "index 4 at place 2 is outside [0, 4)",
    ),
    "the largest index": (lambda: sparsesync.coalesce(np.array([2**63 - 1]), VALUES[:1], 4), "outside [0, 4)"),
    "the smallest index": (lambda: sparsesync.coalesce(np.array([-(2**63)]), VALUES[:1], 4), "outside [0, 4)"),
    "an index of no rows": (lambda: sparsesync.coalesce(ROWS[:1], VALUES[:1], 0), "outside [0, 0)"),
    "fewer values": (lambda: sparsesync.coalesce(ROWS, VALUES[:3], 4), "4 indices with 3 rows"),
    "more values": (lambda: sparsesync.coalesce(ROWS[:2], VALUES, 4), "2 indices with 4 rows"),
    "rows below 0": (lambda: sparsesync.coalesce(ROWS[:0], VALUES[:0], -1), "-1 rows"),
    "rows beyond 2^62": (lambda: sparsesync.encode_indices(ROWS, 2**62 + 1), "0 to 2^62"),
    "decreasing": (lambda: sparsesync.encode_indices(np.array([1, 0]), 4), "index 0 at place 1"),
    "twice": (lambda: sparsesync.encode_indices(np.array([1, 1]), 4), "index 1 at place 1"),
    "below 0": (lambda: sparsesync.encode_indices(np.array([-1]), 4), "index -1 at place 0"),
    "beyond": (lambda: sparsesync.encode_indices(np.array([4]), 4), "index 4 at place 0"),
    "all that are not all": (lambda: sparsesync.encode_indices(ROWS, 5, "all"), "4 of 5"),
    "no such code": (lambda: sparsesync.encode_indices(ROWS, 5, "zip"), "coo, elias_fano, bitmap or all"),
    "no such code to read": (lambda: sparsesync.decode_indices("", b"", 5, 0), "coo, elias_fano, bitmap or all"),
    "count below 0": (lambda: sparsesync.decode_indices("coo", b"", 5, -1), "-1 indices of 5 rows"),
    "count beyond": (lambda: sparsesync.decode_indices("coo", b"", 5, 6), "6 indices of 5 rows"),
    "no rows to read": (lambda: sparsesync.decode_indices("coo", b"", -5, 0), "-5 rows"),
    "no dtype": (lambda: sparsesync.TensorSpec("t", 1, 1, "f8"), "f32, f64, f16, bf16, i32, i64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_input_that_cannot_be_used_is_told(case):
    call, part = REFUSED[case]
    with pytest.raises(InputError) as told:
        call()
    assert part in one_line(told.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: sparsesync.coalesce(ROWS, VALUES),
        lambda: sparsesync.coalesce(ROWS, VALUES, "4"),
        lambda: sparsesync.coalesce(ROWS, VALUES, 4.0),
        lambda: sparsesync.coalesce(ROWS, VALUES, 2**63),
        sparsesync.compact,
        lambda: sparsesync.encode_indices(ROWS, 4, 3),
        lambda: sparsesync.decode_indices("coo", "text", 4, 0),
        lambda: sparsesync.decode_indices("coo", bytearray(4), 4, 1),
        sparsesync.Ticket,
        sparsesync.Session,
        lambda: sparsesync.Session(None),
        lambda: sparsesync.LocalNetwork("2"),
    ],
)
def test_arguments_of_another_type_are_a_type_error(call):
    with pytest.raises(TypeError):
        call()


def test_read_only_arrays_are_read():
    rows, values = np.array([2, 0, 2]), np.ones((3, 2))
    rows.flags.writeable = values.flags.writeable = False
    assert sparsesync.coalesce(rows, values, 4)[1].tolist() == [[1, 1], [2, 2]]
    assert sparsesync.compact(values)[0].tolist() == [0, 1, 2]
    assert sparsesync.encode_indices(np.frombuffer(struct.pack("<q", 3), np.int64), 4, "coo") == ("coo", b"\3\0\0\0")


def test_a_row_alone_may_have_any_strides():
    values = np.ones((4, 8), np.float32)[::4]
    assert values.shape[0] == 1
    assert sparsesync.compact(values)[0].tolist() == [0]


# Nothing that is given is copied


class Exporter:
    """Speaks DLPack, and nothing else."""

    def __init__(self, array):
        self._array = array
        self.asked = 0

    def __dlpack__(self, **options):
        self.asked += 1
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_what_speaks_dlpack_is_taken():
    rows, values = Exporter(np.array([2, 0, 2])), Exporter(np.ones((3, 2), np.float32))
    found, sums = sparsesync.coalesce(rows, values, 3)
    assert found.tolist() == [0, 2] and sums.tolist() == [[1, 1], [2, 2]]
    assert rows.asked and values.asked
    assert sparsesync.compact(Exporter(np.eye(3)))[0].tolist() == [0, 1, 2]
    assert sparsesync.encode_indices(Exporter(np.array([1])), 4, "coo") == ("coo", b"\1\0\0\0")


def test_torch_tensors_are_taken_bf16_as_it_is():
    torch = pytest.importorskip("torch")
    values = torch.tensor([[1.0, 2], [3, 4], [0.5, 0.25]], dtype=torch.bfloat16)
    found, sums = sparsesync.coalesce(torch.tensor([5, 1, 5]), values, 6)
    assert found.tolist() == [1, 5]
    assert numbers_of(sums, "bf16").tolist() == [[3, 4], [1.5, 2.25]]
    with pytest.raises(InputError, match="one after another"):
        sparsesync.compact(torch.ones(4, 3).T)


def test_nothing_is_kept_of_what_was_given():
    rows, values = np.array([2, 0, 2]), np.ones((3, 2), np.float32)
    calls = [
        lambda: sparsesync.coalesce(rows, values, 3),
        lambda: sparsesync.compact(values),
        lambda: sparsesync.encode_indices(rows[:1], 3),
    ]
    held = [sys.getrefcount(each) for each in (rows, values)]
    for call in calls:
        call()
        with pytest.raises(InputError):
            sparsesync.coalesce(rows, values[:2], 3)
    gc.collect()
    assert [sys.getrefcount(each) for each in (rows, values)] == held


GROWTH = """
import sys
import numpy as np, sparsesync
MIB = 1 << 20
dense = np.zeros((50 * MIB // 16, 16), np.float32)
dense[::1000] = 1  # every page is touched
dense.fill(0)
dense[7] = 1
rows = np.full(len(dense), 7)
sparsesync.compact(np.eye(3)), sparsesync.coalesce(np.arange(3), np.eye(3), 3)
def peak():  # of this program; ru_maxrss is of those before it in the process, too
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
assert before > dense.nbytes, "the array is in memory"
if sys.argv[1] == "compact":
    sparsesync.compact(dense)
elif sys.argv[1] == "coalesce":
    sparsesync.coalesce(rows, dense, 8)
else:
    dense.copy()
print(peak() - before, dense.nbytes)
"""


@pytest.mark.parametrize("call", ["compact", "coalesce", "copy"])
def test_large_input_is_not_copied(call):
    done = python(GROWTH, call)
    assert done.returncode == 0, done.stderr
    growth, size = map(int, done.stdout.split())
    assert size == 200 << 20
    if call == "copy":
        assert growth > size * 0.9, "a copy would be seen"
    else:
        assert growth < size * 0.75, growth


# The GIL


def lets_others_run(call, tries=2000):
    """Whether another thread runs while `call` does: it gets the GIL only where the call gives it up, for nobody is
    made to meanwhile. A call may be over before the system wakes that thread: so it is tried again."""
    ran = []
    woken = threading.Lock()
    woken.acquire()
    interval = sys.getswitchinterval()
    other = threading.Thread(target=lambda: (woken.acquire(), ran.append(True)))
    other.start()
    try:
        sys.setswitchinterval(1e6)
        woken.release()
        for _ in range(tries):
            call()
            if ran:
                return True
        return False
    finally:
        sys.setswitchinterval(interval)
        other.join()


def test_others_run_while_a_kernel_does(random):
    rows = np.arange(0, 2_000_000, 2)
    values = np.ones((len(rows), 2), np.float32)
    code, data = sparsesync.encode_indices(rows, 2_000_000, "elias_fano")
    assert not lets_others_run(lambda: sum(range(20_000)), tries=200), "nobody runs where the GIL is kept"
    assert lets_others_run(lambda: sparsesync.coalesce(rows, values, 2_000_000))
    assert lets_others_run(lambda: sparsesync.compact(values))
    assert lets_others_run(lambda: sparsesync.encode_indices(rows, 2_000_000, "elias_fano"))
    assert lets_others_run(lambda: sparsesync.decode_indices(code, data, 2_000_000, len(rows)))


# Traces


def mix64(x):
    with np.errstate(over="ignore"):
        x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def made_values(seed, place, rows, spec):
    """What docs/traces.md says of values that are not recorded. place: worker, step, tensor."""
    with np.errstate(over="ignore"):
        key = np.uint64(seed)
        for part in place:
            key = mix64(key) + np.uint64(part)
        key = mix64(key)
        hashes = mix64(key + rows.astype(np.uint64))
        columns = np.arange(spec.width, dtype=np.uint64)
        drawn = mix64(hashes[:, None] + columns // np.uint64(32)) >> (np.uint64(2) * (columns % np.uint64(32)))
    return stored((drawn % np.uint64(4) + np.uint64(1)).astype(np.int64), spec.dtype)


def spec_tuple(spec):
    return spec.name, spec.rows, spec.width, spec.dtype


TENSORS = [sparsesync.TensorSpec(f"of {dtype}", 500 + i, 1 + 20 * i, dtype) for i, dtype in enumerate(DTYPES)]


def write_trace(path, random, tensors=TENSORS, workers=3, steps=2, **options):
    """A trace of what is drawn; the drawn rows by worker and step."""
    writer = sparsesync.TraceWriter(path, tensors, workers, steps, **options)
    drawn = {}
    for worker in range(workers):
        for step in range(steps):
            rows = [random.integers(0, each.rows, int(random.integers(0, 60))) for each in tensors]
            writer.write(worker, step, rows)
            drawn[worker, step] = rows
    assert not pathlib.Path(path).exists(), "nothing is there before commit()"
    writer.commit()
    return drawn


def test_a_trace_comes_back(random, tmp_path):
    drawn = write_trace(tmp_path / "T", random, source="a test", seed=17)
    for path in (tmp_path / "T", str(tmp_path / "T")):
        trace = sparsesync.Trace(path)
        assert (trace.workers, trace.steps, trace.source, trace.seed) == (3, 2, "a test", 17)
        assert [spec_tuple(each) for each in trace.tensors] == [spec_tuple(each) for each in TENSORS]
        for (worker, step), rows in drawn.items():
            loaded = trace.load(worker, step)
            assert list(loaded) == [each.name for each in TENSORS]
            for number, spec in enumerate(TENSORS):
                indices, values = loaded[spec.name]
                assert np.array_equal(indices, np.unique(rows[number]))
                expected = made_values(17, (worker, step, number), indices, spec)
                assert same_bits(values, expected.reshape(-1, spec.width)), spec.name


def test_recorded_values_come_as_they_stand(tmp_path):
    """A trace that nobody of us wrote: any order, repeats, bf16."""
    (tmp_path / "T").mkdir()
    header = {"format": 1, "workers": 1, "steps": 1, "source": "", "seed": 0}
    header["tensors"] = [{"name": "t", "rows": 9, "width": 2, "dtype": "bf16"}]
    (tmp_path / "T" / "trace.json").write_text(json.dumps(header))
    rows, values = np.array([5, 0, 5], np.int32), stored(np.arange(6).reshape(3, 2) / 3, "bf16")
    of_file = {
        "t.indices": {"dtype": "I32", "shape": [3], "data_offsets": [0, 12]},
        "t.values": {"dtype": "BF16", "shape": [3, 2], "data_offsets": [12, 24]},
    }
    text = json.dumps(of_file).encode()
    file = struct.pack("<Q", len(text)) + text + rows.tobytes() + values.tobytes()
    (tmp_path / "T" / "w0000.s0000.safetensors").write_bytes(file)
    indices, loaded = sparsesync.Trace(tmp_path / "T").load(0, 0)["t"]
    assert indices.tolist() == [5, 0, 5] and same_bits(loaded, values)


def test_what_a_writer_refuses(random, tmp_path):
    tensors = [sparsesync.TensorSpec("t", 10, 2)]
    rows = np.array([1, 2])
    make = lambda **options: sparsesync.TraceWriter(tmp_path / "T", tensors, 2, 1, **options)  # noqa: E731
    writer = make()
    refused = [
        (lambda: writer.write(2, 0, [rows]), "worker 2 at step 0: the trace has 2 workers"),
        (lambda: writer.write(-1, 0, [rows]), "worker -1"),
        (lambda: writer.write(0, 1, [rows]), "step 1"),
        (lambda: writer.write(0, 0, []), "0 arrays for 1 tensors"),
        (lambda: writer.write(0, 0, [rows, rows]), "2 arrays for 1 tensors"),
        (lambda: writer.write(0, 0, [np.array([10])]), "10"),
        (lambda: writer.write(0, 0, [np.array([-1])]), "-1"),
        (lambda: writer.write(0, 0, [rows.astype(np.int32)]), "tensor 't'"),
        (writer.commit, "worker 0 at step 0 is not written yet"),
    ]
    for call, part in refused:
        with pytest.raises(InputError) as told:
            call()
        assert part in one_line(told.value)
    writer.write(0, 0, [rows])
    with pytest.raises(InputError, match="was written already"):
        writer.write(0, 0, [rows])
    with pytest.raises(InputError, match="worker 1 at step 0 is not written yet"):
        writer.commit()
    writer.write(1, 0, [rows])
    writer.commit()
    for call in (lambda: writer.write(0, 0, [rows]), writer.commit):
        with pytest.raises(sparsesync.ClosedError):
            call()
    with pytest.raises(InputError, match="exist"):
        make()
    write_trace(tmp_path / "other", random)
    assert make(force=True)
    assert sparsesync.Trace(tmp_path / "T").workers == 2, "what is not committed replaces nothing"


@pytest.mark.parametrize(
    ("tensors", "workers", "steps"),
    [
        ([], 1, 1),
        ([("t", 0, 1)], 1, 1),
        ([("t", 1, 0)], 1, 1),
        ([("t", -1, 1)], 1, 1),
        ([("", 1, 1)], 1, 1),
        ([("t", 1, 1), ("t", 1, 1)], 1, 1),
        ([("t", 1, 1)], 0, 1),
        ([("t", 1, 1)], 1, 0),
        ([("t", 1, 1)], -1, 1),
        ([("t", 1, 1)], 2**30, 2**30),
    ],
)
def test_what_no_trace_can_have(tmp_path, tensors, workers, steps):
    with pytest.raises(InputError) as told:
        sparsesync.TraceWriter(tmp_path / "T", [sparsesync.TensorSpec(*each) for each in tensors], workers, steps)
    one_line(told.value)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_dropped_leaves_nothing(tmp_path):
    writer = sparsesync.TraceWriter(tmp_path / "T", [sparsesync.TensorSpec("t", 10, 2)], 1, 1)
    writer.write(0, 0, [np.array([1])])
    del writer
    gc.collect()
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, sys
import numpy as np, sparsesync
writer = sparsesync.TraceWriter(sys.argv[1] + "/T", [sparsesync.TensorSpec("t", 10**6, 2)], 1, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    writer.write(0, 0, [np.arange(10**5)])
except sparsesync.IoError as error:
    assert isinstance(error, OSError) and "\\n" not in str(error)
    print(error)
"""


def test_a_disk_that_is_full_is_told(tmp_path):
    done = python(FULL, tmp_path)
    assert done.returncode == 0 and "w0000.s0000" in done.stdout, done
    assert list(tmp_path.iterdir()) == [], "and nothing is left"


def test_loading_what_is_not_there(random, tmp_path):
    write_trace(tmp_path / "T", random)
    trace = sparsesync.Trace(tmp_path / "T")
    for worker, step in ((3, 0), (0, 2), (-1, 0), (0, -1)):
        with pytest.raises(InputError, match=f"worker {worker} at step {step}: the trace has 3 workers and 2 steps"):
            trace.load(worker, step)


def test_names_of_files_that_are_no_text(tmp_path):
    path = str(tmp_path).encode() + b"/\xff\xfe"
    with pytest.raises(InputError) as told:
        sparsesync.Trace(path.decode(errors="surrogateescape"))
    assert "\\xff" in one_line(told.value)


# What the command line tells, too

# The module and the program may be of builds before and after a commit.
MADE = ("date", "commit", "build")
TIMES = (*MADE, "seconds_median", "seconds_min", "memory_bytes")


@pytest.fixture
def trace(tmp_path, random):
    shapes = [("table", 3000, 8), ("small", 40, 8), ("n", 900, 2, "f64")]
    tensors = [sparsesync.TensorSpec(*each) for each in shapes]
    write_trace(tmp_path / "T", random, tensors, workers=4, steps=3, seed=5)
    return tmp_path / "T"


def without(report, *keys):
    """Without what differs from run to run."""
    if isinstance(report, list):
        return [without(each, *keys) for each in report]
    if isinstance(report, dict):
        return {key: without(value, *keys) for key, value in report.items() if key not in keys}
    return report


def told_by_program(run_program, *arguments):
    return json.loads(run_program(*arguments, "--json", "-"))


def test_profile_is_what_the_command_line_tells(run_program, trace):
    ours = sparsesync.profile(trace)
    assert len(ours["tensors"]) == 3 and ours["tensors"][0]["workers"] == 4
    assert without(ours, *MADE) == without(told_by_program(run_program, "profile", trace), *MADE)
    ours = sparsesync.profile(str(trace), partitions=[5, 2])
    theirs = told_by_program(run_program, "profile", trace, "--partitions", "2,5")
    assert list(ours["tensors"][0]["skewness"]) == ["2", "5"]
    assert without(ours, *MADE) == without(theirs, *MADE)


def test_plan_is_what_the_command_line_tells(run_program, trace, tmp_path):
    ours = sparsesync.plan(trace, workers=[8, 2, 2], rate_bps=1e9, latency_s=5e-5)
    assert [each["n"] for each in ours["workers"]] == [2, 8] and ours["network"] == {"rate_bps": 1e9, "latency_s": 5e-5}
    link = ("--rate", "1gbit", "--latency", "50us")
    assert without(ours, *MADE) == without(
        told_by_program(run_program, "plan", trace, "--workers", "2,8", *link), *MADE
    )
    network = tmp_path / "NETWORK.json"
    run_program("calibrate", "--transport", "local", "--workers", 2, "--repeat", 2, "--out", network)
    ours = sparsesync.plan(trace, workers=[4], network=network, memory_bytes=1 << 16)
    told = ("plan", trace, "--workers", "4", "--network", network, "--memory", "64KiB")
    assert without(ours, *MADE) == without(told_by_program(run_program, *told), *MADE)


@pytest.mark.parametrize(
    "options", [{}, {"wire": "bf16"}, {"announce": True}, {"rate_bps": 1e9, "latency_s": 2e-5, "clock": "virtual"}]
)
def test_compare_is_what_the_command_line_tells(run_program, trace, options):
    names = [name for name, _ in sparsesync.schemes()]
    ours = sparsesync.compare(trace, schemes=names, repeat=2, **options)
    assert [each["name"] for each in ours["schemes"]] == names
    for each in ours["schemes"]:
        assert ("skipped" in each) == (each["name"] == "dense_native")
        assert "skipped" in each or each["correct"] is True, each
    told = ["compare", trace, "--schemes", ",".join(names), "--repeat", 2]
    spelled = {
        "wire": ["--wire", "bf16"],
        "announce": ["--announce"],
        "rate_bps": ["--rate", "1gbit"],
        "latency_s": ["--latency", "20us"],
        "clock": ["--clock", "virtual"],
    }
    for name in options:
        told += spelled[name]
    theirs = told_by_program(run_program, *told)
    assert without(ours, *TIMES) == without(theirs, *TIMES)


def test_compare_tries_all_if_none_are_named(trace):
    names = {each["name"] for each in sparsesync.compare(trace, repeat=1)["schemes"]}
    assert names == {*(name for name, _ in sparsesync.schemes()), "auto"}


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda t: sparsesync.Trace("/not/there"), "'/not/there' is not a trace: it does not exist"),
        (lambda t: sparsesync.profile("/not/there"), "/not/there"),
        (lambda t: sparsesync.compare("/not/there"), "/not/there"),
        (lambda t: sparsesync.plan("/not/there", workers=[2], rate_bps=1e9), "/not/there"),
        (lambda t: sparsesync.plan(t, workers=[2], network="/not/there"), "/not/there"),
        (lambda t: sparsesync.plan(t, workers=[2], network=t / "trace.json"), "trace.json"),
        (lambda t: sparsesync.plan(t, workers=[2]), "nothing is known of the network"),
        (lambda t: sparsesync.plan(t, workers=[], rate_bps=1e9), "from 2 to 65536"),
        (lambda t: sparsesync.plan(t, workers=[1], rate_bps=1e9), "from 2 to 65536"),
        (lambda t: sparsesync.plan(t, workers=[70000], rate_bps=1e9), "from 2 to 65536"),
        (lambda t: sparsesync.plan(t, workers=[2], rate_bps=0), "a rate of 0"),
        (lambda t: sparsesync.plan(t, workers=[2], rate_bps=float("nan")), "a rate of nan"),
        (lambda t: sparsesync.plan(t, workers=[2], rate_bps=1e9, latency_s=-1), "a latency of -1"),
        (lambda t: sparsesync.plan(t, workers=[2], rate_bps=1e9, memory_bytes=-1), "-1"),
        (lambda t: sparsesync.profile(t, partitions=[0]), "0 partitions"),
        (lambda t: sparsesync.compare(t, schemes=["fast"]), "unknown scheme 'fast'"),
        (lambda t: sparsesync.compare(t, repeat=0), "repeat"),
        (lambda t: sparsesync.compare(t, clock="sun"), "no clock 'sun'"),
        (lambda t: sparsesync.compare(t, wire="f8"), "f8"),
        (lambda t: sparsesync.compare(t, wire="i32"), "i32"),
        (lambda t: sparsesync.compare(t, rate_bps=-1), "a rate of -1"),
        (lambda t: sparsesync.compare(t, rate_bps=float("inf")), "a rate of inf"),
        (lambda t: sparsesync.compare(t, rate_bps=1e9, latency_s=float("nan")), "a latency of nan"),
    ],
)
def test_tools_tell_what_cannot_be_used(trace, call, part):
    with pytest.raises(InputError) as told:
        call(trace)
    assert part in one_line(told.value)


def test_a_damaged_trace_is_told(trace):
    file = trace / "w0001.s0001.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="w0001.s0001"):
        sparsesync.Trace(trace).load(1, 1)
    with pytest.raises(InputError, match="w0001.s0001"):
        sparsesync.profile(trace)
    file.unlink()
    with pytest.raises(InputError, match="w0001.s0001"):
        sparsesync.Trace(trace)


def test_schemes_are_those_of_the_program(run_program):
    names = [name for name, summary in sparsesync.schemes() if summary]
    assert len(names) == len(sparsesync.schemes()) and names == sorted(names)
    listed = run_program("info", "--schemes")
    assert all(name in listed for name in names)


def test_provenance_names_what_a_result_is_of():
    provenance = sparsesync.provenance()
    assert {"version", "commit", "compiler", "cpu", "date"} <= set(provenance)
    assert all(isinstance(value, str) and value for value in provenance.values())


# Errors

FAMILY = {
    "AbortedError": ("PeerError", Exception),
    "AgreementError": ("Error", Exception),
    "BudgetError": ("Error", MemoryError),
    "ClosedError": ("Error", Exception),
    "ContractError": ("Error", RuntimeError),
    "CorruptDataError": ("Error", Exception),
    "DeadlineError": ("Error", TimeoutError),
    "Error": ("Error", Exception),
    "InputError": ("Error", ValueError),
    "IoError": ("Error", OSError),
    "OrderError": ("Error", Exception),
    "PeerError": ("Error", Exception),
    "PeerLostError": ("PeerError", ConnectionError),
    "ProtocolError": ("Error", Exception),
    "RefusedError": ("PeerError", Exception),
    "UnsupportedError": ("Error", Exception),
}


def test_the_family_of_errors():
    assert {name for name in sparsesync.__all__ if name.endswith("Error")} == set(FAMILY)
    for name, (base, beside) in FAMILY.items():
        error = getattr(sparsesync, name)
        assert issubclass(error, getattr(sparsesync, base)) and issubclass(error, sparsesync.Error), name
        assert issubclass(error, beside), name
        assert error is getattr(_native, name)
        assert (error.__module__, error.__qualname__) == ("sparsesync", name), "as users write it"
        assert error.__doc__
        again = pickle.loads(pickle.dumps(error("a text")))
        assert type(again) is error and str(again) == "a text"


def test_an_error_goes_to_another_process_with_its_worker():
    error = sparsesync.PeerLostError("worker 3 is gone")
    error.rank = 3
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rank) == ("worker 3 is gone", 3)


# What tools read of the package


def public_objects():
    for name in sparsesync.__all__:
        yield name, getattr(sparsesync, name)


def members(name, value):
    if not inspect.isclass(value) or name.endswith("Error"):
        return
    for member, of_class in vars(value).items():
        is_made_here = member == "__init__" and not isinstance(of_class, types.WrapperDescriptorType)
        if not member.startswith("_") or is_made_here:
            yield f"{name}.{member}", of_class


def documented():
    """(name, its text, without the signature that stands at its beginning)"""
    for name, value in public_objects():
        for each, of in [(name, value), *members(name, value)]:
            text = inspect.getdoc(of) or ""
            signature = text.split("\n", 1)[0] if re.match(r"\w+\(.*\) -> ", text) else ""
            if not signature and inspect.isfunction(of):
                signature = str(inspect.signature(of))
            yield each, signature, text.removeprefix(signature).strip()


def test_every_public_name_is_documented():
    seen = list(documented())
    assert len(seen) > 80
    # What is made without arguments has nothing to say of them.
    missing = [name for name, _, text in seen if len(text) < 10 and name != "SupportsDLPack.__init__"]
    assert missing == []


def test_documentation_has_shapes_and_units():
    units = {"_s": "second", "_bps": "bits", "_bytes": "bytes|budget|workspace"}
    checked = 0
    faults = []
    classes = {name: text for name, _, text in documented()}
    for name, signature, text in documented():
        told = text + (classes[name.split(".")[0]] if name.endswith("__init__") else "")
        arguments = re.findall(r"\b(\w+): ", signature)
        for ending, word in units.items():
            for argument in arguments:
                if argument.endswith(ending):
                    checked += 1
                    faults += [(name, argument)] if not re.search(word, told) else []
        if "SupportsDLPack" in signature or "NDArray" in signature:
            checked += 1
            faults += [(name, "no shape")] if not re.search(r"\[\w*.*\]|any .*shape", told) else []
    assert faults == [] and checked > 15


def test_every_public_name_is_listed():
    assert sparsesync.__all__ == sorted(sparsesync.__all__)
    assert set(sparsesync.__all__) <= set(dir(sparsesync))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        sparsesync.nothing  # noqa: B018
    star = {}
    exec("from sparsesync import *", star)
    assert set(sparsesync.__all__) <= set(star)


def test_nothing_compiled_is_loaded_before_it_is_asked_for():
    """Reports need none of it."""
    done = python(
        "import sys, sparsesync; print([each for each in ('numpy', 'sparsesync._native') if each in sys.modules])"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_the_package_is_typed():
    assert (package_folder() / "py.typed").exists()


def stub():
    return ast.parse((package_folder() / "_native.pyi").read_text())


def names_in(body):
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id


def test_the_stubs_name_every_public_name():
    top = set(names_in(stub().body))
    for name, value in public_objects():
        if name in vars(_native):
            assert name in top, name
        else:
            module = importlib.import_module(value.__module__)
            assert module.__file__.endswith(".py"), f"{name} is typed where it is defined"
    classes = {node.name: set(names_in(node.body)) for node in stub().body if isinstance(node, ast.ClassDef)}
    for name, value in vars(_native).items():
        if inspect.isclass(value) and value.__module__ == "sparsesync._native":
            public = {each.split(".")[1] for each, _ in members(name, value)}
            assert public <= classes[name], name


SNIPPET = """
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import sparsesync


def kernels(rows: npt.NDArray[np.int64], values: npt.NDArray[np.float32]) -> int:
    found, sums = sparsesync.coalesce(rows, values, 10)
    again, _ = sparsesync.compact(sums)
    code, data = sparsesync.encode_indices(found, 10)
    decoded: npt.NDArray[np.int64] = sparsesync.decode_indices(code, data, rows=10, count=len(found))
    return len(again) + len(decoded)


def session(array: sparsesync.SupportsDLPack) -> dict[str, int]:
    network = sparsesync.LocalNetwork(1, rate_bps=1e9)
    with sparsesync.Session(network.join(0), memory_bytes=None) as session:
        spec = sparsesync.TensorSpec("t", 10, 2, "f32")
        bucket: int = session.register_bucket("b", [spec], scheme="owned", announce=True)
        told: sparsesync.Ticket = session.announce(bucket, [np.array([1])])
        session.wait(told)
        session.reduce(bucket, [(np.array([1]), np.ones((1, 2), np.float32))])
        session.reduce(bucket, [None])
        session.reduce(bucket, [np.zeros((10, 2), np.float32)])
        session.wait(session.gather(bucket))
        result = session.result(bucket, 0)
        if isinstance(result, tuple):
            print(result[0].shape, result[1].shape)
        else:
            print(result.shape)
        rows: int | None = session.result_rows(bucket, 0)
        session.broadcast(array, root=0)
        gathered: list[bytes] = session.all_gather(b"x")
        session.agree("it", [("name", "value")])
        session.set_order([(bucket, "announce"), (bucket, "reduce"), (bucket, "gather")], session.step)
        print(rows, gathered, session.use(bucket), session.choice(bucket), session.rank, session.size, session.closed)
        return session.counters()


def traces(path: pathlib.Path) -> dict[str, Any]:
    with_writer = sparsesync.TraceWriter(path, [sparsesync.TensorSpec("t", 10, 2)], workers=1, steps=1, force=True)
    with_writer.write(0, 0, [np.array([1, 2])])
    with_writer.commit()
    loaded: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[Any]]] = sparsesync.Trace(path).load(0, 0)
    print(loaded, sparsesync.plan(path, workers=[2], rate_bps=1e9), sparsesync.compare(path, schemes=["owned"]))
    return sparsesync.profile(path)


def errors() -> int:
    try:
        print(sparsesync.provenance()["commit"].upper(), [name for name, summary in sparsesync.schemes() if summary])
    except sparsesync.PeerError as error:
        return error.rank
    except (sparsesync.Error, ValueError):
        raise
    world = sparsesync.MpiWorld(deadline_s=1)
    end: sparsesync.Transport = world.join()
    return end.rank
"""
WRONG = {
    "sparsesync.compact(3)": "arg-type",
    "sparsesync.encode_indices([1, 2], 4)": "arg-type",
    "sparsesync.decode_indices('coo', 'text', 4, 1)": "arg-type",
    "sparsesync.Session(sparsesync.LocalNetwork(1))": "arg-type",
    "sparsesync.LocalNetwork(1).join('0')": "arg-type",
    "sparsesync.schemes()[0][2]": "misc",
    "sparsesync.InputError.rank": "attr-defined",
    "sparsesync.nothing": "attr-defined",
}


def test_a_typed_program_is_checked(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(SNIPPET)
    wrong = ["import sparsesync", *WRONG]
    (tmp_path / "wrong.py").write_text("\n".join(wrong) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "right.py", "wrong.py"]
    environment = {"MYPYPATH": str(package_folder().parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    told = {
        int(line): kind
        for line, kind in re.findall(r"^wrong\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    }
    assert told == {2 + place: kind for place, kind in enumerate(WRONG.values())}, done.stdout
    assert "right.py" not in done.stdout and ".pyi" not in done.stdout, done.stdout
