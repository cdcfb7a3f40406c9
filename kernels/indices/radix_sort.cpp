#include "kernels/indices/radix_sort.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/bits.h"
#include "kernels/base/threads.h"

namespace sparsesync::cpu {
namespace {

/// Words per part, at least. They keep a thread busy for much longer than waking it takes. The
/// limit also bounds the counters: at most 2^11 per 2^15 words.
constexpr Index kGrain = Index{1} << 15;
constexpr int kMostDigitBits = 11;
/// Words that fit into the first- or second-level cache, together with the same number of output
/// words.
constexpr std::size_t kBucket = std::size_t{1} << 11U;

std::size_t digit_of(std::uint64_t word, int bit, std::uint64_t mask) {
  return word >> static_cast<unsigned>(bit) & mask;
}

/// Sorts a bucket by digits, lowest digit first. `other` has the size of `words`. The result is one
/// of the two.
std::span<std::uint64_t> sort_bucket(std::span<std::uint64_t> words, std::span<std::uint64_t> other,
                                     int first_bit, int last_bit) {
  if (words.size() < 2 || first_bit >= last_bit) return words;
  // Few words do not justify many counters.
  const int most_bits = words.size() < kBucket / 2 ? 8 : kMostDigitBits;
  const int digit_bits = ceil_div(last_bit - first_bit, ceil_div(last_bit - first_bit, most_bits));
  // The part in use is initialized below.
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init)
  std::array<std::size_t, std::size_t{1} << static_cast<unsigned>(kMostDigitBits)> places;
  for (int bit = first_bit; bit < last_bit; bit += digit_bits) {
    const int bits = std::min(digit_bits, last_bit - bit);
    const std::uint64_t mask = low_mask(bits);
    const std::span<std::size_t> next = std::span(places).first(mask + 1);
    std::fill(next.begin(), next.end(), std::size_t{0});
    for (const std::uint64_t word : words) ++next[digit_of(word, bit, mask)];
    std::size_t begin = 0;
    for (std::size_t& place : next) begin += std::exchange(place, begin);
    for (const std::uint64_t word : words) other[next[digit_of(word, bit, mask)]++] = word;
    std::swap(words, other);
  }
  return words;
}

/// Turns counts[part][digit] into the output position of each part's first word of each digit.
/// @return whether all words have the same digit
bool turn_into_places(std::span<std::uint64_t> counts, std::size_t digits, std::uint64_t words) {
  std::uint64_t begin = 0;
  for (std::size_t digit = 0; digit < digits; ++digit) {
    const std::uint64_t before = begin;
    for (std::size_t at = digit; at < counts.size(); at += digits) {
      begin += std::exchange(counts[at], begin);
    }
    if (begin - before == words) return true;
  }
  return false;
}

/// Returns the bits of the uppermost digit, chosen so that an average bucket is small.
int upper_digit_bits(std::size_t words, int bits) {
  return std::min({bit_width_below(ceil_div(words, kBucket)), kMostDigitBits, bits});
}

}  // namespace

std::span<std::uint64_t> radix_sort(const Context& context, std::span<std::uint64_t> words,
                                    std::span<std::uint64_t> other, int first_bit, int last_bit,
                                    Buffer<std::uint64_t>& counts) {
  SPARSESYNC_EXPECT(words.size(), ==, other.size());
  if (words.size() <= kBucket) return sort_bucket(words, other, first_bit, last_bit);
  const auto size = std::ssize(words);
  const int parts = part_count(context, size, kGrain);
  while (first_bit < last_bit) {
    const int digit_bits = upper_digit_bits(words.size(), last_bit - first_bit);
    last_bit -= digit_bits;
    const std::uint64_t mask = low_mask(digit_bits);
    const std::size_t digits = mask + 1;
    const std::span<std::uint64_t> all = counts.reserve(static_cast<Index>(digits) * parts);
    const auto counts_of = [&](int part) {
      return all.subspan(static_cast<std::size_t>(part) * digits, digits);
    };
    for_each_part(context, size, parts, [&](int part, IndexRange range) {
      const std::span<std::uint64_t> count = counts_of(part);
      std::fill(count.begin(), count.end(), std::uint64_t{0});
      for (const std::uint64_t word : part_of(words, range))
        ++count[digit_of(word, last_bit, mask)];
    });
    if (turn_into_places(all, digits, words.size())) continue;
    for_each_part(context, size, parts, [&](int part, IndexRange range) {
      const std::span<std::uint64_t> next = counts_of(part);
      for (const std::uint64_t word : part_of(words, range)) {
        other[next[digit_of(word, last_bit, mask)]++] = word;
      }
    });
    // The bucket of a digit ends where the last part has written its last word.
    const std::span<const std::uint64_t> ends = counts_of(parts - 1);
    for_each_part(context, size, parts, [&](int, IndexRange range) {
      // Sort the buckets that begin in this range.
      std::uint64_t begin = 0;
      for (const std::uint64_t end : ends) {
        if (begin >= static_cast<std::uint64_t>(range.begin) &&
            begin < static_cast<std::uint64_t>(range.end)) {
          const std::span<std::uint64_t> to = words.subspan(begin, end - begin);
          const std::span<std::uint64_t> sorted =
              sort_bucket(other.subspan(begin, end - begin), to, first_bit, last_bit);
          if (sorted.data() != to.data()) std::copy(sorted.begin(), sorted.end(), to.begin());
        }
        begin = end;
      }
    });
    break;
  }
  return words;
}

void sort_packed(const Context& context, std::span<Index> packed, std::span<Index> order,
                 int key_bits, SortWorkspace& workspace) {
  const auto size = std::ssize(packed);
  const int low_bits = place_bits(packed.size());
  const std::uint64_t* sorted = radix_sort(context, words_of(packed), workspace.words.reserve(size),
                                           low_bits, low_bits + key_bits, workspace.counts)
                                    .data();
  const std::uint64_t mask = low_mask(low_bits);
  parallel_for(context, size, kGrain, [&](IndexRange range) {
    for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end);
         ++i) {
      const std::uint64_t word = sorted[i];  // may alias packed[i]
      packed[i] = static_cast<Index>(word >> static_cast<unsigned>(low_bits));
      order[i] = static_cast<Index>(word & mask);
    }
  });
}

}  // namespace sparsesync::cpu
