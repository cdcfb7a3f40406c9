// Parsing and formatting of rates, sizes, times and counts.
#include "analysis/cli/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

struct Unit {
  std::string_view name;
  double factor;
  double divisor = 1;  // makes 50us the double nearest to 5e-05: 1e-6 is not exact in binary
};

constexpr double kKi = 1024;
constexpr std::array<Unit, 19> kRates{{{"", 1},
                                       {"bit", 1},
                                       {"kbit", 1e3},
                                       {"mbit", 1e6},
                                       {"gbit", 1e9},
                                       {"tbit", 1e12},
                                       {"kibit", kKi},
                                       {"mibit", kKi* kKi},
                                       {"gibit", kKi* kKi* kKi},
                                       {"tibit", kKi* kKi* kKi* kKi},
                                       {"bps", 8},
                                       {"kbps", 8e3},
                                       {"mbps", 8e6},
                                       {"gbps", 8e9},
                                       {"tbps", 8e12},
                                       {"kibps", 8 * kKi},
                                       {"mibps", 8 * kKi* kKi},
                                       {"gibps", 8 * kKi* kKi* kKi},
                                       {"tibps", 8 * kKi* kKi* kKi* kKi}}};
constexpr std::array<Unit, 14> kSizes{{{"", 1},
                                       {"b", 1},
                                       {"k", kKi},
                                       {"m", kKi* kKi},
                                       {"g", kKi* kKi* kKi},
                                       {"t", kKi* kKi* kKi* kKi},
                                       {"kib", kKi},
                                       {"mib", kKi* kKi},
                                       {"gib", kKi* kKi* kKi},
                                       {"tib", kKi* kKi* kKi* kKi},
                                       {"kb", 1e3},
                                       {"mb", 1e6},
                                       {"gb", 1e9},
                                       {"tb", 1e12}}};
constexpr std::array<Unit, 5> kTimes{
    {{"", 1}, {"s", 1}, {"ms", 1, 1e3}, {"us", 1, 1e6}, {"ns", 1, 1e9}}};

/// Returns the number at the beginning of `text`, and the rest of the text. Rejects signs, "inf"
/// and "nan".
std::optional<std::pair<double, std::string_view>> leading_number(std::string_view text) {
  if (text.empty() || !((text[0] >= '0' && text[0] <= '9') || text[0] == '.')) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value)) return std::nullopt;
  return std::pair(value, text.substr(static_cast<std::size_t>(end - text.data())));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::optional<double> measure(std::string_view text, std::span<const Unit> units) {
  const auto number = leading_number(text);
  if (!number) return std::nullopt;
  const std::string name = lower(number->second);
  const auto unit =
      std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == name; });
  if (unit == units.end()) return std::nullopt;
  const double value = number->first * unit->factor / unit->divisor;
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

[[noreturn]] void refuse(std::string_view option, std::string_view text, std::string_view wanted) {
  throw InputError(fmt::format("{} {}: {}", option, shortened(text.empty() ? "''" : text), wanted));
}

/// Formats a value with three digits and the largest unit in which it is at least 1.
std::string three_digits(double value, std::span<const Unit> units) {
  if (!std::isfinite(value)) return fmt::format("{} {}", value, units.back().name);
  // 999.5 would round to 1000 in its unit: it is shown as 1.00 in the next larger unit.
  auto unit = units.begin();
  while (unit + 1 != units.end() && std::abs(value) < unit->factor * 0.9995) ++unit;
  const double scaled = value / unit->factor;
  const int decimals = std::abs(scaled) < 9.995 ? 2 : std::abs(scaled) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", scaled, decimals, unit->name);
}

}  // namespace

double parse_rate(std::string_view option, std::string_view text) {
  const auto value = measure(text, kRates);
  if (!value || *value < 1) {
    refuse(option, text,
           "not a rate of 1 bit/s or more; write 200mbit, 25gbit, 1.5gbit (bits per second), or "
           "100mbps (bytes per second)");
  }
  return *value;
}

std::int64_t parse_bytes(std::string_view option, std::string_view text) {
  const auto value = measure(text, kSizes);
  if (!value || *value >= 0x1p63) {
    refuse(option, text, "not a size; write 64MiB, 2GiB, 10MB, 4k, or a number of bytes");
  }
  return static_cast<std::int64_t>(*value);
}

double parse_seconds(std::string_view option, std::string_view text) {
  const auto value = measure(text, kTimes);
  constexpr double kLongest = 1e6;  // seconds: eleven days, longer than any sensible timeout
  if (!value || *value > kLongest) {
    refuse(option, text,
           "not a time up to 1000000 s; write 50us, 1ms, 2s, 20ns, or a number of seconds");
  }
  return *value;
}

std::int64_t parse_count(std::string_view option, std::string_view text, std::int64_t minimum,
                         std::int64_t maximum) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < minimum ||
      value > maximum) {
    refuse(option, text,
           maximum == std::numeric_limits<std::int64_t>::max()
               ? fmt::format("give a whole number of {} or more", minimum)
               : fmt::format("give a whole number from {} to {}", minimum, maximum));
  }
  return value;
}

double parse_number(std::string_view option, std::string_view text, double minimum,
                    double maximum) {
  const auto number = leading_number(text);
  if (!number || !number->second.empty() || number->first < minimum || number->first > maximum) {
    refuse(option, text, fmt::format("give a number from {} to {}", minimum, maximum));
  }
  return number->first;
}

std::string format_bytes(double bytes) {
  static constexpr std::array<Unit, 6> kUnits{
      {{"PB", 1e15}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}}};
  if (std::abs(bytes) < 999.5) return fmt::format("{:.0f} B", bytes);
  return three_digits(bytes, kUnits);
}

std::string format_seconds(double seconds) {
  static constexpr std::array<Unit, 4> kUnits{{{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}};
  if (seconds == 0) return "0 s";
  return three_digits(seconds, kUnits);
}

std::string format_rate(double bits_per_second) {
  static constexpr std::array<Unit, 5> kUnits{
      {{"Tbit/s", 1e12}, {"Gbit/s", 1e9}, {"Mbit/s", 1e6}, {"kbit/s", 1e3}, {"bit/s", 1}}};
  return three_digits(bits_per_second, kUnits);
}

std::string format_count(std::int64_t count) {
  std::string digits = fmt::format("{}", count);
  const std::ptrdiff_t first = count < 0 ? 1 : 0;
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(digits.begin() + at, ',');
  }
  return digits;
}

}  // namespace sparsesync
