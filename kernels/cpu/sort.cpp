// CPU body of sort_pairs: least significant digit first.
#include "kernels/sort.h"

#include <algorithm>
#include <array>

#include "kernels/bits.h"

namespace sparsesync::cpu {
namespace {

constexpr unsigned kDigitBits = 8;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;

std::size_t digit_of(Index key, unsigned shift) {
  return (static_cast<std::size_t>(key) >> shift) & (kDigits - 1);
}

}  // namespace

void sort_pairs(const Context&, std::span<Index> keys, std::span<Index> payloads, Index bound,
                SortWorkspace& workspace) {
  SPARSESYNC_EXPECT(keys.size(), ==, payloads.size());
  std::span<Index> from_keys = keys;
  std::span<Index> from_payloads = payloads;
  std::span<Index> to_keys = workspace.keys.reserve(static_cast<Index>(keys.size()));
  std::span<Index> to_payloads = workspace.payloads.reserve(static_cast<Index>(keys.size()));
  const auto bits = static_cast<unsigned>(bit_width_below(static_cast<std::uint64_t>(bound)));
  for (unsigned shift = 0; shift < bits; shift += kDigitBits) {
    std::array<std::size_t, kDigits> next{};
    for (const Index key : from_keys) ++next[digit_of(key, shift)];
    std::size_t begin = 0;
    for (std::size_t& slot : next) begin += std::exchange(slot, begin);
    for (std::size_t i = 0; i < from_keys.size(); ++i) {
      const std::size_t to = next[digit_of(from_keys[i], shift)]++;
      to_keys[to] = from_keys[i];
      to_payloads[to] = from_payloads[i];
    }
    std::swap(from_keys, to_keys);
    std::swap(from_payloads, to_payloads);
  }
  if (from_keys.data() != keys.data()) {
    std::copy(from_keys.begin(), from_keys.end(), keys.begin());
    std::copy(from_payloads.begin(), from_payloads.end(), payloads.begin());
  }
}

}  // namespace sparsesync::cpu
