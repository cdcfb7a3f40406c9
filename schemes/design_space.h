// The design space that schemes are rows of (Zen, OSDI 2025, section 3): four dimensions, and the
// format on the wire.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sparsesync/bucket.h"

namespace sparsesync {

enum class Aggregation : std::uint8_t { incremental, one_shot };
enum class Partition : std::uint8_t { centralization, parallelism };
enum class Balance : std::uint8_t { balanced, imbalanced, none };
enum class Format : std::uint8_t {
  dense,
  coo,
  coo_then_dense,
  blocks,
  coo_push_bitmap_pull,
  cheapest_code,
  values_alone,
  dense_then_sparse
};

inline constexpr std::array kCommunications{Communication::ring, Communication::hierarchy,
                                            Communication::point_to_point};

/// A scheme's row.
struct DesignSpace {
  Communication communication;
  Aggregation aggregation;
  Partition partition;
  Balance balance;
  Format format;
};

/// @{

/// Returns the name in options, JSON and tables.
std::string_view name_of(Communication communication);
std::string_view name_of(Aggregation aggregation);
std::string_view name_of(Partition partition);
std::string_view name_of(Balance balance);
std::string_view name_of(Format format);
/// @}

/// @throws InputError if there is none of that name; the text lists those that exist
Communication communication_named(std::string_view name);

}  // namespace sparsesync
