// ctest: DEVICES
// Red zones between slices of scratch memory (kernels/cuda/stream.h), on the emulated device.
#include <gtest/gtest.h>

#if defined(SPARSESYNC_WITH_CUDA)
#include <cuda_runtime.h>
#endif

#if defined(SPARSESYNC_CUDA_EMULATED)

#include <array>
#include <cstddef>
#include <span>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "kernels/cuda/launch.h"
#include "tests/kernels/kernel_test.h"

namespace sparsesync::cuda {
namespace {

/// Hides a kernel's accesses from AddressSanitizer, which would otherwise end the program.
#if defined(__SANITIZE_ADDRESS__)
#define SPARSESYNC_UNSEEN __attribute__((no_sanitize_address))
#else
#define SPARSESYNC_UNSEEN
#endif

/// Writes an element.
__global__ SPARSESYNC_UNSEEN void write_element(float* elements, Index place) {
  if (threadIdx.x == 0) elements[place] = 1;
}

class ScratchTest : public KernelTest {
 protected:
  /// Runs an operation with three slices, of 100, 64 and 0 elements. It writes one element at index
  /// `place` of a slice.
  void operation(const Context& context, std::size_t slice, Index place) {
    Scratch scratch(context);
    const std::array<std::span<float>, 3> slices{
        scratch.allocate<float>(100), scratch.allocate<float>(64), scratch.allocate<float>(0)};
    launch<write_element>(context, 1, 32, slices.at(slice).data(), place);
  }

  /// Returns the error of the next synchronization, or an empty string if there is none.
  std::string error_of(std::size_t slice, Index place) {
    operation(context_, slice, place);
    try {
      context_.device_stream()->synchronize();
    } catch (const ContractError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(ScratchTest, writes_inside_a_slice_are_no_error) {
  EXPECT_EQ(error_of(0, 0), "");
  EXPECT_EQ(error_of(0, 99), "");
  EXPECT_EQ(error_of(1, 63), "");
}

TEST_F(ScratchTest, a_write_behind_a_slice_is_an_error_that_names_the_slice) {
  const std::string text = "scratch: a kernel wrote 0 bytes past the end of slice ";
  EXPECT_EQ(error_of(0, 100), text + "1 of 3, which has 400 bytes");
  // The address at which the next slice would begin without red zones.
  EXPECT_EQ(error_of(1, 64), text + "2 of 3, which has 256 bytes");
  EXPECT_EQ(error_of(2, 0), text + "3 of 3, which has 0 bytes");
  // In front of a slice.
  EXPECT_NE(error_of(1, -1).find("of slice 1 of 3"), std::string::npos);
  EXPECT_EQ(error_of(1, 0), "") << "the same error was thrown twice";
}

TEST_F(ScratchTest, an_operation_inside_another_one_is_checked_with_it) {
  {
    Scratch outer(context_);
    const std::span<float> slice = outer.allocate<float>(10);
    operation(context_, 1, 0);
    EXPECT_NO_THROW(context_.device_stream()->synchronize());
    launch<write_element>(context_, 1, 32, slice.data(), Index{10});
    operation(context_, 1, 0);
  }
  try {
    context_.device_stream()->synchronize();
    ADD_FAILURE() << "no error";
  } catch (const ContractError& error) {
    EXPECT_NE(std::string(error.what()).find("slice 1 of 7, which has 40 bytes"), std::string::npos)
        << error.what();
  }
}

#if defined(__SANITIZE_ADDRESS__)
TEST_F(ScratchTest, address_sanitizer_knows_the_red_zones) {
  std::byte* end = nullptr;
  {
    Scratch scratch(context_);
    const std::span<std::byte> slice = scratch.allocate<std::byte>(100);
    end = slice.data() + slice.size();
    EXPECT_EQ(__asan_region_is_poisoned(slice.data(), slice.size()), nullptr);
    EXPECT_EQ(__asan_region_is_poisoned(slice.data(), slice.size() + 1), end);
    const std::span<std::byte> next = scratch.allocate<std::byte>(1);
    for (const std::byte* at = end; at < next.data(); ++at) {
      ASSERT_NE(__asan_address_is_poisoned(at), 0) << at - end;
    }
  }
  EXPECT_EQ(__asan_address_is_poisoned(end), 0);
}
#endif

TEST_F(ScratchTest, an_unchecked_stream_has_no_red_zones) {
  const testing::DeviceUnderTest device(false);
  const Context context = device.context(memory_);
  const DeviceStream::Counters before = device.device_stream()->counters();
  {
    Scratch scratch(context);
    const std::span<float> first = scratch.allocate<float>(64);
    EXPECT_EQ(scratch.allocate<float>(1).data(), first.data() + 64);
  }
  operation(context, 0, 100);
  EXPECT_NO_THROW(device.device_stream()->synchronize());
  EXPECT_EQ(device.device_stream()->counters().launches, before.launches + 1);
  EXPECT_EQ(device.device_stream()->counters().copies, before.copies);
  EXPECT_EQ(device.device_stream()->counters().synchronizations, before.synchronizations + 1);
}

}  // namespace
}  // namespace sparsesync::cuda

#endif
