// CPU implementations of the top-k selection.
#include "kernels/topk/topk.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "kernels/rows/row.h"
#include "kernels/topk/residual.h"
#include "kernels/topk/simd_f32.h"

namespace sparsesync::cpu {
namespace {

constexpr Index kBytes = static_cast<Index>(sizeof(float));

/// Calls found(i) for the elements in `range` whose magnitude is at least `least`, in order.
/// @param least  at least 1
template <typename Found>
void for_each_large(std::span<const float> values, IndexRange range, std::uint32_t least,
                    Found&& found) {
  constexpr Index kTile = Index{1} << 12;  // stays cached until the found elements are read
  std::array<std::uint32_t, kTile + kPlacesBehind> places;  // NOLINT(*-member-init): written first
  for (Index begin = range.begin; begin < range.end; begin += kTile) {
    const Index end = std::min(begin + kTile, range.end);
    const Index count = find_large(part_of(values, {begin, end}), least, places);
    for (Index i = 0; i < count; ++i) found(begin + places[static_cast<std::size_t>(i)]);
  }
}

/// Bounds of the k-th largest magnitude, estimated from a sample.
struct Bracket {
  std::uint32_t low = 1;
  std::uint32_t high = 0x7FFFFFFF;
};

Bracket bracket_of(std::span<const float> values, Index k) {
  const auto size = std::ssize(values);
  Bracket bracket;
  if (!detail::is_sampled(size)) return bracket;
  std::array<std::uint32_t, detail::kCutSample> sample{};
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const Index place = detail::sampled_place(static_cast<Index>(i), size);
    sample[i] = magnitude_of(values[static_cast<std::size_t>(place)]);
  }
  std::ranges::sort(sample, std::greater{});
  const auto [high, low] = detail::sample_ranks(k, size);
  if (high >= 0) bracket.high = sample[static_cast<std::size_t>(high)];
  if (low < std::ssize(sample)) {
    bracket.low = std::max(sample[static_cast<std::size_t>(low)], std::uint32_t{1});
  }
  return bracket;
}

/// Finds the threshold that selects k elements, digit by digit, with a histogram of each digit.
/// @param within     bounds of the k-th largest magnitude
/// @param magnitude  returns the i-th of `size` magnitudes; size >= k
template <typename Magnitude>
MagnitudeCut cut_by_digits(const Context& context, Index size, Index k, const Bracket& within,
                           Magnitude&& magnitude) {
  constexpr unsigned kDigit = 11;
  constexpr int kParts = 16;
  using Histogram = std::array<Index, std::size_t{1} << kDigit>;
  // Skip the digits that are equal in both bounds.
  unsigned shift = 2 * kDigit;
  while (shift > 0 && within.low >> shift == within.high >> shift) shift -= kDigit;
  std::uint32_t level =
      within.low & ~static_cast<std::uint32_t>(low_mask(static_cast<int>(shift + kDigit)));
  Index left = k;
  const int parts = std::min(row_parts(context, size, kBytes), kParts);
  std::array<Histogram, kParts> of_parts;  // NOLINT(*-member-init): each part fills its own
  for (;; shift -= kDigit) {
    for_each_part(context, size, parts, [&](int part, IndexRange range) {
      Histogram& own = of_parts[static_cast<std::size_t>(part)];
      own.fill(0);
      const std::uint64_t known = std::uint64_t{level} >> (shift + kDigit);
      for (Index i = range.begin; i < range.end; ++i) {
        const std::uint64_t each = magnitude(i);
        if (each >> (shift + kDigit) == known) ++own[each >> shift & (own.size() - 1)];
      }
    });
    Histogram& all = of_parts.front();
    for (std::size_t part = 1; part < static_cast<std::size_t>(parts); ++part) {
      for (std::size_t digit = 0; digit < all.size(); ++digit) all[digit] += of_parts[part][digit];
    }
    std::size_t digit = all.size() - 1;
    for (; digit > 0 && all[digit] < left; --digit) left -= all[digit];
    level |= static_cast<std::uint32_t>(digit) << shift;
    if (shift == 0) break;
  }
  // Zeros are never selected: level 0 selects all nonzero elements.
  return level == 0 ? MagnitudeCut{} : MagnitudeCut{level, left};
}

}  // namespace

void find_cut(const Context& context, std::span<const float> values, Index k, MagnitudeCut* cut,
              CutWorkspace& workspace) {
  const auto size = std::ssize(values);
  SPARSESYNC_EXPECT(k, >=, Index{0});
  if (k == 0) {
    *cut = {0x7FFFFFFF, 0};
    return;
  }
  if (k >= size) {
    *cut = {};
    return;
  }
  const Bracket bracket = bracket_of(values, k);
  const std::span<std::uint32_t> near = workspace.near.reserve(detail::room_near(k, size));
  const int parts = row_parts(context, size, kBytes);
  const EvenRanges shares(std::ssize(near), parts);
  PartCounts above{};
  PartCounts inside{};
  for_each_part(context, size, parts, [&](int part, IndexRange range) {
    const std::span<std::uint32_t> own = part_of(near, shares.range(part));
    Index larger = 0;
    Index count = 0;
    for_each_large(values, range, bracket.low, [&](Index i) {
      const std::uint32_t magnitude = magnitude_of(values[static_cast<std::size_t>(i)]);
      // No branch, because the outcome is unpredictable.
      const Index is_larger = magnitude > bracket.high ? 1 : 0;
      if (count < std::ssize(own)) own[static_cast<std::size_t>(count)] = magnitude;
      larger += is_larger;
      count += 1 - is_larger;
    });
    above[static_cast<std::size_t>(part)] = larger;
    inside[static_cast<std::size_t>(part)] = count;
  });
  Index all_above = 0;
  Index all_inside = 0;
  bool fits = true;
  for (int part = 0; part < parts; ++part) {
    const auto at = static_cast<std::size_t>(part);
    fits = fits && inside[at] <= shares.range(part).size();
    if (!fits) break;
    std::copy_n(near.begin() + shares.range(part).begin, inside[at], near.begin() + all_inside);
    all_above += above[at];
    all_inside += inside[at];
  }
  const Index rank = k - all_above;
  if (fits && 0 < rank && rank <= all_inside) {
    *cut = cut_by_digits(context, all_inside, rank, bracket,
                         [&](Index i) { return near[static_cast<std::size_t>(i)]; });
  } else {
    const Bracket anywhere{.low = 0};
    *cut = cut_by_digits(context, size, k, anywhere, [&](Index i) {
      return magnitude_of(values[static_cast<std::size_t>(i)]);
    });
  }
}

namespace {

/// Number of elements above the level of a threshold, and on it.
struct Around {
  Index above = 0;
  Index on = 0;
};

Around count_around(std::span<const float> values, IndexRange range, std::uint32_t level) {
  Around found;
  for_each_large(values, range, std::max(level, 1U), [&](Index i) {
    const bool is_above = magnitude_of(values[static_cast<std::size_t>(i)]) > level;
    ++(is_above ? found.above : found.on);
  });
  return found;
}

/// Counts for each part of the elements.
std::array<Around, kMostParts> count_parts(const Context& context, std::span<const float> values,
                                           int parts, std::uint32_t level) {
  std::array<Around, kMostParts> found{};
  for_each_part(context, std::ssize(values), parts, [&](int part, IndexRange range) {
    found[static_cast<std::size_t>(part)] = count_around(values, range, level);
  });
  return found;
}

}  // namespace

void count_taken(const Context& context, std::span<const float> values, const MagnitudeCut* cut,
                 Count count) {
  const int parts = row_parts(context, std::ssize(values), kBytes);
  Around all;
  for (const Around& found : count_parts(context, values, parts, cut->level)) {
    all.above += found.above;
    all.on += found.on;
  }
  *count.location() = all.above + std::min(all.on, cut->ties);
}

void take_largest(const Context& context, std::span<float> residual, std::span<float> velocity,
                  const MagnitudeCut* cut, const Taken& taken, Count count, Count not_finite) {
  detail::expect_places(residual, velocity, taken);
  const auto room = std::ssize(taken.indices);
  const int parts = row_parts(context, std::ssize(residual), kBytes);
  // Output offset of each part, and the number of elements on the level in earlier parts.
  std::array<Around, kMostParts> before{};
  if (parts > 1) {
    before = count_parts(context, residual, parts, cut->level);
    Around sum;
    for (Around& each : before) {
      const Around own = std::exchange(each, sum);
      sum.above += own.above;
      sum.on += own.on;
    }
  }
  for_owed_dtype(taken.values.dtype, [&]<typename T>(T) {
    PartCounts lost{};
    for_each_part(context, std::ssize(residual), parts, [&](int part, IndexRange range) {
      Around at = before[static_cast<std::size_t>(part)];
      Index lost_here = 0;
      for_each_large(residual, range, std::max(cut->level, 1U), [&](Index i) {
        const auto from = static_cast<std::size_t>(i);
        detail::OwedElement element{residual[from], 0};
        const bool is_tie = magnitude_of(element.residual) == cut->level;
        if (is_tie && at.on >= cut->ties) return;
        const Index place = at.above + std::min(at.on, cut->ties);
        ++(is_tie ? at.on : at.above);
        if (place >= room) return;
        const auto to = static_cast<std::size_t>(place);
        T value{};
        lost_here += element.extract(&value) ? 0 : 1;
        residual[from] = element.residual;
        taken.indices[to] = i;
        store(taken.values.data, place, value);
        if (!taken.velocities.empty()) taken.velocities[to] = std::exchange(velocity[from], 0.0F);
      });
      lost[static_cast<std::size_t>(part)] = lost_here;
      if (part == parts - 1) *count.location() = at.above + std::min(at.on, cut->ties);
    });
    for (const Index of_part : lost) *not_finite.location() += of_part;
  });
}

}  // namespace sparsesync::cpu
