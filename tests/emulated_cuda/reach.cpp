#include "tests/emulated_cuda/reach.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace sparsesync::emulated_cuda {

bool shares_heap() {
  static const bool shares = [] {
    const char* const device = std::getenv("SPARSESYNC_TEST_DEVICE");
    return device != nullptr && std::string_view(device) == "cuda";
  }();
  return shares;
}

#if defined(__SANITIZE_ADDRESS__)

namespace {

/// Returns the kind of memory at an address: "stack", "stack-fake", "global", "heap", or another
/// kind.
std::string_view kind_of(void* address) {
  char name[1];
  void* begin = nullptr;
  std::size_t bytes = 0;
  return __asan_locate_address(address, name, sizeof(name), &begin, &bytes);
}

bool is_out_of_reach(std::string_view kind) {
  return kind.starts_with("stack") || kind == "global" || (kind == "heap" && !shares_heap());
}

}  // namespace

void check_reach(const void* parameters, const unsigned char* members, std::size_t bytes,
                 bool (*is_of_cuda)(const void*)) {
  constexpr std::uintptr_t kLeast = std::uintptr_t{1} << 16U;
  constexpr std::uintptr_t kMost = std::uintptr_t{1} << 47U;
  for (std::size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
    std::uintptr_t marks = 0;
    std::memcpy(&marks, members + at, sizeof(marks));
    if (marks != std::numeric_limits<std::uintptr_t>::max()) continue;
    std::uintptr_t word = 0;
    std::memcpy(&word, static_cast<const char*>(parameters) + at, sizeof(word));
    if (word < kLeast || word >= kMost) continue;
    auto* const address = reinterpret_cast<void*>(word);
    if (is_of_cuda(address)) continue;
    const std::string_view kind = kind_of(address);
    if (!is_out_of_reach(kind)) continue;
    std::fprintf(
        stderr, "emulated CUDA: a kernel is given an address that a GPU does not reach: %.*s, %p\n",
        static_cast<int>(kind.size()), kind.data(), address);
    __sanitizer_print_stack_trace();
    std::abort();
  }
}

void close_memory(const void* memory, std::size_t bytes) {
  ASAN_POISON_MEMORY_REGION(memory, bytes);
}
void open_memory(const void* memory, std::size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
}

#else

void check_reach(const void*, const unsigned char*, std::size_t, bool (*)(const void*)) {}
void close_memory(const void*, std::size_t) {}
void open_memory(const void*, std::size_t) {}

#endif

}  // namespace sparsesync::emulated_cuda
