// Rates, sizes, times and counts: read from options, and written as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sparsesync {

/// Bits per second, as tc writes rates: bit, kbit, mbit, gbit, tbit (powers of 1000), kibit, ...
/// (of 1024); bps, kbps, mbps, ... are *bytes* per second; a plain number is bits per second. Case
/// does not matter.
/// @param option  what the text was given for, such as "--rate": it begins the message, here and
///                in the functions below
/// @throws InputError if it is not a rate of 1 bit/s or more
double parse_rate(std::string_view option, std::string_view text);

/// Bytes, as GNU tools write sizes: K, M, G, T and KiB, MiB, ... are powers of 1024; KB, MB, ... of
/// 1000; a plain number or B is bytes. Case does not matter.
/// @throws InputError if it is not a size, or more than 2^63 - 1
std::int64_t parse_bytes(std::string_view option, std::string_view text);

/// Seconds: ns, us, ms, s; a plain number is seconds (unlike tc's, which are microseconds).
/// @throws InputError if it is not a time of 0 to 1,000,000 s
double parse_seconds(std::string_view option, std::string_view text);

/// A whole number in decimal digits, in [minimum, maximum].
/// @throws InputError if it is none
std::int64_t parse_count(std::string_view option, std::string_view text, std::int64_t minimum,
                         std::int64_t maximum);

/// A finite number, in [minimum, maximum].
/// @throws InputError if it is none
double parse_number(std::string_view option, std::string_view text, double minimum, double maximum);

/// "999 B", "1.23 MB", "12.3 GB": three digits, powers of 1000.
std::string format_bytes(double bytes);

/// "0 s", "12.3 ms", "1.50 us", "61.0 s".
std::string format_seconds(double seconds);

/// "200 Mbit/s", "1.50 Gbit/s".
std::string format_rate(double bits_per_second);

/// "1,234,567".
std::string format_count(std::int64_t count);

}  // namespace sparsesync
