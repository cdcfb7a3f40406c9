// Units in options and tables: accepted input, rejected input, and output. Expected texts are
// exactly as printed.
#include "analysis/cli/units.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "analysis/cli/command.h"
#include "kernels/base/error.h"

namespace sparsesync {
namespace {

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted invalid input";
  return {};
}

TEST(Units, ReadsRatesLikeTc) {
  const auto rate = [](const char* text) { return parse_rate("--rate", text); };
  EXPECT_EQ(rate("200mbit"), 200e6);
  EXPECT_EQ(rate("25gbit"), 25e9);
  EXPECT_EQ(rate("1.5Gbit"), 1.5e9);
  EXPECT_EQ(rate("1gbps"), 8e9);
  EXPECT_EQ(rate("100kbps"), 800e3);
  EXPECT_EQ(rate("10bps"), 80);
  EXPECT_EQ(rate("3kibit"), 3072);
  EXPECT_EQ(rate("2tbit"), 2e12);
  EXPECT_EQ(rate("1e9"), 1e9);
  EXPECT_EQ(rate("1e3bit"), 1e3);
  EXPECT_EQ(rate("64000"), 64000);
  EXPECT_EQ(rate("7bit"), 7);
}

TEST(Units, RejectsRatesInOneLineWithExamples) {
  for (const char* text :
       {"5parsecs", "", "mbit", "-1mbit", "+1mbit", "0", "0gbit", "nan", "inf", "infmbit", "1e999",
        "1e308gbit", "200 mbit", "200mbits", "0x10mbit", "1,5gbit", "200MiB"}) {
    const std::string said = refusal([&] { parse_rate("--rate", text); });
    EXPECT_EQ(said.find("--rate"), 0U) << said;
    EXPECT_NE(said.find("200mbit"), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
  EXPECT_NE(refusal([] { parse_rate("--rate", "5parsecs"); }).find("5parsecs"), std::string::npos);
  EXPECT_EQ(refusal([] { parse_rate("--rate", "a\nb"); }).find('\n'), std::string::npos);
}

TEST(Units, ReadsSizesLikeGnu) {
  const auto size = [](const char* text) { return parse_bytes("--memory", text); };
  EXPECT_EQ(size("64MiB"), 64 << 20);
  EXPECT_EQ(size("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(size("10MB"), 10'000'000);
  EXPECT_EQ(size("4k"), 4096);
  EXPECT_EQ(size("4K"), 4096);
  EXPECT_EQ(size("4kB"), 4000);
  EXPECT_EQ(size("1.5GiB"), std::int64_t{3} << 29);
  EXPECT_EQ(size("1T"), std::int64_t{1} << 40);
  EXPECT_EQ(size("12345"), 12345);
  EXPECT_EQ(size("0"), 0);
  for (const char* text :
       {"", "MiB", "-1", "1PiB7", "nan", "9e18TB", "9223372036854775808", "1 MB", "64mbit"}) {
    EXPECT_NE(refusal([&] { parse_bytes("--memory", text); }).find("64MiB"), std::string::npos)
        << text;
  }
}

TEST(Units, ReadsTimes) {
  const auto time = [](const char* text) { return parse_seconds("--latency", text); };
  EXPECT_DOUBLE_EQ(time("50us"), 50e-6);
  EXPECT_DOUBLE_EQ(time("1ms"), 1e-3);
  EXPECT_DOUBLE_EQ(time("2s"), 2);
  EXPECT_DOUBLE_EQ(time("20ns"), 20e-9);
  EXPECT_DOUBLE_EQ(time("0.25"), 0.25);
  EXPECT_EQ(time("0"), 0);
  for (const char* text : {"", "us", "-1us", "nan", "inf", "5m", "1 s", "1e400"}) {
    EXPECT_NE(refusal([&] { parse_seconds("--latency", text); }).find("50us"), std::string::npos)
        << text;
  }
}

TEST(Units, ReadsCountsInTheirRange) {
  EXPECT_EQ(parse_count("--workers", "16", 1, 65'536), 16);
  EXPECT_EQ(parse_count("--rows", "010", 1, 100), 10);
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(parse_count("--rows", "9223372036854775807", 1, kMax), kMax);
  for (const char* text : {"", "0", "-1", "65537", "1.5", "1e3", "0x10", " 1", "1 ", "8workers",
                           "99999999999999999999"}) {
    const std::string said = refusal([&] { parse_count("--workers", text, 1, 65'536); });
    EXPECT_NE(said.find("from 1 to 65536"), std::string::npos) << said;
  }
  EXPECT_NE(refusal([] { parse_count("--rows", "-1", 1, kMax); }).find("of 1 or more"),
            std::string::npos);
}

TEST(Units, ReadsNumbersInTheirRange) {
  EXPECT_EQ(parse_number("--density", "0.01", 0, 1), 0.01);
  EXPECT_EQ(parse_number("--density", "1e-7", 0, 1), 1e-7);
  for (const char* text : {"", "-0.1", "1.1", "nan", "inf", "0.1x"}) {
    EXPECT_NE(refusal([&] { parse_number("--density", text, 0, 1); }).find("from 0 to 1"),
              std::string::npos);
  }
}

TEST(Units, WritesReadableNumbers) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(1'234'567), "1.23 MB");
  EXPECT_EQ(format_bytes(999'999), "1.00 MB");
  EXPECT_EQ(format_bytes(12.3e9), "12.3 GB");
  EXPECT_EQ(format_bytes(99.96e9), "100 GB");
  EXPECT_EQ(format_bytes(5e18), "5000 PB");
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(format_seconds(1.5e-6), "1.50 us");
  EXPECT_EQ(format_seconds(61), "61.0 s");
  EXPECT_EQ(format_seconds(0.9999), "1.00 s");
  EXPECT_EQ(format_rate(200e6), "200 Mbit/s");
  EXPECT_EQ(format_rate(1.5e9), "1.50 Gbit/s");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1'234'567), "1,234,567");
  EXPECT_EQ(format_count(-123'456), "-123,456");
  EXPECT_EQ(format_count(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

struct Closed {
  void operator()(std::FILE* file) const { static_cast<void>(std::fclose(file)); }
};

TEST(Print, ShowsNoControlCharactersExceptLineEnds) {
  const std::unique_ptr<std::FILE, Closed> file(std::tmpfile());
  ASSERT_NE(file, nullptr);
  print(file.get(), "rows\n\x1b[31mred \x9b\u202e\n");
  std::rewind(file.get());
  std::array<char, 100> shown{};
  const std::size_t bytes = std::fread(shown.data(), 1, shown.size(), file.get());
  EXPECT_EQ(std::string(shown.data(), bytes), "rows\n\\x1b[31mred \\x9b\\u202e\n");
}

}  // namespace
}  // namespace sparsesync
