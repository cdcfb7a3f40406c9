"""Array arguments: which are rejected; others are neither copied nor kept; and the GIL."""
# ctest: SLOW large_input

import gc
import struct
import sys
import threading

import numpy as np
import pytest
import sparsesync
from bindings_support import numbers_of, one_line, python
from sparsesync import InputError

BEYOND_24 = 2**24 + 3
BEYOND_31 = 2**31 + 5
BEYOND_32 = 2**32 + 7


# Rejected arrays: typed errors in one line, and no crash


def unaligned(array):
    """Returns the same array at an address that is one byte off."""
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
    "the array has no dimension": np.array(1.0),
    "a list": [[1.0, 2]] * 4,
    "None": None,
}


@pytest.mark.parametrize("case", NO_INDICES)
def test_invalid_indices_are_reported(case):
    with pytest.raises(InputError) as told:
        sparsesync.coalesce(NO_INDICES[case], VALUES, 4)
    assert one_line(told.value).startswith("indices")
    with pytest.raises(InputError) as told:
        sparsesync.encode_indices(NO_INDICES[case], 100)
    assert one_line(told.value).startswith("indices")


@pytest.mark.parametrize("case", NO_VALUES)
def test_invalid_values_are_reported(case):
    with pytest.raises(InputError) as told:
        sparsesync.coalesce(ROWS, NO_VALUES[case], 4)
    assert one_line(told.value).startswith("values")
    with pytest.raises(InputError) as told:
        sparsesync.compact(NO_VALUES[case])
    assert one_line(told.value).startswith("dense")


def test_an_error_says_what_was_given_and_how_to_fix_it():
    with pytest.raises(InputError) as told:
        sparsesync.coalesce(NO_INDICES["int32"], VALUES, 4)
    assert "int64 with one dimension" in str(told.value) and "of int32 (4,)" in str(told.value)
    with pytest.raises(InputError) as told:
        sparsesync.compact(NO_VALUES["transposed"])
    assert "numpy.ascontiguousarray" in str(told.value)


REFUSED = {
    "an index below 0": (lambda: sparsesync.coalesce(np.array([0, -1]), VALUES[:2], 4), "index -1 at position 1"),
    "an index beyond": (
        lambda: sparsesync.coalesce(np.array([3, 0, 4]), VALUES[:3], 4),
        "index 4 at position 2 is outside [0, 4)",
    ),
    "the largest index": (lambda: sparsesync.coalesce(np.array([2**63 - 1]), VALUES[:1], 4), "outside [0, 4)"),
    "the smallest index": (lambda: sparsesync.coalesce(np.array([-(2**63)]), VALUES[:1], 4), "outside [0, 4)"),
    "an index of no rows": (lambda: sparsesync.coalesce(ROWS[:1], VALUES[:1], 0), "outside [0, 0)"),
    "fewer values": (lambda: sparsesync.coalesce(ROWS, VALUES[:3], 4), "4 indices with 3 rows"),
    "more values": (lambda: sparsesync.coalesce(ROWS[:2], VALUES, 4), "2 indices with 4 rows"),
    "rows below 0": (lambda: sparsesync.coalesce(ROWS[:0], VALUES[:0], -1), "-1 rows"),
    "rows beyond 2^62": (lambda: sparsesync.encode_indices(ROWS, 2**62 + 1), "0 to 2^62"),
    "decreasing": (lambda: sparsesync.encode_indices(np.array([1, 0]), 4), "index 0 at position 1"),
    "twice": (lambda: sparsesync.encode_indices(np.array([1, 1]), 4), "index 1 at position 1"),
    "below 0": (lambda: sparsesync.encode_indices(np.array([-1]), 4), "index -1 at position 0"),
    "beyond": (lambda: sparsesync.encode_indices(np.array([4]), 4), "index 4 at position 0"),
    "all that are not all": (lambda: sparsesync.encode_indices(ROWS, 5, "all"), "4 of 5"),
    "no such code": (lambda: sparsesync.encode_indices(ROWS, 5, "zip"), "coo, elias_fano, bitmap or all"),
    "no such code to read": (lambda: sparsesync.decode_indices("", b"", 5, 0), "coo, elias_fano, bitmap or all"),
    "count below 0": (lambda: sparsesync.decode_indices("coo", b"", 5, -1), "-1 indices of 5 rows"),
    "count beyond": (lambda: sparsesync.decode_indices("coo", b"", 5, 6), "6 indices of 5 rows"),
    "no rows to read": (lambda: sparsesync.decode_indices("coo", b"", -5, 0), "-5 rows"),
    "no dtype": (lambda: sparsesync.TensorSpec("t", 1, 1, "f8"), "f32, f64, f16, bf16, i32, i64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_input_is_reported(case):
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


# Arguments are not copied


class Exporter:
    """Supports DLPack and nothing else."""

    def __init__(self, array):
        self._array = array
        self.asked = 0

    def __dlpack__(self, **options):
        self.asked += 1
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_objects_with_dlpack_are_accepted():
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
    with pytest.raises(InputError, match="contiguous"):
        sparsesync.compact(torch.ones(4, 3).T)


def test_arguments_are_not_kept():
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
        assert growth > size * 0.9, "the measurement finds a copy"
    else:
        assert growth < size * 0.75, growth


# The GIL


def lets_others_run(call, tries=2000):
    """Returns whether another thread runs during `call`. It gets the GIL only if the call releases it, because the switch interval is
    too long to force it. A call may end before the system wakes that thread, so it is repeated.
    """
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
    assert not lets_others_run(lambda: sum(range(20_000)), tries=200), "no other thread runs while the GIL is held"
    assert lets_others_run(lambda: sparsesync.coalesce(rows, values, 2_000_000))
    assert lets_others_run(lambda: sparsesync.compact(values))
    assert lets_others_run(lambda: sparsesync.encode_indices(rows, 2_000_000, "elias_fano"))
    assert lets_others_run(lambda: sparsesync.decode_indices(code, data, 2_000_000, len(rows)))
