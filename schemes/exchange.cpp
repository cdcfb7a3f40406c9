#include "schemes/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

/// The wire format of a rejection: the rank of the worker that rejected first (4 bytes), then its
/// reason.
constexpr std::size_t kLongestReason = 4000;

constexpr auto kNothingToDo = [] {};
constexpr auto kNothing = [](Rank, std::span<const std::byte>) {};

constexpr std::size_t kMostPieces = std::tuple_size_v<decltype(ExchangeWorkspace::refusals)>;

std::vector<std::byte> pack_refusal(Rank peer, const std::string& whole_reason) {
  const auto who = static_cast<std::uint32_t>(peer.value);
  const std::string_view reason = whole_characters(whole_reason, kLongestReason);
  std::vector<std::byte> packed(sizeof(who) + reason.size());
  std::memcpy(packed.data(), &who, sizeof(who));
  std::memcpy(packed.data() + sizeof(who), reason.data(), packed.size() - sizeof(who));
  return packed;
}

/// @param from     the sender, which may forward another worker's rejection
/// @param packed   the received bytes
/// @param workers  number of all workers
RefusedError unpack_refusal(Rank from, std::span<const std::byte> packed, int workers) {
  std::uint32_t who = 0;
  if (packed.size() < sizeof(who)) {
    throw ProtocolError(fmt::format("worker {} sent a refusal without a rank", from.value));
  }
  std::memcpy(&who, packed.data(), sizeof(who));
  if (who >= static_cast<std::uint32_t>(workers)) {
    throw ProtocolError(
        fmt::format("worker {} sent a refusal of worker {}, but there are {} workers", from.value,
                    who, workers));
  }
  const std::span<const std::byte> reason = packed.subspan(sizeof(who));
  return {Rank{static_cast<int>(who)},
          std::string(reinterpret_cast<const char*>(reason.data()), reason.size())};
}

/// Runs work in the middle of a step. If late rejections are allowed, it stores errors caused by
/// lack of memory instead of throwing them. The step is then completed, because messages are
/// already in flight.
class MiddleOfStep {
 public:
  /// @param late  whether late rejections are allowed
  /// @param kept  the first stored error; no further work is done
  MiddleOfStep(bool late, std::exception_ptr& kept) : late_(late), kept_(kept) {}
  template <typename Work>
  void run(Work&& work) {
    if (!late_) return work();
    if (kept_) return;
    try {
      work();
    } catch (const BudgetError&) {
      kept_ = std::current_exception();
    } catch (const std::bad_alloc&) {
      kept_ = std::current_exception();
    }
  }

 private:
  bool late_;
  std::exception_ptr& kept_;
};

/// Receives rejections into separate memory, because they are small and independent of what the
/// scheme expects.
class RefusalProvider : public ReceiveProvider {
 public:
  /// @param scheme        null while this worker rejects; data that others already sent is
  ///     discarded
  /// @param middle        runs the scheme's calls
  /// @param most_payload  largest valid size of discarded data, in bytes
  /// @param refusals      [receive]: memory of rejections
  RefusalProvider(ReceiveProvider* scheme, MiddleOfStep& middle, std::uint64_t most_payload,
                  std::vector<std::vector<std::byte>>& refusals)
      : scheme_(scheme), middle_(middle), most_payload_(most_payload), refusals_(refusals) {}
  std::byte* provide(std::size_t receive, const Header& header) override {
    if ((header.flags & Header::kRefused) == 0) {
      if (std::byte* const memory = ask_scheme(receive, header)) return memory;
      if (header.bytes > most_payload_) {
        throw CorruptDataError(fmt::format("a message of {} bytes exceeds the bucket's limit of {}",
                                           header.bytes, most_payload_));
      }
      return nullptr;
    }
    if (header.bytes > sizeof(std::uint32_t) + kLongestReason) {
      throw ProtocolError(fmt::format("a refusal of {} bytes is too long", header.bytes));
    }
    refusals_[receive].resize(header.bytes);
    return refusals_[receive].data();
  }

 private:
  /// Returns null if the message is discarded.
  std::byte* ask_scheme(std::size_t receive, const Header& header) {
    std::byte* memory = nullptr;
    if (scheme_ != nullptr) middle_.run([&] { memory = scheme_->provide(receive, header); });
    return memory;
  }

  ReceiveProvider* scheme_;
  MiddleOfStep& middle_;
  std::uint64_t most_payload_;
  std::vector<std::vector<std::byte>>& refusals_;
};

}  // namespace

RefusedError::RefusedError(Rank peer, std::string reason)
    : PeerError(peer, fmt::format("worker {} refused the step: {}", peer.value, printable(reason))),
      reason_(std::move(reason)) {}

Inbox::Inbox(const Context& context, std::size_t places)
    : buffers_(buffers<std::byte>(context, places)) {}

void Inbox::expect(std::int64_t bytes) {
  for (Buffer<std::byte>& buffer : buffers_) buffer.reserve(bytes);
}

std::int64_t Inbox::capacity() const {
  std::int64_t bytes = 0;
  for (const Buffer<std::byte>& buffer : buffers_) bytes += buffer.capacity();
  return bytes;
}

std::byte* Inbox::provide(std::size_t receive, const Header& header) {
  if (header.bytes > static_cast<std::uint64_t>(limit_)) {
    throw ProtocolError(
        fmt::format("a message of {} bytes exceeds the limit of {}", header.bytes, limit_));
  }
  return buffers_[receive].reserve(static_cast<Index>(header.bytes)).data();
}

std::byte* InPlace::provide(std::size_t, const Header& header) {
  if (header.bytes != static_cast<std::uint64_t>(bytes_)) {
    throw ProtocolError(fmt::format("a message of {} bytes instead of {}", header.bytes, bytes_));
  }
  return place_;
}

Exchange::Exchange(Transport& transport, const Context& context, Agreed agreed,
                   std::uint64_t& sequence, const Pattern& pattern, int rounds,
                   Clock::duration deadline, ExchangeWorkspace& workspace)
    : transport_(transport),
      context_(context),
      agreed_(agreed),
      sequence_(sequence),
      pattern_(pattern),
      round_{0, rounds},
      deadline_(deadline),
      workspace_(workspace) {}

Exchange::Within Exchange::within(std::span<const Rank> members, Rank own) {
  SPARSESYNC_EXPECT(group_.has_value(), ==, false);
  SPARSESYNC_EXPECT(members[static_cast<std::size_t>(own.value)].value, ==,
                    transport_.rank().value);
  group_ = {members, own};
  return Within(*this);
}

Rank Exchange::told(Rank worker) const {
  if (!group_) return worker;
  const auto place = std::lower_bound(group_->members.begin(), group_->members.end(), worker);
  return {static_cast<int>(place - group_->members.begin())};
}

template <typename Call>
auto Exchange::in_transport(bool arriving, Call&& call) {
  const StopwatchPause pause(workspace_.stopwatch, arriving);
  return call();
}

/// Posts the pieces of all messages, then receives them, piece by piece.
void Exchange::walk(const Step& step, std::uint32_t flags, std::span<const Piece* const> pieces,
                    const FunctionView<void()>& meanwhile) {
  const Clock::time_point until = Clock::now() + deadline_;
  const bool refuses = (flags & Header::kRefused) != 0;
  std::vector<Receive>& receives = workspace_.receives;
  receives.clear();
  for (const Rank from : step.from) receives.push_back({from});
  if (round_.last()) flags |= Header::kLast;
  out_of_memory_ = nullptr;
  MiddleOfStep middle(agreed_.late_refusals, out_of_memory_);
  std::array<std::optional<RefusalProvider>, kMostPieces> guarded;
  std::array<GroupId, kMostPieces> groups;
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
    const std::span<const Payload> payloads = pieces[piece]->payloads;
    SPARSESYNC_EXPECT(payloads.size(), ==, step.to.size());
    std::vector<Send>& sends = workspace_.sends;
    sends.clear();
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      sends.push_back({step.to[i], payloads[i].data, payloads[i].bytes});
      index_bytes_sent_ += payloads[i].index_bytes;
    }
    std::vector<std::vector<std::byte>>& refusals = workspace_.refusals[piece];
    if (refusals.size() < receives.size()) refusals.resize(receives.size());
    guarded[piece].emplace(refuses ? nullptr : &pieces[piece]->provider, middle,
                           agreed_.most_payload, refusals);
    const Header header{agreed_.channel, flags, sequence_++, agreed_.signature, 0};
    is_inside_step_ = true;
    groups[piece] = in_transport(
        true, [&] { return transport_.post(context_, header, sends, receives, *guarded[piece]); });
  }
  ++at_;
  middle.run(meanwhile);
  std::optional<RefusedError> refused;
  std::size_t awaited = pieces.size() * receives.size();
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
    const auto next = [&] { return transport_.next(groups[piece], until); };
    // While the last message is processed, none is in flight.
    while (const std::optional<Arrival> arrival = in_transport(awaited > 1, next)) {
      --awaited;
      const Rank from = step.from[arrival->receive];
      if (((arrival->header.flags ^ flags) & Header::kLast) != 0) {
        throw ProtocolError(
            fmt::format("worker {} and this one disagree on which round is the last", from.value));
      }
      if ((arrival->header.flags & Header::kRefused) != 0) {
        RefusedError told = unpack_refusal(from, arrival->payload, transport_.size());
        if (!refuses && told.peer().value == transport_.rank().value) {
          throw ProtocolError(
              fmt::format("worker {} sent a refusal of worker {}, which did not refuse", from.value,
                          told.peer().value));
        }
        if (!refused || told.peer() < refused->peer()) refused = std::move(told);
      } else if (!refused && !refuses) {
        middle.run([&] { pieces[piece]->on_arrival(told(from), arrival->payload); });
      }
    }
  }
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
    in_transport(false, [&] { transport_.finish(groups[piece], until); });
  }
  is_inside_step_ = false;
  if (out_of_memory_) std::rethrow_exception(std::exchange(out_of_memory_, nullptr));
  if (refused && !refuses) throw RefusedError(std::move(*refused));
}

void Exchange::step(std::span<const Payload> payloads, ReceiveProvider& provider,
                    const OnArrival& on_arrival) {
  step(payloads, provider, on_arrival, kNothingToDo);
}

void Exchange::step(std::span<const Payload> payloads, ReceiveProvider& provider,
                    const OnArrival& on_arrival, const FunctionView<void()>& meanwhile) {
  SPARSESYNC_EXPECT(at_, <, pattern_.size());
  const Piece whole{payloads, provider, on_arrival};
  walk(pattern_[at_], 0, std::array{&whole}, meanwhile);
}

void Exchange::step(const Piece& head, const Piece& body) {
  SPARSESYNC_EXPECT(at_, <, pattern_.size());
  walk(pattern_[at_], 0, std::array{&head, &body}, kNothingToDo);
}

void Exchange::all_reduce(DType dtype, std::span<std::byte> elements) {
  SPARSESYNC_EXPECT(at_, ==, pattern_.size());
  SPARSESYNC_EXPECT(group_.has_value(), ==, false);
  if (transport_.size() == 1) return;
  is_inside_step_ = true;
  in_transport(false,
               [&] { transport_.all_reduce(context_, dtype, elements, Clock::now() + deadline_); });
  is_inside_step_ = false;
}

void Exchange::next_round() {
  SPARSESYNC_EXPECT(at_, ==, pattern_.size());
  at_ = 0;
  ++round_.index;
}

void Exchange::refuse(Rank peer, const std::string& reason, const PiecesOf& pieces_of) {
  workspace_.own_refusal = pack_refusal(peer, reason);
  const Payload payload{workspace_.own_refusal.data(), std::ssize(workspace_.own_refusal)};
  Inbox none(context_, 0);
  for (; round_.index < round_.count; ++round_.index, at_ = 0) {
    while (at_ < pattern_.size()) {
      const Step& step = pattern_[at_];
      const std::vector<Payload> payloads(step.to.size(), payload);
      const Piece piece{payloads, none, kNothing};
      const std::array<const Piece*, kMostPieces> pieces{&piece, &piece};
      walk(step, Header::kRefused, std::span(pieces).first(pieces_of(round_, at_)), kNothingToDo);
    }
  }
}

}  // namespace sparsesync
