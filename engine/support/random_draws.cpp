#include "engine/support/random_draws.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "kernels/base/bits.h"
#include "kernels/base/error.h"

namespace sparsesync {
namespace {

/// Returns the sum of (k / first)^-s over k in [first, last], by the Euler-Maclaurin formula. It is
/// exact to rounding if `first` is several times larger than s. The factor first^s prevents
/// underflow.
double scaled_power_sum(double first, double last, double s) {
  const double ratio = std::log(last / first);
  const double power = 1 - s;
  const double integral =
      first * (std::abs(power * ratio) < 1e-12 ? ratio : std::expm1(power * ratio) / power);
  const double end = std::exp(-s * ratio);  // the last term
  const double end_slope = end / last;
  const double third = s * (s + 1) * (s + 2);
  const double fifth = third * (s + 3) * (s + 4);
  const double seventh = fifth * (s + 5) * (s + 6);
  return integral + (1 + end) / 2 + s / 12 * (1 / first - end_slope) -
         third / 720 * (std::pow(first, -3) - end_slope / (last * last)) +
         fifth / 30240 * (std::pow(first, -5) - end_slope / std::pow(last, 4)) -
         seventh / 1209600 * (std::pow(first, -7) - end_slope / std::pow(last, 6));
}

/// Draws k in [first, last] with weight k^-s, by rejection-inversion. A point is drawn uniformly
/// under the curve x^-s, from first - 1/2 to last + 1/2. The bar of each k fits under the curve,
/// because the curve is convex.
class PowerSampler {
 public:
  PowerSampler(double first, double last, double s)
      : first_(first),
        last_(last),
        power_(1 - s),
        s_(s),
        low_(area(first - 0.5)),
        high_(area(last + 0.5)) {}

  double draw(CounterRandom& random) const {
    while (true) {
      const double u = low_ + random.uniform() * (high_ - low_);
      const double k = std::clamp(std::round(position(u)), first_, last_);
      if (u >= area(k + 0.5) - std::exp(-s_ * std::log(k / first_))) return k;
    }
  }

 private:
  /// Returns the integral of (t / first)^-s over t from first to x.
  double area(double x) const {
    const double ratio = std::log(x / first_);
    return first_ * (is_logarithm() ? ratio : std::expm1(power_ * ratio) / power_);
  }
  double position(double u) const {
    const double scaled = u / first_;
    // Rounding may move power·scaled to -1 or below. At -1 the integral extends to infinity.
    return first_ * std::exp(is_logarithm()
                                 ? scaled
                                 : std::log1p(std::max(power_ * scaled, -1 + 1e-16)) / power_);
  }
  bool is_logarithm() const { return std::abs(power_) < 1e-12; }

  double first_;
  double last_;
  double power_;
  double s_;
  double low_;  // area() uses the members above
  double high_;
};

}  // namespace

std::uint64_t CounterRandom::next() {
  return mix64(key_ + mix64(counter_++));
}

double CounterRandom::uniform() {
  // Uses 52 bits plus one half. With 53 bits, the largest number would be rounded to 1.
  return (static_cast<double>(next() >> 12U) + 0.5) * 0x1p-52;
}

double CounterRandom::exponential() {
  return -std::log(uniform());
}

Index log_uniform_draw(CounterRandom& random, Index rows) {
  const double x = std::exp(random.uniform() * std::log1p(static_cast<double>(rows)));
  // Compares doubles, because x may be rounded to a number that an Index cannot hold.
  if (x >= static_cast<double>(rows)) return rows - 1;
  return std::max<Index>(static_cast<Index>(x) - 1, 0);
}

std::vector<Index> draw_distinct_zipf(CounterRandom& random, Index rows, Index count, double s,
                                      Index head) {
  SPARSESYNC_EXPECT(rows, >=, Index{1});
  SPARSESYNC_EXPECT(count, >=, Index{0});
  SPARSESYNC_EXPECT(count, <=, rows);
  SPARSESYNC_EXPECT(count, <=, kMaxDrawnRows);
  SPARSESYNC_EXPECT((s >= 0 && s <= kMaxZipf), ==, true);
  std::vector<Index> drawn;
  if (count == 0) return drawn;
  if (count == rows) {
    drawn.resize(static_cast<std::size_t>(rows));
    std::iota(drawn.begin(), drawn.end(), Index{0});
    return drawn;
  }
  // A head of at least 4·s rows makes scaled_power_sum() exact for the tail.
  if (head == 0) head = std::max<Index>({2 * count, 1024, static_cast<Index>(std::ceil(4 * s))});
  head = std::min(head, rows);

  // Compares logarithms of times: with a large s, times exceed the range of a double.
  struct Arrival {
    double log_time;
    Index row;
    bool operator<(const Arrival& other) const {
      return std::pair(log_time, row) < std::pair(other.log_time, other.row);
    }
  };
  std::vector<Arrival> arrivals;
  arrivals.reserve(static_cast<std::size_t>(head));
  for (Index row = 0; row < head; ++row) {
    const double log_weight = -s * std::log(static_cast<double>(row + 1));
    arrivals.push_back({std::log(random.exponential()) - log_weight, row});
  }
  const auto wanted = static_cast<std::size_t>(count);
  if (arrivals.size() > wanted) {  // at most `count` rows of the head can be drawn
    std::nth_element(arrivals.begin(), arrivals.begin() + count, arrivals.end());
    arrivals.resize(wanted);
  }
  drawn.reserve(wanted);
  if (head == rows) {
    for (const Arrival& arrival : arrivals) drawn.push_back(arrival.row);
    std::sort(drawn.begin(), drawn.end());
    return drawn;
  }

  std::sort(arrivals.begin(), arrivals.end());
  const auto first = static_cast<double>(head + 1);  // the tail's first row + 1
  const auto last = static_cast<double>(rows);
  const PowerSampler sampler(first, last, s);
  const double log_rate = std::log(scaled_power_sum(first, last, s)) - s * std::log(first);
  std::unordered_set<Index> seen;
  double events = random.exponential();  // the time of the tail's next event, times its rate
  auto next = arrivals.begin();
  while (drawn.size() < wanted) {
    if (next != arrivals.end() && next->log_time < std::log(events) - log_rate) {
      drawn.push_back(next->row);
      ++next;
      continue;
    }
    const auto row = static_cast<Index>(sampler.draw(random)) - 1;
    if (seen.insert(row).second) drawn.push_back(row);
    events += random.exponential();
  }
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

}  // namespace sparsesync
