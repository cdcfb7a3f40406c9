// ctest: WORKERS 3 SLOW ALL
// The steady state allocates nothing. Every call of operator new in this process is counted during
// steps of equal size, in all threads.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/support/mpi_workers.h"
#include "tests/support/scheme_shapes.h"
#include "tests/support/scheme_variants.h"

namespace {

std::atomic<std::int64_t> allocations = 0;

// NOLINTBEGIN(cppcoreguidelines-no-malloc): implements operator new
void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* const memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

/// Not inlined, because the compiler would see free() of memory from operator new and warn.
[[gnu::noinline]] void release(void* memory) {
  std::free(memory);
}
// NOLINTEND(cppcoreguidelines-no-malloc)

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new[](std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}

namespace sparsesync::testing {
namespace {

constexpr int kWarmUp = 12;  // steps until all alternating buffers have been used
constexpr int kSteps = 20;

/// Expects no allocations in steps of a bucket in two rounds. The bucket has four row spaces. Two
/// have several tensors, one is nearly full, and one has wide rows. Gradients are coalesced,
/// uncoalesced, and dense.
void expect_no_allocations(const WorkersUnderTest& workers, int size, bool late_refusals = false) {
  const std::vector<TensorSpec> tensors{{"a", 5000, 8, DType::f32}, {"b", 300, 3, DType::bf16},
                                        {"c", 700, 8, DType::f32},  {"d", 40, 3, DType::bf16},
                                        {"e", 150, 5, DType::f32},  {"f", 80, 4000, DType::f32}};
  for (const SchemeVariant& variant : scheme_variants()) {
    if (variant.entry().all_reduces && !workers.has_all_reduce) continue;
    if (!variant.fits(size) || variant.announce) continue;
    Random random(seed());
    Inputs inputs;
    for (int worker = 0; worker < size; ++worker) {
      std::vector<OwnedGradient>& own = inputs.emplace_back();
      for (const TensorSpec& tensor : tensors) own.push_back(some_rows(random, tensor, 200));
      std::reverse(own[1].indices.begin(), own[1].indices.end());
      own[4] = random_gradient(random, tensors[4], distinct_rows(random, 150, 140));
      own[5] = random_gradient(random, tensors[5], distinct_rows(random, 80, 70));
      own[3].layout = Gradient::Layout::dense;
      own[3].values.assign(static_cast<std::size_t>(40 * 3 * 2), std::byte{0});
    }
    expect_no_errors(run_sessions(
        workers, size,
        [&](Session& session, HostMemory&) {
          const auto rank = static_cast<std::size_t>(session.rank().value);
          const BucketId id = session.register_bucket(variant.bucket(tensors, 2));
          std::vector<Gradient> gradients;
          for (const OwnedGradient& gradient : inputs[rank]) gradients.push_back(gradient.view());
          const auto step = [&] { session.synchronize(id, gradients); };
          step();
          session.adapt(id);
          for (int i = 0; i < kWarmUp; ++i) step();
          session.barrier();
          // After the barrier, other workers of this process may still be inside it during the
          // first step. So count only after one more step.
          step();
          const std::int64_t before = allocations;
          for (int i = 0; i < kSteps; ++i) step();
          EXPECT_EQ(allocations - before, 0)
              << variant.label << ", worker " << rank << " of " << size;
          // Other workers count until here.
          step();
          session.barrier();
        },
        {.deadline = kDeadline, .seed = 1, .threads = 2, .late_refusals = late_refusals}));
  }
}

TEST(SteadyState, allocates_nothing_among_threads) {
  if (MpiProcesses::get().rank() != 0) return;
  for (const int size : {1, 4}) expect_no_allocations(local_workers("local", {}), size);
  expect_no_allocations(local_workers("local", {}), 3, true);
}

TEST(SteadyState, allocates_nothing_over_mpi) {
  for (const int size : {1, 3}) expect_no_allocations(mpi_workers("mpi"), size);
}

}  // namespace
}  // namespace sparsesync::testing
