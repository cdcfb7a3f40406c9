// HostMemory: the budget, the high-water mark, and any std::pmr resource as upstream.
#include "sparsesync/memory.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/base/error.h"

namespace sparsesync {
namespace {

TEST(HostMemory, counts_the_bytes_in_use) {
  HostMemory memory;
  void* const a = memory.allocate(100, 64, {});
  void* const b = memory.allocate(50, 8, {});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 64, 0U);
  EXPECT_EQ(memory.in_use(), 150);
  memory.deallocate(a, 100, 64, {});
  EXPECT_EQ(memory.in_use(), 50);
  EXPECT_EQ(memory.high_water(), 150);
  EXPECT_EQ(memory.allocations(), 2);
  memory.deallocate(b, 50, 8, {});
  EXPECT_EQ(memory.in_use(), 0);
}

TEST(HostMemory, enforces_its_budget_and_reports_the_needed_bytes) {
  HostMemory memory(1000);
  void* const a = memory.allocate(600, 8, {});
  EXPECT_NE(a, nullptr);
  try {
    memory.allocate(401, 8, {});
    FAIL() << "exceeded the budget";
  } catch (const BudgetError& error) {
    EXPECT_EQ(error.needed(), 1001);
    EXPECT_EQ(error.budget(), 1000);
  }
  EXPECT_EQ(memory.in_use(), 600);
  EXPECT_THROW(memory.expect_room(401), BudgetError);
  memory.expect_room(400);
  EXPECT_EQ(memory.high_water(), 600);
  void* const b = memory.allocate(400, 8, {});
  memory.deallocate(b, 400, 8, {});
  memory.deallocate(a, 600, 8, {});
  EXPECT_THROW(memory.allocate(std::numeric_limits<std::size_t>::max(), 8, {}), BudgetError);
}

TEST(HostMemory, spares_a_quarter_of_its_budget) {
  HostMemory memory(1000);
  EXPECT_TRUE(memory.has_to_spare(250));
  EXPECT_FALSE(memory.has_to_spare(251));
  EXPECT_FALSE(memory.has_to_spare(std::numeric_limits<std::size_t>::max()));
  void* const a = memory.allocate(200, 8, {});
  EXPECT_TRUE(memory.has_to_spare(50));
  EXPECT_FALSE(memory.has_to_spare(51));
  memory.deallocate(a, 200, 8, {});
  EXPECT_TRUE(HostMemory().has_to_spare(std::size_t{1} << 50U));
}

TEST(HostMemory, allocates_from_upstream) {
  std::pmr::monotonic_buffer_resource arena;
  HostMemory memory(std::nullopt, &arena);
  void* const a = memory.allocate(128, 32, {});
  EXPECT_NE(a, nullptr);
  memory.deallocate(a, 128, 32, {});
  HostMemory none(std::nullopt, std::pmr::null_memory_resource());
  EXPECT_THROW(none.allocate(1, 1, {}), std::bad_alloc);
  EXPECT_EQ(none.in_use(), 0);
}

}  // namespace
}  // namespace sparsesync
