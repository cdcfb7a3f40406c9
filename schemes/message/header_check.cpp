#include "schemes/message/header_check.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/host_copy.h"

namespace sparsesync {

void KnownNumbers::fetch(std::size_t spaces, std::span<const std::span<const std::byte>> messages,
                         std::vector<SectionCounts>& counts) {
  all_.clear();
  for (const std::span<const std::byte> message : messages) {
    all_.push_back(numbers_in(message, spaces));
  }
  counts.resize(messages.size() * spaces);
  fetch_pieces(context_, all_, std::as_writable_bytes(std::span(counts)).data());
}

void KnownNumbers::expect(std::span<const std::byte> message,
                          std::span<const SectionCounts> counts) {
  pieces_.push_back(message.first(counts.size_bytes()));
  expected_.insert(expected_.end(), counts.begin(), counts.end());
}

void KnownNumbers::verify(std::span<const std::span<const std::byte>> others,
                          std::span<std::byte> to) {
  all_.assign(others.begin(), others.end());
  all_.insert(all_.end(), pieces_.begin(), pieces_.end());
  const std::span<const std::byte> known = std::as_bytes(std::span(expected_));
  fetched_.resize(to.size() + known.size());
  fetch_pieces(context_, all_, fetched_.data());
  std::copy_n(fetched_.begin(), to.size(), to.begin());
  const std::span<const std::byte> said = std::span(fetched_).subspan(to.size());
  const bool as_known = std::equal(said.begin(), said.end(), known.begin(), known.end());
  clear();
  if (!as_known) throw CorruptDataError("a message whose counts do not match its size");
}

}  // namespace sparsesync
