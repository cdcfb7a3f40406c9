// One phase of one bucket on the network: the steps of a scheme's pattern, and the agreed refusal.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/function_view.h"
#include "kernels/base/views.h"
#include "schemes/cost.h"
#include "schemes/pattern.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// A message's payload and how much of it says which rows there are.
struct Payload {
  const std::byte* data = nullptr;
  PayloadBytes bytes{std::int64_t{0}};
  std::int64_t index_bytes = 0;
};

/// Receives into one workspace for each place of a step, each with a bound on what may come.
class Inbox : public ReceiveProvider {
 public:
  Inbox(const Context& context, std::size_t places);
  /// What a message may have at most from now on: more is a peer that lies.
  void set_limit(std::int64_t bytes) { limit_ = bytes; }
  /// Takes memory for messages of so many bytes before any is sent: what a budget does not allow is
  /// found while the step can still be refused. Larger ones may come.
  /// @throws BudgetError
  void expect(std::int64_t bytes);
  /// Bytes that there is room for, over all places.
  std::int64_t capacity() const;
  std::byte* provide(std::size_t receive, const Header& header) override;

 private:
  std::vector<Buffer<std::byte>> buffers_;
  std::int64_t limit_ = 0;
};

/// Receives the one message of a step, of a known size, straight into its place.
class InPlace : public ReceiveProvider {
 public:
  InPlace(std::byte* place, Index bytes) : place_(place), bytes_(bytes) {}
  /// @throws ProtocolError for a message of another size
  std::byte* provide(std::size_t receive, const Header& header) override;

 private:
  std::byte* place_;
  Index bytes_;
};

/// Adds up what a phase takes outside of the transport, from each go_on() to the next stop().
class Stopwatch {
 public:
  /// @param arriving  whether what follows is done while messages are on their way
  void go_on(bool arriving) {
    arriving_ = arriving;
    since_ = Clock::now();
  }
  /// @pre go_on() was called since
  void stop() {
    (arriving_ ? seconds_.arriving : seconds_.apart) +=
        std::chrono::duration<double>(Clock::now() - since_).count();
  }
  const PhaseSeconds& seconds() const { return seconds_; }

 private:
  bool arriving_ = false;
  Clock::time_point since_;
  PhaseSeconds seconds_;
};

/// A stopwatch, if there is one, stands still while it lives.
class StopwatchPause {
 public:
  /// @param arriving  whether messages are on their way afterwards
  StopwatchPause(Stopwatch* stopwatch, bool arriving) : stopwatch_(stopwatch), arriving_(arriving) {
    if (stopwatch_ != nullptr) stopwatch_->stop();
  }
  StopwatchPause(const StopwatchPause&) = delete;
  StopwatchPause& operator=(const StopwatchPause&) = delete;
  ~StopwatchPause() {
    if (stopwatch_ != nullptr) stopwatch_->go_on(arriving_);
  }

 private:
  Stopwatch* stopwatch_;
  bool arriving_;
};

/// Memory of the steps of exchanges, kept from one to the next, so that none allocates. It outlives
/// the transport: after an error others may still read what was sent.
struct ExchangeWorkspace {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  /// That came, by the piece of a message and the receive's place.
  std::array<std::vector<std::vector<std::byte>>, 2> refusals;
  std::vector<std::byte> own_refusal;
  /// Runs, and stands still while the transport works or waits; none if nobody wants to know.
  Stopwatch* stopwatch = nullptr;
};

/// What a scheme sees of the network during a phase.
class Exchange {
 public:
  /// What all workers have agreed on for a bucket, as headers carry it.
  struct Agreed {
    std::uint32_t channel = 0;
    std::uint64_t signature = 0;
    /// Bytes that a payload can have at most: more is a header that lies.
    std::uint64_t most_payload = std::numeric_limits<std::uint64_t>::max();
    /// Whether a worker may refuse after it has sent something. Its peers may not know by the end
    /// of the phase: all workers then agree on the outcome before any uses it.
    bool late_refusals = false;
  };

  /// @param sequence   of the channel: counted on for each step
  /// @param deadline   of each step
  /// @param workspace  of this exchange alone while it lives
  Exchange(Transport& transport, const Context& context, Agreed agreed, std::uint64_t& sequence,
           const Pattern& pattern, int rounds, Clock::duration deadline,
           ExchangeWorkspace& workspace);

  const Context& context() const { return context_; }
  Rank rank() const { return group_ ? group_->own : transport_.rank(); }
  int size() const { return group_ ? static_cast<int>(group_->members.size()) : transport_.size(); }
  Round round() const { return group_ ? Round{} : round_; }

  /// While it lives, workers are those of a group alone: rank(), size() and who a message comes
  /// from count its members, and a round is the only one. So a scheme that is made for so many
  /// workers takes its part in the pattern of another.
  class [[nodiscard]] Within {
   public:
    explicit Within(Exchange& exchange) : exchange_(exchange) {}
    ~Within() { exchange_.group_.reset(); }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;
    Within(Within&&) = delete;
    Within& operator=(Within&&) = delete;

   private:
    Exchange& exchange_;
  };
  /// @param members  the group's workers by their rank in it, increasing; they outlive what is
  ///                 returned
  /// @param own      this worker's rank in it
  /// @pre no group inside a group
  Within within(std::span<const Rank> members, Rank own);

  using OnArrival = FunctionView<void(Rank from, std::span<const std::byte> payload)>;
  /// The pattern's next step: sends, and calls `on_arrival` for each message as it comes, in any
  /// order.
  /// @param payloads  one for each of the step's `to`, in that order
  /// @param provider  receives into it; its places count the step's `from`
  /// @throws RefusedError if a worker refused; what Transport throws
  void step(std::span<const Payload> payloads, ReceiveProvider& provider,
            const OnArrival& on_arrival);
  /// The same, and between sending and the first wait it calls `meanwhile`: for what can be done
  /// while messages are on the way, such as to read what came a step before and is passed on now.
  void step(std::span<const Payload> payloads, ReceiveProvider& provider,
            const OnArrival& on_arrival, const FunctionView<void()>& meanwhile);

  /// One piece of each message of a step, as a message of its own.
  struct Piece {
    std::span<const Payload> payloads;
    ReceiveProvider& provider;
    OnArrival on_arrival;
  };
  /// The pattern's next step where each message crosses in two pieces. Both are on their way before
  /// anything is waited for, all heads ahead of all bodies: what is worked out once all heads are
  /// there hides behind the bodies' way. Every head is told of before the first body.
  /// @pre a phase that nobody refuses early: a gather
  void step(const Piece& head, const Piece& body);

  /// The network's own all-reduce; the round's steps are behind. As Transport has it.
  void all_reduce(DType dtype, std::span<std::byte> elements);

  /// Ends a round: its pattern has been walked to the end.
  void next_round();

  /// Whether this worker can still refuse: no step was left in the middle, and nothing was posted
  /// in this phase yet, or refusals may be late.
  bool can_refuse() const {
    return !is_inside_step_ && (agreed_.late_refusals || (round_.index == 0 && at_ == 0));
  }
  /// Messages of a step of the pattern to each of its workers: 1, or 2 where it is in pieces.
  using PiecesOf = FunctionView<std::size_t(Round round, std::size_t step)>;
  /// Walks what is left of all rounds with refusals in place of payloads, so that other workers
  /// learn: all of them, where nothing was posted yet.
  /// @throws CorruptDataError for a payload larger than Agreed::most_payload
  void refuse(Rank peer, const std::string& reason, const PiecesOf& pieces_of);

  /// Says of payloads that were posted as values alone how many of their bytes are indices.
  void count_index_bytes(std::int64_t bytes) { index_bytes_sent_ += bytes; }
  std::int64_t index_bytes_sent() const { return index_bytes_sent_; }

 private:
  struct Group {
    std::span<const Rank> members;
    Rank own;
  };

  /// The number of a worker as on_arrival is told.
  Rank told(Rank worker) const;
  /// @param arriving  whether messages are on their way afterwards
  template <typename Call>
  auto in_transport(bool arriving, Call&& call);
  void walk(const Step& step, std::uint32_t flags, std::span<const Piece* const> pieces,
            const FunctionView<void()>& meanwhile);

  Transport& transport_;
  Context context_;
  Agreed agreed_;
  std::uint64_t& sequence_;
  const Pattern& pattern_;
  Round round_;
  std::optional<Group> group_;
  Clock::duration deadline_;
  std::size_t at_ = 0;  // the pattern's next step
  // Whether messages of a step, or an all-reduce, are on their way: to leave it then is to be out
  // of step with the others.
  bool is_inside_step_ = false;
  std::exception_ptr out_of_memory_;  // in the middle of a step; null if there is none
  ExchangeWorkspace& workspace_;
  std::int64_t index_bytes_sent_ = 0;
};

}  // namespace sparsesync
