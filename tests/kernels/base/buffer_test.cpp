// Buffer: capacity only grows, and the memory resource counts each allocation.
#include "kernels/base/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <new>
#include <utility>

namespace sparsesync {
namespace {

/// A memory resource that counts allocations, checks that each block is returned with the size it
/// was allocated with, and enforces a budget.
class CountingMemory : public MemoryResource {
 public:
  explicit CountingMemory(std::int64_t budget) : budget_(budget) {}
  CountingMemory(const CountingMemory&) = delete;
  CountingMemory& operator=(const CountingMemory&) = delete;
  ~CountingMemory() override { EXPECT_TRUE(blocks_.empty()) << "blocks that were not returned"; }

  void* allocate(std::size_t bytes, std::size_t alignment, Stream) override {
    ++calls_;
    if (bad_alloc_) throw std::bad_alloc();
    const std::int64_t needed = bytes > static_cast<std::size_t>(budget_)
                                    ? std::numeric_limits<std::int64_t>::max()
                                    : in_use_ + static_cast<std::int64_t>(bytes);
    if (needed > budget_) throw BudgetError(needed, budget_, "test");
    void* const block = ::operator new (bytes, std::align_val_t{alignment});
    blocks_[block] = {bytes, alignment};
    in_use_ = needed;
    ++allocations_;
    return block;
  }

  void deallocate(void* block, std::size_t bytes, std::size_t alignment, Stream) noexcept override {
    const auto found = blocks_.find(block);
    ASSERT_NE(found, blocks_.end()) << "a block that this resource did not allocate";
    EXPECT_EQ(found->second, (std::pair{bytes, alignment}));
    blocks_.erase(found);
    in_use_ -= static_cast<std::int64_t>(bytes);
    ::operator delete (block, std::align_val_t{alignment});
  }

  bool has_to_spare(std::size_t bytes) const override {
    return in_use_ + static_cast<std::int64_t>(bytes) <= budget_;
  }

  void fail_with_bad_alloc(bool fail) { bad_alloc_ = fail; }
  int calls() const { return calls_; }
  int allocations() const { return allocations_; }
  std::int64_t in_use() const { return in_use_; }

 private:
  std::int64_t budget_;
  bool bad_alloc_ = false;
  int calls_ = 0;
  int allocations_ = 0;
  std::int64_t in_use_ = 0;
  std::map<void*, std::pair<std::size_t, std::size_t>> blocks_;
};

constexpr std::int64_t kPlenty = std::int64_t{1} << 30;

TEST(Buffer, AllocatesNothingUntilItIsUsed) {
  CountingMemory memory(kPlenty);
  Buffer<std::int64_t> buffer{Context(memory)};
  EXPECT_EQ(buffer.capacity(), 0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.reserve(0).size(), 0U);
  buffer.release();
  EXPECT_EQ(memory.calls(), 0);
}

TEST(Buffer, OnlyGrows) {
  CountingMemory memory(kPlenty);
  Buffer<std::int64_t> buffer{Context(memory)};
  const std::span<std::int64_t> first = buffer.reserve(100);
  EXPECT_EQ(first.size(), 100U);
  EXPECT_EQ(first.data(), buffer.data());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data()) % 64, 0U);
  EXPECT_EQ(buffer.capacity(), 112);
  EXPECT_EQ(memory.in_use(), 112 * 8);
  std::fill(first.begin(), first.end(), 7);
  // Requests that fit into the slack allocate nothing and keep the contents.
  for (const std::int64_t count : {0, 1, 100, 112}) {
    const std::span<std::int64_t> again = buffer.reserve(count);
    EXPECT_EQ(again.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(again.data(), first.data());
    EXPECT_EQ(buffer.reserve_exactly(count).data(), first.data());
  }
  EXPECT_EQ(first[99], 7);
  EXPECT_EQ(memory.calls(), 1);
  const std::span<std::int64_t> larger = buffer.reserve(113);
  EXPECT_EQ(larger.size(), 113U);
  EXPECT_EQ(buffer.capacity(), 113 + 113 / 8);
  EXPECT_EQ(memory.calls(), 2);
  std::fill(larger.begin(), larger.end(), 8);
}

TEST(Buffer, ReturnsTheOldBlockFirst) {
  // Enough for the larger block, but not for both.
  CountingMemory memory(200 * 8);
  Buffer<std::int64_t> buffer{Context(memory)};
  buffer.reserve_exactly(150);
  EXPECT_EQ(buffer.reserve_exactly(200).size(), 200U);
  EXPECT_EQ(memory.in_use(), 200 * 8);
}

TEST(Buffer, ReserveExactlyAddsNoSlack) {
  CountingMemory memory(kPlenty);
  Buffer<char> buffer{Context(memory)};
  EXPECT_EQ(buffer.reserve_exactly(1001).size(), 1001U);
  EXPECT_EQ(buffer.capacity(), 1001);
  EXPECT_EQ(memory.in_use(), 1001);
  buffer.release();
  EXPECT_EQ(memory.in_use(), 0);
  EXPECT_EQ(buffer.capacity(), 0);
}

TEST(Buffer, AddsNoSlackIfTheBudgetIsTooSmallForIt) {
  CountingMemory memory(110 * 8);
  Buffer<std::int64_t> buffer{Context(memory)};
  EXPECT_EQ(buffer.reserve(100).size(), 100U);
  EXPECT_EQ(buffer.capacity(), 100);
  EXPECT_EQ(memory.in_use(), 100 * 8);
}

TEST(Buffer, IsUsableAfterABudgetError) {
  CountingMemory memory(100 * 8);
  Buffer<std::int64_t> buffer{Context(memory)};
  buffer.reserve(50);
  for (int i = 0; i < 2; ++i) {
    try {
      buffer.reserve(101);
      FAIL() << "no error";
    } catch (const BudgetError& error) {
      EXPECT_EQ(error.budget(), 100 * 8);
      EXPECT_GT(error.needed(), 100 * 8);
    }
    EXPECT_EQ(memory.in_use(), buffer.capacity() * 8);
    const std::span<std::int64_t> room = buffer.reserve(100);
    EXPECT_EQ(room.size(), 100U);
    std::fill(room.begin(), room.end(), 3);
  }
  EXPECT_THROW(buffer.reserve_exactly(101), BudgetError);
  EXPECT_EQ(memory.in_use(), buffer.capacity() * 8);
}

TEST(Buffer, IsUsableAfterMemoryRanOut) {
  CountingMemory memory(kPlenty);
  Buffer<std::int64_t> buffer{Context(memory)};
  buffer.reserve(50);
  memory.fail_with_bad_alloc(true);
  EXPECT_THROW(buffer.reserve(1000), std::bad_alloc);
  EXPECT_EQ(memory.in_use(), buffer.capacity() * 8);
  memory.fail_with_bad_alloc(false);
  EXPECT_EQ(buffer.reserve(1000).size(), 1000U);
}

template <typename T>
void expect_refuses_huge_counts() {
  CountingMemory memory(kPlenty);
  Buffer<T> buffer{Context(memory)};
  const std::span<T> before = buffer.reserve(10);
  ASSERT_EQ(before.size(), 10U);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  for (const std::int64_t count :
       {std::int64_t{1} << 61, std::int64_t{1} << 62, kMost / kSize, kMost / kSize / 5 * 4,
        kMost / kSize / 5 * 4 + 1, kMost - 1, kMost}) {
    EXPECT_THROW(buffer.reserve(count), BudgetError) << count;
    EXPECT_THROW(buffer.reserve_exactly(count), BudgetError) << count;
    EXPECT_EQ(memory.in_use(), buffer.capacity() * kSize);
    EXPECT_EQ(buffer.reserve(10).size(), 10U);
  }
}

TEST(Buffer, RejectsHugeCountsThroughTheBudget) {
  expect_refuses_huge_counts<char>();
  expect_refuses_huge_counts<float>();
  expect_refuses_huge_counts<std::int64_t>();
  struct Three {
    char bytes[3];
  };
  expect_refuses_huge_counts<Three>();
}

TEST(Buffer, ANegativeCountIsAContractError) {
  CountingMemory memory(kPlenty);
  Buffer<std::int64_t> buffer{Context(memory)};
  EXPECT_THROW(buffer.reserve(-1), ContractError);
  EXPECT_THROW(buffer.reserve_exactly(std::numeric_limits<std::int64_t>::min()), ContractError);
}

TEST(Buffer, MovesWithItsMemory) {
  CountingMemory memory(kPlenty);
  Buffer<std::int64_t> from{Context(memory)};
  const std::span<std::int64_t> room = from.reserve(10);
  room[9] = 42;
  Buffer<std::int64_t> to(std::move(from));
  EXPECT_EQ(to.data(), room.data());
  EXPECT_EQ(to.capacity(), 11);
  EXPECT_EQ(to.reserve(10)[9], 42);
  // The moved-from buffer is empty and can be used again.
  // NOLINTBEGIN(bugprone-use-after-move, clang-analyzer-cplusplus.Move)
  EXPECT_EQ(from.data(), nullptr);
  EXPECT_EQ(from.capacity(), 0);
  EXPECT_EQ(memory.allocations(), 1);
  EXPECT_EQ(from.reserve(1).size(), 1U);
  EXPECT_NE(from.data(), to.data());
  // NOLINTEND(bugprone-use-after-move, clang-analyzer-cplusplus.Move)
}

static_assert(!std::is_copy_constructible_v<Buffer<int>> &&
              !std::is_copy_assignable_v<Buffer<int>> && !std::is_move_assignable_v<Buffer<int>>);

}  // namespace
}  // namespace sparsesync
