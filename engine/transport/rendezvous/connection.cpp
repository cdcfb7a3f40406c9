#include "engine/transport/rendezvous/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace sparsesync::rendezvous {
namespace {

constexpr std::size_t kChunkBytes = 65536;

/// Precedes each text on the wire, in little-endian byte order.
struct MessageHeader {
  static constexpr std::uint32_t kMagic = 0x7652'7053;  // "SpRv"
  static constexpr std::uint16_t kProtocol = 1;

  std::uint32_t magic = kMagic;
  std::uint16_t protocol = kProtocol;
  Kind kind{};
  std::uint8_t reserved = 0;
  std::int32_t rank = 0;
  std::uint32_t bytes = 0;
};
static_assert(sizeof(MessageHeader) == 16);

}  // namespace

std::string encoded(Kind kind, Rank rank, std::string_view text) {
  const MessageHeader header{
      .kind = kind, .rank = rank.value, .bytes = static_cast<std::uint32_t>(text.size())};
  std::string bytes(sizeof(header), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes.append(text);
}

pollfd Connection::polled() const {
  return {socket_.descriptor(), static_cast<short>(POLLIN | (has_output() ? POLLOUT : 0)), 0};
}

bool Connection::read() {
  std::array<char, kChunkBytes> chunk;  // NOLINT(*-member-init): recv() fills it
  const ssize_t bytes = ::recv(socket_.descriptor(), chunk.data(), chunk.size(), 0);
  if (bytes < 0) return would_block();
  input_.append(chunk.data(), static_cast<std::size_t>(bytes));
  return bytes > 0;
}

std::optional<Message> Connection::pop(std::string_view sender, std::size_t longest) {
  MessageHeader header;
  const std::size_t begin = std::min(input_.size(), sizeof(header.magic));
  if (std::memcmp(input_.data(), &header.magic, begin) != 0) {
    throw ProtocolError(
        fmt::format("{} does not speak the protocol of a sparsesync rendezvous", sender));
  }
  if (input_.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, input_.data(), sizeof(header));
  if (header.protocol != MessageHeader::kProtocol) {
    throw ProtocolError(
        fmt::format("{} speaks version {} of the rendezvous protocol instead of version {}: "
                    "install the same version of sparsesync for all workers",
                    sender, header.protocol, MessageHeader::kProtocol));
  }
  if (header.bytes > longest) {
    throw ProtocolError(fmt::format("{} announced a message of {} bytes: at most {} are allowed",
                                    sender, header.bytes, longest));
  }
  if (input_.size() - sizeof(header) < header.bytes) return std::nullopt;
  Message message{header.kind, Rank{header.rank}, input_.substr(sizeof(header), header.bytes)};
  input_.erase(0, sizeof(header) + header.bytes);
  return message;
}

void Connection::push(Kind kind, Rank rank, std::string_view text) {
  push(std::make_shared<const std::string>(encoded(kind, rank, text)));
}

void Connection::flush() {
  while (has_output()) {
    const std::string& first = *output_.front();
    const ssize_t bytes =
        ::send(descriptor(), first.data() + sent_, first.size() - sent_, MSG_NOSIGNAL);
    if (bytes < 0 && would_block()) return;
    sent_ = bytes < 0 ? 0 : sent_ + static_cast<std::size_t>(bytes);
    if (bytes < 0) return output_.clear();
    if (sent_ < first.size()) continue;
    output_.pop_front();
    sent_ = 0;
  }
}

}  // namespace sparsesync::rendezvous
