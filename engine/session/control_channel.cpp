#include "engine/session/control_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>

#include "schemes/exchange.h"

namespace sparsesync {
namespace {

/// Far above the size of any list of names, shapes and options.
constexpr std::uint64_t kLongestStatement = std::uint64_t{64} << 20U;

/// Marks a message that has only the length of a statement, because the statement is too long.
constexpr std::uint32_t kTooLong = Header::kRefused;

std::string length_of(const std::string& statement) {
  const std::uint64_t bytes = statement.size();
  return {reinterpret_cast<const char*>(&bytes), sizeof(bytes)};
}

/// @param packed  result of length_of()
[[noreturn]] void throw_too_long(Rank worker, const std::string& packed) {
  std::uint64_t bytes = 0;
  if (packed.size() != sizeof(bytes)) {
    throw ProtocolError(fmt::format("worker {} sent a malformed length", worker.value));
  }
  std::memcpy(&bytes, packed.data(), sizeof(bytes));
  throw InputError(
      fmt::format("worker {} contributes {} bytes to an all-gather, and at most {} are allowed: "
                  "contribute less per call, or register several buckets with fewer tensors",
                  worker.value, bytes, kLongestStatement));
}

/// Runs `body`, and replaces errors that leave a session usable. If memory runs out here, only this
/// worker knows, so the session must end.
template <typename Body>
auto without_refusals(const Body& body) {
  constexpr const char* kWhere = "out of memory during an exchange on the control channel";
  try {
    return body();
  } catch (const BudgetError& error) {
    throw Error(fmt::format("{}: {}", kWhere, error.what()));
  } catch (const std::bad_alloc&) {
    throw Error(kWhere);
  }
}

class Blobs : public ReceiveProvider {
 public:
  explicit Blobs(std::size_t count) : blobs(count) {}
  std::byte* provide(std::size_t receive, const Header& header) override {
    if (header.bytes > kLongestStatement) {
      throw ProtocolError(
          fmt::format("received a statement of {} bytes, and at most {} are allowed", header.bytes,
                      kLongestStatement));
    }
    blobs[receive].resize(header.bytes);
    return reinterpret_cast<std::byte*>(blobs[receive].data());
  }
  std::vector<std::string> blobs;
};

// Names come from users and may have any character. A length before each text avoids escapes.
void put(std::string& packed, const std::string& text) {
  packed += fmt::format("{}:", text.size());
  packed += text;
}

std::string take(const std::string& packed, std::size_t& at) {
  std::size_t length = 0;
  while (at < packed.size() && packed[at] >= '0' && packed[at] <= '9' && length <= packed.size()) {
    length = length * 10 + static_cast<std::size_t>(packed[at++] - '0');
  }
  if (at >= packed.size() || packed[at] != ':' || length > packed.size() - at - 1) {
    throw ProtocolError("received a malformed statement");
  }
  std::string text = packed.substr(at + 1, length);
  at += 1 + length;
  return text;
}

ControlChannel::Statement unpack(const std::string& packed) {
  ControlChannel::Statement statement;
  for (std::size_t at = 0; at < packed.size();) {
    std::string name = take(packed, at);
    statement.emplace_back(std::move(name), take(packed, at));
  }
  return statement;
}

/// Describes the first difference between two statements. Empty if there is none.
std::string difference(const ControlChannel::Statement& first,
                       const ControlChannel::Statement& other, std::size_t worker) {
  for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
    if (i < first.size() && i < other.size() && first[i] == other[i]) continue;
    const std::string& name = i < first.size() ? first[i].first : other[i].first;
    const auto value = [&](const ControlChannel::Statement& statement) {
      if (i < statement.size() && statement[i].first == name) return statement[i].second;
      const auto found = std::find_if(statement.begin(), statement.end(),
                                      [&](const auto& entry) { return entry.first == name; });
      return found == statement.end() ? std::string("absent") : found->second;
    };
    return fmt::format("{} is {} on worker 0 and {} on worker {}", name, value(first), value(other),
                       worker);
  }
  return {};
}

}  // namespace

std::vector<std::string> ControlChannel::all_gather(const std::string& own) {
  return without_refusals([&] { return gathered(own); });
}

std::vector<std::string> ControlChannel::gathered(const std::string& own) {
  const Clock::time_point until = Clock::now() + deadline_;
  const std::vector<Rank> peers = peers_after(transport_.rank(), transport_.size());
  const bool too_long = own.size() > kLongestStatement;
  const std::string length = length_of(own);
  const std::string& sent = too_long ? length : own;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const Rank peer : peers) {
    sends.push_back({peer, reinterpret_cast<const std::byte*>(sent.data()), std::ssize(sent)});
    receives.push_back({peer});
  }
  Blobs blobs(peers.size());
  const Header header{0, too_long ? kTooLong : 0, sequence_++, 0, 0};
  const GroupId group = transport_.post(context_, header, sends, receives, blobs);
  std::optional<Rank> first_too_long;
  if (too_long) first_too_long = transport_.rank();
  while (const std::optional<Arrival> arrival = transport_.next(group, until)) {
    const Rank from = peers[arrival->receive];
    if ((arrival->header.flags & kTooLong) == 0) continue;
    if (!first_too_long || from < *first_too_long) first_too_long = from;
  }
  transport_.finish(group, until);
  std::vector<std::string> all(static_cast<std::size_t>(transport_.size()));
  for (std::size_t i = 0; i < peers.size(); ++i) {
    all[peers[i].index()] = std::move(blobs.blobs[i]);
  }
  all[transport_.rank().index()] = sent;
  if (first_too_long) throw_too_long(*first_too_long, all[first_too_long->index()]);
  return all;
}

void ControlChannel::broadcast(std::span<std::byte> bytes, Rank root) {
  without_refusals([&] { pass_on(bytes, root); });
}

void ControlChannel::pass_on(std::span<std::byte> bytes, Rank root) {
  constexpr std::size_t kPiece = std::size_t{1} << 20U;
  const int size = transport_.size();
  const int own = transport_.rank().value;
  const int place = (own - root.value + size) % size;  // position in the chain
  const Rank before{(own - 1 + size) % size};
  const Rank after{(own + 1) % size};
  Blobs none(0);
  std::optional<GroupId> sending;
  Clock::time_point until;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kPiece) {
    until = Clock::now() + deadline_;
    const std::span<std::byte> piece = bytes.subspan(begin, std::min(kPiece, bytes.size() - begin));
    const Header header{0, 0, sequence_++, 0, 0};
    if (place > 0) {
      InPlace in_place(piece.data(), std::ssize(piece));
      const GroupId group =
          transport_.post(context_, header, {}, std::array{Receive{before}}, in_place);
      while (transport_.next(group, until)) {
      }
      transport_.finish(group, until);
    }
    // The previous piece is sent while this one is received.
    if (sending) transport_.finish(*sending, until);
    if (place + 1 == size) continue;
    sending = transport_.post(context_, header,
                              std::array{Send{after, piece.data(), std::ssize(piece)}}, {}, none);
  }
  if (sending) transport_.finish(*sending, until);
}

void ControlChannel::agree(const std::string& subject, const Statement& own) {
  std::string packed;
  for (const auto& [name, value] : own) {
    put(packed, name);
    put(packed, value);
  }
  const std::vector<std::string> all = all_gather(packed);
  const Statement first = unpack(all.front());
  for (std::size_t worker = 1; worker < all.size(); ++worker) {
    if (all[worker] == all.front()) continue;
    throw AgreementError(fmt::format("{}: {}: use the same on all workers", subject,
                                     difference(first, unpack(all[worker]), worker)));
  }
}

}  // namespace sparsesync
