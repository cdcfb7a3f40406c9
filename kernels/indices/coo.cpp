// CPU implementation of the COO index code.
#include "kernels/indices/index_code_cpu.h"
#include "sparsesync/errors.h"

#include <fmt/format.h>

#include <cstring>

namespace sparsesync::cpu {
namespace {

template <typename Stored>
void encode_numbers(IndexRange range, std::span<const Index> indices, std::span<std::byte> out) {
  std::byte* to = out.data();
  for (const Index index : indices) {
    const auto stored = static_cast<Stored>(index - range.begin);
    std::memcpy(to, &stored, sizeof(stored));
    to += sizeof(stored);
  }
}

template <typename Stored>
void decode_numbers(IndexRange range, std::span<const std::byte> bytes, std::span<Index> indices) {
  const std::byte* from = bytes.data();
  Index previous = range.begin - 1;
  for (Index& index : indices) {
    Stored stored = 0;
    std::memcpy(&stored, from, sizeof(stored));
    from += sizeof(stored);
    if (static_cast<std::uint64_t>(stored) >= static_cast<std::uint64_t>(range.size())) {
      throw CorruptDataError(fmt::format("COO code: index {} is outside its range of {} indices",
                                         stored, range.size()));
    }
    index = range.begin + static_cast<Index>(stored);
    if (index <= previous) throw CorruptDataError("COO code: indices do not increase");
    previous = index;
  }
}

}  // namespace

void encode_as(Coo, IndexRange range, std::span<const Index> indices, std::span<std::byte> out) {
  const bool is_narrow = coo_index_bytes(range.size()) == 4;
  const auto encode = is_narrow ? encode_numbers<std::uint32_t> : encode_numbers<std::uint64_t>;
  encode(range, indices, out);
}

void decode_as(Coo, IndexRange range, std::span<const std::byte> bytes, std::span<Index> indices) {
  const bool is_narrow = coo_index_bytes(range.size()) == 4;
  const auto decode = is_narrow ? decode_numbers<std::uint32_t> : decode_numbers<std::uint64_t>;
  decode(range, bytes, indices);
}

}  // namespace sparsesync::cpu
