#include "kernels/indices/index_code.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace sparsesync {

std::string_view name_of(IndexCode code) {
  return for_index_code(code, [](auto type) -> std::string_view { return decltype(type)::name; });
}

namespace detail {

void expect_room(IndexCode code, IndexRange range, Index count, Index bytes) {
  SPARSESYNC_EXPECT(count, <=, range.size());
  SPARSESYNC_EXPECT(bytes, ==, encoded_bytes(code, range.size(), count));
  if (code == IndexCode::all) SPARSESYNC_EXPECT(count, ==, range.size());
}

void expect_bytes(IndexCode code, IndexRange range, Index count, Index bytes) {
  if (count > range.size() || bytes != encoded_bytes(code, range.size(), count)) {
    throw CorruptDataError(fmt::format("{} code: {} bytes do not match {} indices in a range of {}",
                                       name_of(code), bytes, count, range.size()));
  }
  if (code == IndexCode::all && count != range.size()) {
    throw CorruptDataError(
        fmt::format("all code: {} indices do not fill a range of {}", count, range.size()));
  }
}

}  // namespace detail
}  // namespace sparsesync
