// Parsing and formatting of rates, sizes, times and counts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sparsesync {

/// Parses a rate in the syntax of `tc`. The result is in bits per second.
/// The units bit, kbit, mbit, gbit and tbit are powers of 1000; kibit, mibit, ... are powers of
/// 1024. The units bps, kbps, mbps, ... are *bytes* per second. A plain number is bits per second.
/// Case does not matter.
/// @param option  option that the text belongs to, such as "--rate"; the error message begins with
///                it, here and in the functions below
/// @throws InputError if the text is not a rate of 1 bit/s or more
double parse_rate(std::string_view option, std::string_view text);

/// Parses a size in the syntax of GNU tools. The result is in bytes.
/// The units K, M, G, T and KiB, MiB, ... are powers of 1024; KB, MB, ... are powers of 1000. A
/// plain number is bytes, and so is B. Case does not matter.
/// @throws InputError if the text is not a size, or the size exceeds 2^63 - 1
std::int64_t parse_bytes(std::string_view option, std::string_view text);

/// Parses a time in ns, us, ms or s. The result is in seconds.
/// A plain number is seconds, unlike in `tc`, where it is microseconds.
/// @throws InputError if the text is not a time from 0 to 1,000,000 s
double parse_seconds(std::string_view option, std::string_view text);

/// Parses a whole number in decimal digits, in [minimum, maximum].
/// @throws InputError if the text is anything else
std::int64_t parse_count(std::string_view option, std::string_view text, std::int64_t minimum,
                         std::int64_t maximum);

/// Parses a finite number in [minimum, maximum].
/// @throws InputError if the text is anything else
double parse_number(std::string_view option, std::string_view text, double minimum, double maximum);

/// Formats bytes with three digits and powers of 1000: "999 B", "1.23 MB", "12.3 GB".
std::string format_bytes(double bytes);

/// Formats seconds with three digits: "0 s", "12.3 ms", "1.50 us", "61.0 s".
std::string format_seconds(double seconds);

/// Formats a rate with three digits: "200 Mbit/s", "1.50 Gbit/s".
std::string format_rate(double bits_per_second);

/// Formats a count with commas between thousands: "1,234,567".
std::string format_count(std::int64_t count);

}  // namespace sparsesync
