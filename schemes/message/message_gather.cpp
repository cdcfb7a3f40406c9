#include "schemes/message/message_gather.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/base/bits.h"
#include "kernels/base/error.h"
#include "kernels/rows/rows.h"

namespace sparsesync {
namespace {

constexpr std::int64_t kAlignment = 16;

/// Receives the message of a step into one buffer of an inbox, because it is forwarded later.
class OnePlace : public ReceiveProvider {
 public:
  OnePlace(Inbox& inbox, std::size_t place) : inbox_(inbox), place_(place) {}
  std::byte* provide(std::size_t, const Header& header) override {
    return inbox_.provide(place_, header);
  }

 private:
  Inbox& inbox_;
  std::size_t place_;
};

/// Receives directly behind the held messages, if the buffer has enough capacity.
class Behind : public ReceiveProvider {
 public:
  Behind(Buffer<std::byte>& all, std::int64_t filled, Buffer<std::byte>& spill, std::int64_t limit)
      : all_(all), filled_(filled), spill_(spill), limit_(limit) {}
  std::byte* provide(std::size_t, const Header& header) override {
    if (header.bytes > static_cast<std::uint64_t>(limit_)) {
      throw ProtocolError("messages that exceed the limit of their size");
    }
    const auto bytes = static_cast<std::int64_t>(header.bytes);
    if (bytes <= all_.capacity() - filled_) return all_.data() + filled_;
    has_spilled_ = true;
    return spill_.reserve(bytes).data();
  }
  /// Whether the capacity was too small. Comparing addresses is not enough, because the spill
  /// buffer may directly follow the other one.
  bool has_spilled() const { return has_spilled_; }

 private:
  Buffer<std::byte>& all_;
  std::int64_t filled_;
  Buffer<std::byte>& spill_;
  std::int64_t limit_;
  bool has_spilled_ = false;
};

/// Returns the number of messages that a step of a hierarchy sends if `held` messages are held
/// before it.
int crossing_messages(int held, int size) {
  return std::min(held, size - held);
}

}  // namespace

MessageGather::MessageGather(const Context& context, Rank rank, int size, Communication pattern,
                             MessageRoom* room)
    : context_(context),
      rank_(rank),
      size_(size),
      pattern_(pattern),
      own_room_(room == nullptr ? std::make_unique<MessageRoom>(context, size) : nullptr),
      room_(room == nullptr ? *own_room_ : *room),
      all_(room_.sent),
      heads_(context,
             pattern == Communication::point_to_point ? static_cast<std::size_t>(size - 1) : 0),
      spill_(context),
      held_(static_cast<std::size_t>(size)) {}

Pattern MessageGather::pattern() const {
  switch (pattern_) {
    case Communication::ring:
      return around_the_ring(rank_, size_);
    case Communication::hierarchy:
      return spreading_word(rank_, size_);
    case Communication::point_to_point:
      break;
  }
  return all_to_all(rank_, size_);
}

std::span<std::byte> MessageGather::own(std::int64_t bytes) {
  outgrown_.clear();
  spill_.release();  // it may be left from a step that failed
  own_bytes_ = bytes;
  return all_.reserve(round_up(bytes, kAlignment)).first(static_cast<std::size_t>(bytes));
}

void MessageGather::run(Exchange& exchange, std::int64_t limit, const Read& read) {
  read_whole(0, all_.first(own_bytes_), read);
  if (size_ == 1) return;
  room_.received.set_limit(limit);
  switch (pattern_) {
    case Communication::ring:
      return pass_around(exchange, read);
    case Communication::hierarchy:
      return send_doubling(exchange, limit, read);
    case Communication::point_to_point:
      return send_to_each(exchange, read);
  }
}

void MessageGather::read_whole(int place, std::span<const std::byte> message, const Read& read) {
  const Extent extent = read(held_of(place), message);
  if (extent.bytes != std::ssize(message)) {
    throw CorruptDataError("a message with extra bytes at its end");
  }
  held_[static_cast<std::size_t>(place)] = {message, extent.index_bytes};
}

/// Reads a message after it was forwarded, so that the next worker does not wait for the decoding.
void MessageGather::pass_around(Exchange& exchange, const Read& read) {
  for (int step = 0; step + 1 < size_; ++step) {
    const Held& passed_on = held_[static_cast<std::size_t>(step)];
    const std::array payload{Payload{passed_on.message.data(), std::ssize(passed_on.message)}};
    OnePlace place(room_.received, static_cast<std::size_t>(step));
    exchange.step(
        payload, place,
        [&](Rank, std::span<const std::byte> message) {
          held_[static_cast<std::size_t>(step) + 1] = {message};
        },
        [&] {
          if (step > 0) read_whole(step, passed_on.message, read);
          exchange.count_index_bytes(passed_on.index_bytes);
        });
  }
  read_whole(size_ - 1, held_.back().message, read);
}

void MessageGather::send_to_each(Exchange& exchange, const Read& read) {
  payloads_.assign(static_cast<std::size_t>(size_ - 1),
                   {held_[0].message.data(), own_bytes_, held_[0].index_bytes});
  exchange.step(payloads_, room_.received, [&](Rank from, std::span<const std::byte> message) {
    read_whole(place_of(from), message, read);
  });
}

void MessageGather::run_in_pieces(Exchange& exchange, std::int64_t own_head, std::int64_t limit,
                                  const Pieces& read) {
  SPARSESYNC_EXPECT(pattern_ == Communication::point_to_point, ==, true);
  const std::byte* body = all_.data() + own_head;
  const std::int64_t body_bytes = own_bytes_ - own_head;
  read_whole(0, all_.first(own_head), read.head);
  int awaited = size_ - 1;
  const auto own_is_read = [&] {
    read.heads_came();
    read.body(rank_, {body, static_cast<std::size_t>(body_bytes)});
  };
  if (awaited == 0) return own_is_read();
  heads_.set_limit(limit);
  room_.received.set_limit(limit);
  const auto peers = static_cast<std::size_t>(awaited);
  payloads_.assign(peers, {held_[0].message.data(), own_head, held_[0].index_bytes});
  body_payloads_.assign(peers, {body, body_bytes});
  const auto on_head = [&](Rank from, std::span<const std::byte> head) {
    read_whole(place_of(from), head, read.head);
    if (--awaited == 0) own_is_read();
  };
  const auto on_body = [&](Rank from, std::span<const std::byte> bytes) { read.body(from, bytes); };
  exchange.step({payloads_, heads_, on_head}, {body_payloads_, room_.received, on_body});
}

/// Reads received messages after they were forwarded, except if a step forwards only some of them.
void MessageGather::send_doubling(Exchange& exchange, std::int64_t limit, const Read& read) {
  std::int64_t filled = round_up(own_bytes_, kAlignment);
  held_[0].end = filled;
  std::span<const std::byte> unread;
  int known = 1;  // messages already read
  const auto read_up_to = [&](int held) {
    if (known == held) return;
    const std::int64_t begin = filled - std::ssize(unread);
    std::size_t at = 0;
    for (; known < held; ++known) {
      const Extent extent = read(held_of(known), unread.subspan(at));
      const std::span<const std::byte> message =
          unread.subspan(at, static_cast<std::size_t>(extent.bytes));
      at += static_cast<std::size_t>(round_up(extent.bytes, kAlignment));
      if (at > unread.size()) throw CorruptDataError("messages that are truncated");
      held_[static_cast<std::size_t>(known)] = {message, extent.index_bytes,
                                                begin + static_cast<std::int64_t>(at)};
    }
    if (at != unread.size()) throw CorruptDataError("extra bytes after the last message");
  };
  for (int held = 1; held < size_; held *= 2) {
    const int crossing = crossing_messages(held, size_);
    if (crossing < held) read_up_to(held);
    const std::int64_t sent =
        crossing < held ? held_[static_cast<std::size_t>(crossing - 1)].end : filled;
    const std::array payload{Payload{all_.data(), sent}};
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    Behind behind(all_, filled, spill_,
                  limit < kMost / size_ - kAlignment ? crossing * (limit + kAlignment) : kMost);
    std::span<const std::byte> arrived;
    exchange.step(
        payload, behind, [&](Rank, std::span<const std::byte> bytes) { arrived = bytes; },
        [&] {
          read_up_to(held);
          std::int64_t index_bytes = sent;
          for (int i = 0; i < crossing; ++i) {
            const Held& each = held_[static_cast<std::size_t>(i)];
            index_bytes -= std::ssize(each.message) - each.index_bytes;
          }
          exchange.count_index_bytes(index_bytes);
        });
    if (behind.has_spilled()) {
      // Grows only after all sends are done. The old buffer stays valid for sends and views.
      outgrown_.push_back(std::move(all_));
      const std::span<std::byte> grown = all_.reserve(filled + std::ssize(arrived));
      copy(context_, outgrown_.back().first(filled), grown.data());
      copy(context_, arrived, grown.data() + filled);
      arrived = grown.subspan(static_cast<std::size_t>(filled));
      spill_.release();
    }
    unread = arrived;
    filled += std::ssize(arrived);
  }
  read_up_to(size_);
}

void count_gather(Communication pattern, std::span<const std::int64_t> bytes, Traffic& traffic) {
  const auto size = static_cast<int>(bytes.size());
  for (const Rank owner : Ranks(size)) {
    const std::int64_t message = bytes[owner.index()];
    for (int distance = 1; distance < size && pattern != Communication::hierarchy; ++distance) {
      const Rank to = ring_neighbour(owner, distance, size);
      const Rank from = pattern == Communication::ring ? ring_neighbour(to, -1, size) : owner;
      traffic.message(from, to, message);
    }
    if (pattern != Communication::hierarchy) continue;
    for (int held = 1; held < size; held *= 2) {
      std::int64_t sent = 0;
      for (int i = 0; i < crossing_messages(held, size); ++i) {
        sent += round_up(bytes[ring_neighbour(owner, -i, size).index()], kAlignment);
      }
      traffic.message(owner, ring_neighbour(owner, held, size), sent);
    }
  }
}

PhaseCost gather_cost(Communication pattern, int size, const GatheredBytes& bytes,
                      std::size_t spaces) {
  if (size == 1) return {};
  const double peers = size - 1.0;
  double doublings = 0;
  for (int held = 1; held < size; held *= 2) ++doublings;
  const double messages = pattern == Communication::hierarchy ? doublings : peers;
  const double overhead =
      messages * static_cast<double>(kHeaderBytes) + peers * 16 * static_cast<double>(spaces);
  const double others = bytes.total - bytes.smallest + overhead;
  // The largest message is forwarded from worker to worker around the ring.
  const double around = peers * bytes.largest + overhead;
  switch (pattern) {
    case Communication::ring:
      return {.steps = messages,
              .messages = messages,
              .bytes_sent = others,
              .bytes_received = others,
              .bytes_chained = around > others ? around : 0};
    case Communication::hierarchy: {
      // The worker with the largest message sends it in each payload. The other messages of its
      // payloads are assumed to have the mean size.
      const double mean = (bytes.total - bytes.largest) / peers;
      const double sent = doublings * bytes.largest + (peers - doublings) * mean + overhead;
      return {.steps = messages,
              .messages = messages,
              .bytes_sent = std::max(sent, others),
              .bytes_received = others};
    }
    case Communication::point_to_point:
      break;
  }
  return {.steps = 1, .messages = messages, .bytes_sent = around, .bytes_received = others};
}

}  // namespace sparsesync
