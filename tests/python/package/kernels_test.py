"""Compares kernels on arrays, and index codes, with NumPy."""
# ctest: LABELS quick

import math

import numpy as np
import pytest
import sparsesync
from bindings_support import DTYPES, STORED, numbers_of, same_bits, stored

BEYOND_24 = 2**24 + 3
BEYOND_31 = 2**31 + 5
BEYOND_32 = 2**32 + 7


def some_values(random, shape, dtype):
    """Returns finite values of the type."""
    if dtype in ("i32", "i64"):
        limits = np.iinfo(STORED[dtype])
        return random.integers(limits.min, limits.max, shape, STORED[dtype], endpoint=True)
    return stored(random.standard_normal(shape) * 10.0 ** random.integers(-3, 3, shape), dtype)


# Coalesce


def summed_in_order(indices, values, dtype):
    """Returns distinct rows and their sums, added one by one. Narrow types are added in f32 and rounded once; integers wrap around."""
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
    """Returns indices and the number of rows."""
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
        assert np.array_equal(indices, given[0]) and same_bits(values, given[1]), "the arguments are unchanged"


def test_coalesce_takes_values_of_one_dimension_as_rows_of_one_element():
    found, sums = sparsesync.coalesce(np.array([4, 1, 4]), np.array([1.0, 2, 4], np.float32), 5)
    assert found.tolist() == [1, 4] and sums.tolist() == [[2], [5]]


def test_coalesce_of_rows_without_elements():
    found, sums = sparsesync.coalesce(np.array([4, 1, 4]), np.empty((3, 0)), 5)
    assert found.tolist() == [1, 4] and sums.shape == (2, 0)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_coalesce_keeps_nan_and_infinity(dtype):
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
def test_compact_drops_minus_zero_and_keeps_nan(dtype):
    dense = stored(np.array([[-0.0, -0.0], [0.0, np.nan], [-0.0, 0.0], [np.inf, 0.0], [-np.inf, -0.0]]), dtype)
    found, values = sparsesync.compact(dense)
    assert found.tolist() == [1, 3, 4] and same_bits(values, dense[[1, 3, 4]])


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_compact_keeps_the_smallest_number(dtype):
    bits = {"f32": np.uint32, "f64": np.uint64, "f16": np.uint16, "bf16": np.uint16}[dtype]
    dense = np.array([[0], [1]], bits).view(STORED[dtype])
    found, values = sparsesync.compact(dense)
    assert found.tolist() == [1] and same_bits(values, dense[1:])


@pytest.fixture
def no_denormals():
    """Makes the calling thread treat denormal numbers as zero until the test ends."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    yield
    torch.set_flush_denormal(False)


def test_coalesce_keeps_denormals_whatever_the_mode_of_the_caller(no_denormals):
    least = np.array([[1], [1], [1]], np.uint32).view(np.float32)
    found, sums = sparsesync.coalesce(np.array([4, 1, 4]), least, 5)
    assert found.tolist() == [1, 4] and sums.view(np.uint32).tolist() == [[1], [2]]


def test_compact_keeps_denormals_whatever_the_mode_of_the_caller(no_denormals):
    found, values = sparsesync.compact(np.array([[0], [1]], np.uint32).view(np.float32))
    assert found.tolist() == [1] and values.view(np.uint32).tolist() == [[1]]


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
    """Returns (low bits, bytes of the high parts, bytes in total) with the fewest bytes; on a tie with the fewest low bits."""

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
    """Returns whether the code can encode the set: "all" needs every row, and a bitmap may not take gigabytes."""
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
    decoded[:] = 0  # it belongs to the caller


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
def test_damaged_codes_are_reported(case):
    with pytest.raises(sparsesync.CorruptDataError) as told:
        sparsesync.decode_indices(*DAMAGED[case])
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("code", ["coo", "elias_fano", "bitmap"])
def test_any_bytes_are_indices_or_an_error(random, code):
    """With flipped bits, cut and extended codes, and noise, decoding returns a set of `count` rows or an error."""
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
        if code != "elias_fano":  # it ignores bits after its last number
            assert sparsesync.encode_indices(indices, rows, code)[1] == bytes(data), "two codes of the same set"
    assert told > 50 and read > 0, "some codes decoded, some were rejected"
