// Code common to the CPU implementations of the index codes.
#include "kernels/indices/index_code.h"

#include <bit>

#include "kernels/indices/index_code_cpu.h"

namespace sparsesync::cpu {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

void encode(const Context&, IndexCode code, IndexRange range, std::span<const Index> indices,
            std::span<std::byte> out) {
  sparsesync::detail::expect_room(code, range, std::ssize(indices), std::ssize(out));
  for_index_code(code, [&](auto type) { encode_as(type, range, indices, out); });
}

void decode(const Context&, IndexCode code, IndexRange range, std::span<const std::byte> bytes,
            std::span<Index> indices) {
  sparsesync::detail::expect_bytes(code, range, std::ssize(indices), std::ssize(bytes));
  for_index_code(code, [&](auto type) { decode_as(type, range, bytes, indices); });
}

void encode_all(const Context& context, std::span<const EncodeJob> jobs) {
  for (const EncodeJob& job : jobs) encode(context, job.code, job.range, job.indices, job.out);
}

void decode_all(const Context& context, std::span<const DecodeJob> jobs) {
  for (const DecodeJob& job : jobs) {
    sparsesync::detail::expect_bytes(job.code, job.range, std::ssize(job.indices),
                                     std::ssize(job.bytes));
  }
  for (const DecodeJob& job : jobs) decode(context, job.code, job.range, job.bytes, job.indices);
}

}  // namespace sparsesync::cpu
