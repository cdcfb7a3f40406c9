#include "tests/fuzz/targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "kernels/base/error.h"

namespace sparsesync::fuzz {
namespace {

constexpr std::array<Target, 8> kTargets{{
    {"index_codes", read_index_codes, index_codes},
    {"messages", read_message, messages},
    {"safetensors", read_safetensors_file, safetensors_files},
    {"npy", read_npy_file, npy_files},
    {"traces", read_trace_header, trace_headers},
    {"networks", read_network_file, network_files},
    {"models", read_model_file, model_files},
    {"sessions", take_steps_with_a_liar, lies},
}};

}  // namespace

std::span<const Target> targets() {
  return kTargets;
}

const Target& target_named(std::string_view name) {
  const auto* const found = std::find_if(kTargets.begin(), kTargets.end(),
                                         [&](const Target& target) { return target.name == name; });
  if (found != kTargets.end()) return *found;
  std::string all;
  for (const Target& target : kTargets) all += fmt::format(" {}", target.name);
  throw InputError(fmt::format("there is no target '{}':{}", name, all));
}

}  // namespace sparsesync::fuzz
