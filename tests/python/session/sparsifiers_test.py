"""Sparsifiers with threads as workers: results against the papers' algorithms in NumPy, over all schemes; sent bytes; and rejected use."""
# ctest: EMULATED

import math

import numpy as np
import pytest
import sparsesync
from bindings_support import DEVICE, result_as_dense, together
from sparsesync import BudgetError, InputError, RefusedError, Sparsifier, TensorSpec

SCHEMES = ["balanced", "owned", "all_gather", "sparse_ps", "split_all_gather", "auto"]
STEPS = 6


class Dgc:
    """Deep Gradient Compression exactly as in the paper, in f64, for one worker and one tensor."""

    def __init__(self, size, momentum, masks, nesterov, clip):
        self.residual = np.zeros(size)
        self.velocity = np.zeros(size)
        self.momentum, self.masks, self.nesterov, self.clip = momentum, masks, nesterov, clip

    def step(self, gradient, k):
        """Returns the sent gradient as a dense array."""
        norm = np.linalg.norm(gradient)
        if self.clip is not None and norm > self.clip:
            gradient = gradient * (self.clip / norm)
        self.velocity = self.momentum * self.velocity + gradient
        self.residual = self.residual + (gradient + self.momentum * self.velocity if self.nesterov else self.velocity)
        taken = np.argsort(-np.abs(self.residual), kind="stable")[:k]
        taken = taken[self.residual[taken] != 0]
        sent = np.zeros_like(self.residual)
        sent[taken] = self.residual[taken]
        self.residual[taken] = 0
        if self.masks:
            self.velocity[taken] = 0
        return sent


def whole(random, size):
    return random.integers(-4, 5, size).astype(np.float32)


def step_of(session, sparsifier, bucket, gradients, **options):
    """Runs a whole step. Returns this worker's result for each tensor that is sent."""
    tickets = [sparsifier.reduce(bucket, gradients, **options), session.gather(bucket)]
    for ticket in tickets:
        session.wait(ticket)
    return [result_as_dense(session, bucket, place, spec)[0] for place, spec in enumerate(sparsifier.crossing)]


def state_of(sparsifier, tensor, size, velocity=False):
    found = [np.empty(size, np.float32) for _ in range(1 + velocity)]
    sparsifier.write_state(tensor, *found)
    if DEVICE != "cpu":
        sparsesync._native.emulated.synchronize(0)
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("momentum", "masks", "nesterov"), [(0.0, True, False), (0.5, True, False), (0.5, False, True)])
def test_deep_gradient_compression(random, scheme, momentum, masks, nesterov):
    workers, sizes = 4, [500, 33]
    specs = [TensorSpec("large", 50, 10), TensorSpec("small", 33, 1)]
    drawn = [[[whole(random, size) for size in sizes] for _ in range(workers)] for _ in range(STEPS)]
    drawn[2][1][1] = None  # a tensor that a worker does not use; its residual is sent all the same
    shares = [1.0, 0.25, 0.25, 0.01, 0.01, 0.02]

    def work(session):
        sparsifier = Sparsifier(session, specs, corrects_momentum=momentum > 0, masks_momentum=masks)
        assert [(each.rows, each.width) for each in sparsifier.crossing] == [(500, 1), (33, 1)]
        bucket = session.register_bucket("bucket", sparsifier.crossing, scheme)
        results = []
        for given, share in zip(drawn, shares, strict=True):
            own = given[session.rank]
            results.append(
                step_of(session, sparsifier, bucket, own, share=share, momentum=momentum, nesterov=nesterov)
            )
        return results, [state_of(sparsifier, i, size) for i, size in enumerate(sizes)]

    told = together(workers, work)
    oracles = [[Dgc(size, momentum, masks, nesterov, None) for size in sizes] for _ in range(workers)]
    for step, (given, share) in enumerate(zip(drawn, shares, strict=True)):
        for tensor, size in enumerate(sizes):
            expected = np.zeros(size)
            for rank in range(workers):
                gradient, oracle = given[rank][tensor], oracles[rank][tensor]
                if gradient is None:  # without a gradient, velocities do not change
                    before = oracle.velocity, oracle.momentum
                    oracle.velocity, oracle.momentum = np.zeros(size), 0.0
                    sent = oracle.step(np.zeros(size), math.ceil(share * size))
                    mask = (sent != 0) & masks
                    oracle.velocity, oracle.momentum = np.where(mask, 0, before[0]), before[1]
                else:
                    sent = oracle.step(gradient.astype(np.float64), math.ceil(share * size))
                expected += sent
            for results, _ in told:
                np.testing.assert_array_equal(results[step][tensor].reshape(-1), expected, err_msg=f"step {step}")
    for rank, (_, residuals) in enumerate(told):
        for tensor, (residual,) in enumerate(residuals):
            np.testing.assert_array_equal(residual, oracles[rank][tensor].residual)


def chosen_of(session, sparsifier, norms_bucket, share):
    """Returns the chunks with the largest norms, summed over workers."""
    norms = np.empty(sparsifier.chunks)
    sparsifier.write_norms(norms)
    tickets = [session.reduce(norms_bucket, [norms]), session.gather(norms_bucket)]
    for ticket in tickets:
        session.wait(ticket)
    summed = session.result(norms_bucket, 0).reshape(-1)
    return sparsesync.largest_chunks(summed.tolist(), math.ceil(share * sparsifier.chunks))


@pytest.mark.skipif(DEVICE != "cpu", reason="arrays of the host")
@pytest.mark.parametrize("scheme", ["balanced", "owned", "dense_ring"])
def test_all_workers_take_the_same_chunks(random, scheme):
    workers, sizes, chunk, share = 4, [700, 90, 1], 32, 0.2
    specs = [TensorSpec(f"layer{i}", size, 1) for i, size in enumerate(sizes)]
    drawn = [[[whole(random, size) for size in sizes] for _ in range(workers)] for _ in range(STEPS)]

    def work(session):
        sparsifier = Sparsifier(session, specs, "chunks", chunk=chunk)
        bucket = session.register_bucket("bucket", sparsifier.crossing, scheme)
        norms = session.register_bucket("norms", [TensorSpec("norms", sparsifier.chunks, 1, "f64")], "dense_ring")
        session.set_order([(b, phase) for b in (bucket, norms) for phase in ("reduce", "gather")], 0)
        results, choices = [], []
        for given in drawn:
            results.append(step_of(session, sparsifier, bucket, given[session.rank])[0].reshape(-1))
            choices.append(chosen_of(session, sparsifier, norms, share))
            sparsifier.choose(choices[-1])
        return results, choices, [state_of(sparsifier, i, size)[0] for i, size in enumerate(sizes)]

    told = together(workers, work)
    residuals = [np.zeros(sum(sizes)) for _ in range(workers)]
    chunks = -(-sum(sizes) // chunk)
    chosen = list(range(chunks))
    for step, given in enumerate(drawn):
        expected = np.zeros(chunks * chunk)
        norms = np.zeros(chunks)
        for rank in range(workers):
            residuals[rank] += np.concatenate(given[rank])
            padded = np.pad(residuals[rank], (0, chunks * chunk - sum(sizes))).reshape(chunks, chunk)
            norms += np.abs(padded).sum(axis=1)
            expected.reshape(chunks, chunk)[chosen] += padded[chosen]
            padded[chosen] = 0
            residuals[rank] = padded.reshape(-1)[: sum(sizes)]
        for results, _, _ in told:
            np.testing.assert_array_equal(results[step], expected, err_msg=f"step {step}")
        chosen = sorted(np.argsort(-norms, kind="stable")[: math.ceil(share * chunks)].tolist())
        for _, choices, _ in told:
            assert choices[step] == chosen
    for rank, (_, _, left) in enumerate(told):
        np.testing.assert_array_equal(np.concatenate(left), residuals[rank])


def busiest_bytes(workers, work):
    """Returns the bytes of the busiest worker in the larger direction, as work(session) counts them."""
    return max(max(each) for each in together(workers, work))


def crossed(session, step):
    """Returns the bytes sent and received in a step."""
    before = session.counters()
    step()
    after = session.counters()
    return tuple(after[name] - before[name] for name in ("bytes_sent", "bytes_received"))


def dense_ring_bytes(workers, elements):
    return 2 * (workers - 1) / workers * elements * 4


@pytest.mark.parametrize("scheme", ["balanced", "owned"])
def test_one_percent_of_elements_takes_little(scheme):
    workers, elements = 8, 200_000
    k = elements // 100

    def work(session):
        sparsifier = Sparsifier(session, [TensorSpec("t", elements, 1)])
        bucket = session.register_bucket("bucket", sparsifier.crossing, scheme)
        places = np.random.default_rng(1).permutation(elements)[: workers * k].reshape(workers, k)
        gradient = np.zeros(elements, np.float32)
        gradient[places[session.rank]] = 1.0  # no other worker chooses these
        step_of(session, sparsifier, bucket, [gradient], share=0.01)  # statistics are exchanged
        return crossed(session, lambda: step_of(session, sparsifier, bucket, [gradient], share=0.01))

    assert busiest_bytes(workers, work) <= 0.056 * dense_ring_bytes(workers, elements)


@pytest.mark.skipif(DEVICE != "cpu", reason="arrays of the host")
def test_a_tenth_of_chunks_takes_a_tenth():
    workers, chunk, chunks = 4, 4096, 60
    elements = chunk * chunks

    def work(session):
        sparsifier = Sparsifier(session, [TensorSpec("t", elements, 1)], "chunks", chunk=chunk)
        bucket = session.register_bucket("bucket", sparsifier.crossing, "balanced")
        norms = session.register_bucket("norms", [TensorSpec("norms", chunks, 1, "f64")], "dense_ring")
        session.set_order([(b, phase) for b in (bucket, norms) for phase in ("reduce", "gather")], 0)
        gradient = whole(np.random.default_rng(session.rank), elements)

        def step():
            step_of(session, sparsifier, bucket, [gradient])
            sparsifier.choose(chosen_of(session, sparsifier, norms, 0.1))

        for _ in range(2):
            step()
        return crossed(session, step)

    assert busiest_bytes(workers, work) <= 0.105 * dense_ring_bytes(workers, elements)


def test_rounding_errors_stay_in_the_residual(random):
    workers, size = 3, 200
    gradients = [random.standard_normal(size).astype(np.float32) for _ in range(workers)]

    def work(session):
        sparsifier = Sparsifier(session, [TensorSpec("t", size, 1)], wire="f16")
        assert sparsifier.crossing[0].dtype == "f16"
        bucket = session.register_bucket("bucket", sparsifier.crossing, "balanced")
        step_of(session, sparsifier, bucket, [gradients[session.rank]])
        return state_of(sparsifier, 0, size)[0]

    for gradient, residual in zip(gradients, together(workers, work), strict=True):
        np.testing.assert_array_equal(residual, gradient - gradient.astype(np.float16).astype(np.float32))
        assert np.any(residual)


def test_state_can_be_written_and_read(random):
    size = 64
    gradient = whole(random, size)

    def work(session):
        first = Sparsifier(session, [TensorSpec("t", size, 1)], corrects_momentum=True)
        bucket = session.register_bucket("bucket", first.crossing, "balanced")
        step_of(session, first, bucket, [gradient], share=0.1, momentum=0.5)
        state = state_of(first, 0, size, velocity=True)
        second = Sparsifier(session, [TensorSpec("t", size, 1)], corrects_momentum=True)
        second.read_state(0, *state)
        for sparsifier in (first, second):
            step_of(session, sparsifier, bucket, [gradient], share=0.1, momentum=0.5)
        assert session.memory_in_use > 4 * 4 * size
        return [state_of(each, 0, size, velocity=True) for each in (first, second)], state

    ((first, second), state), = together(1, work)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, state)


def test_a_step_that_is_skipped(random):
    size = 64
    gradients = [whole(random, size) for _ in range(2)]
    gradients[1][7] = np.nan

    def work(session):
        sparsifier = Sparsifier(session, [TensorSpec("t", size, 1)])
        assert sparsifier.not_finite() == 0
        bucket = session.register_bucket("bucket", sparsifier.crossing, "balanced")
        step_of(session, sparsifier, bucket, [gradients[0]], share=0.1)
        before = state_of(sparsifier, 0, size)[0]
        step_of(session, sparsifier, bucket, [gradients[1]], share=0.1)
        assert sparsifier.not_finite() == 1
        sparsifier.undo([gradients[1]])
        sparsifier.undo([gradients[1]])  # a second undo changes nothing
        return before, state_of(sparsifier, 0, size)[0]

    (before, after), = together(1, work)
    np.testing.assert_array_equal(before, after)


def test_a_step_without_memory_is_refused_by_all_and_the_next_one_works(random):
    size = 200_000
    gradients = [[whole(random, size) for _ in range(2)] for _ in range(3)]

    def work(session, lacks_memory=True):
        sparsifier = Sparsifier(session, [TensorSpec("t", size, 1)])
        bucket = session.register_bucket("bucket", sparsifier.crossing, "all_gather")
        own = gradients[session.rank]
        step_of(session, sparsifier, bucket, [own[0]], share=0.01)
        owed = state_of(sparsifier, 0, size)[0]
        if lacks_memory:
            with pytest.raises(BudgetError if session.rank == 1 else RefusedError):
                step_of(session, sparsifier, bucket, [own[1]], share=1.0)
            assert sparsifier.not_finite() == 0
            sparsifier.give_back()
            # The other workers keep this step's gradient in their residuals. Worker 1, whose step failed, does not.
            now_owed = owed if session.rank == 1 else owed + own[1]
            np.testing.assert_array_equal(state_of(sparsifier, 0, size)[0], now_owed)
        last = step_of(session, sparsifier, bucket, [own[1]], share=0.01)[0]
        assert np.count_nonzero(last) >= size / 100
        return session.memory_high_water, last

    enough = together(3, lambda session: work(session, lacks_memory=False))[1][0]
    outcomes = together(3, work, memory_bytes=lambda rank: enough + 4 * size if rank == 1 else None)
    for _, last in outcomes:
        np.testing.assert_array_equal(last, outcomes[0][1])


def test_bad_input(random):
    spec = TensorSpec("t", 10, 1)
    gradient = whole(random, 10)

    def work(session):
        bucket = session.register_bucket("bucket", [TensorSpec("t", 11, 1)], "balanced")
        for given, said in [
            ({"selecting": "magic"}, "there is no sparsifier 'magic'"),
            ({"selecting": "chunks", "chunk": 11}, "chunks of 11 elements: use 1 to 10"),
            ({"selecting": "threshold"}, "threshold level 0"),
            ({"clip": -1.0}, "clip norm -1"),
            ({"wire": "f64"}, "f32, f16 or bf16"),
        ]:
            with pytest.raises(InputError, match=said):
                Sparsifier(session, [spec], **given)
        with pytest.raises(InputError, match="tensor 't' is f64"):
            Sparsifier(session, [TensorSpec("t", 10, 1, "f64")])
        sparsifier = Sparsifier(session, [spec])
        own = session.register_bucket("own", sparsifier.crossing, "balanced")
        for share in (0.0, 1.5, math.nan):
            with pytest.raises(InputError, match="above 0 and at most 1"):
                sparsifier.reduce(own, [gradient], share=share)
        for given, said in [
            ([], "0 gradients for 1 tensors"),
            ([gradient[:9]], "9 elements of f32 are given, but it has 10"),
            ([gradient.astype(np.float64)], "10 elements of f64"),
        ]:
            with pytest.raises(InputError, match=said):
                sparsifier.reduce(own, given)
        with pytest.raises(InputError, match="register it with `crossing`"):
            sparsifier.reduce(bucket, [gradient])
        with pytest.raises(InputError, match="there is no tensor 1"):
            sparsifier.write_state(1, np.empty(10, np.float32))
        with pytest.raises(InputError, match="residual: 9 numbers"):
            sparsifier.write_state(0, np.empty(9, np.float32))
        chunks = Sparsifier(session, [spec], "chunks", chunk=5)
        with pytest.raises(InputError, match="chunks must increase"):
            chunks.choose([1, 1])

    together(1, work)
