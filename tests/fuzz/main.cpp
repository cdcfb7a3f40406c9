// The libFuzzer program. It runs the target named by SPARSESYNC_FUZZ_TARGET, and first writes its
// seeds into the folder SPARSESYNC_FUZZ_SEEDS. scripts/stress fuzz runs it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fuzz/targets.h"

namespace {

const sparsesync::fuzz::Target* target = nullptr;

std::string setting(const char* name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread exists yet
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

void write_seeds(const std::filesystem::path& folder) {
  int number = 0;
  for (const sparsesync::fuzz::Bytes& seed : target->seeds()) {
    std::ofstream file(folder / ("seed-" + std::to_string(number++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()), std::ssize(seed));
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  try {
    target = &sparsesync::fuzz::target_named(setting("SPARSESYNC_FUZZ_TARGET"));
    const std::string seeds = setting("SPARSESYNC_FUZZ_SEEDS");
    if (!seeds.empty()) write_seeds(seeds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  target->run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
