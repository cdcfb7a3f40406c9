// Runs one phase of a bucket on the network: the steps of a scheme's pattern, and the agreement on
// rejections.
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

/// A message's payload, and how many of its bytes encode indices.
struct Payload {
  const std::byte* data = nullptr;
  PayloadBytes bytes{std::int64_t{0}};
  std::int64_t index_bytes = 0;
};

/// Receives each message of a step into its own buffer, and limits the size of messages.
class Inbox : public ReceiveProvider {
 public:
  Inbox(const Context& context, std::size_t places);
  /// Sets the largest valid size of a message. A larger message is an error of the peer.
  void set_limit(std::int64_t bytes) { limit_ = bytes; }
  /// Allocates memory for messages of `bytes` bytes before any message is sent. So a lack of memory
  /// is found while the step can still be rejected. Larger messages may arrive.
  /// @throws BudgetError
  void expect(std::int64_t bytes);
  /// Returns the capacity of all buffers in bytes.
  std::int64_t capacity() const;
  std::byte* provide(std::size_t receive, const Header& header) override;

 private:
  std::vector<Buffer<std::byte>> buffers_;
  std::int64_t limit_ = 0;
};

/// Receives the only message of a step, of known size, directly at its destination.
class InPlace : public ReceiveProvider {
 public:
  InPlace(std::byte* place, Index bytes) : place_(place), bytes_(bytes) {}
  /// @throws ProtocolError if the message has another size
  std::byte* provide(std::size_t receive, const Header& header) override;

 private:
  std::byte* place_;
  Index bytes_;
};

/// Measures the time that a phase spends outside the transport, from each go_on() to the next
/// stop().
class Stopwatch {
 public:
  /// Starts the measurement.
  /// @param arriving  whether the following work is done while messages are in flight
  void go_on(bool arriving) {
    arriving_ = arriving;
    since_ = Clock::now();
  }
  /// Stops the measurement.
  /// @pre go_on() was called since the last stop()
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

/// Pauses a stopwatch, if there is one, during its lifetime.
class StopwatchPause {
 public:
  /// @param stopwatch  may be null
  /// @param arriving   whether messages are in flight afterwards
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

/// Memory that all steps of all exchanges share, so that steps do not allocate. Outlives the
/// transport, because after an error other workers may still read sent data.
struct ExchangeWorkspace {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  /// Received rejections: [piece of a message][index of the receive].
  std::array<std::vector<std::vector<std::byte>>, 2> refusals;
  std::vector<std::byte> own_refusal;
  /// Runs while the phase works outside the transport. Null if no timing is needed.
  Stopwatch* stopwatch = nullptr;
};

/// A scheme's view of the network during a phase.
class Exchange {
 public:
  /// Settings that all workers agreed on for a bucket, and that headers contain.
  struct Agreed {
    std::uint32_t channel = 0;
    std::uint64_t signature = 0;
    /// Largest valid payload in bytes. A header with a larger size is invalid.
    std::uint64_t most_payload = std::numeric_limits<std::uint64_t>::max();
    /// Whether a worker may reject a step after it has sent data. Its peers may then not know by
    /// the end of the phase, so all workers agree on the outcome before any of them uses it.
    bool late_refusals = false;
  };

  /// @param transport  this worker's endpoint
  /// @param context    the context of all payloads
  /// @param agreed     settings of the bucket
  /// @param sequence   number of the channel's next step; advanced by each step
  /// @param pattern    the steps of one round
  /// @param rounds     number of rounds
  /// @param deadline   timeout of each step
  /// @param workspace  used by this exchange only, during its lifetime
  Exchange(Transport& transport, const Context& context, Agreed agreed, std::uint64_t& sequence,
           const Pattern& pattern, int rounds, Clock::duration deadline,
           ExchangeWorkspace& workspace);

  const Context& context() const { return context_; }
  Rank rank() const { return group_ ? group_->own : transport_.rank(); }
  int size() const { return group_ ? static_cast<int>(group_->members.size()) : transport_.size(); }
  Round round() const { return group_ ? Round{} : round_; }

  /// Restricts an exchange to a group of workers during its lifetime. Ranks, the size and the
  /// senders of messages then refer to the group, and there is one round. So a scheme for a few
  /// workers can run a part of the pattern of another scheme.
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
  /// Restricts the exchange to a group.
  /// @param members  the group's workers, increasing; they outlive the returned object
  /// @param own      this worker's rank within the group
  /// @pre the exchange is not restricted already
  Within within(std::span<const Rank> members, Rank own);

  using OnArrival = FunctionView<void(Rank from, std::span<const std::byte> payload)>;
  /// Runs the pattern's next step: sends, and calls `on_arrival` for each received message, in any
  /// order.
  /// @param payloads    one for each worker in the step's `to`, in the same order
  /// @param provider    supplies receive memory, by index in the step's `from`
  /// @param on_arrival  called with the sender and the payload
  /// @throws RefusedError if a worker rejected the step; the errors of Transport
  void step(std::span<const Payload> payloads, ReceiveProvider& provider,
            const OnArrival& on_arrival);
  /// Runs a step, and calls `meanwhile` after sending and before the first wait. Use it for work
  /// that can overlap with communication, such as decoding a message that is being forwarded.
  void step(std::span<const Payload> payloads, ReceiveProvider& provider,
            const OnArrival& on_arrival, const FunctionView<void()>& meanwhile);

  /// One piece of each message of a step, sent as a separate message.
  struct Piece {
    std::span<const Payload> payloads;
    ReceiveProvider& provider;
    OnArrival on_arrival;
  };
  /// Runs the pattern's next step with each message in two pieces. All heads are sent before all
  /// bodies, and both before the first wait. So work that needs only the heads overlaps with the
  /// transfer of the bodies. All heads are received before the first body.
  /// @param head  pieces to receive first
  /// @param body  pieces to receive afterwards
  /// @pre the phase is never rejected early: a gather phase
  void step(const Piece& head, const Piece& body);

  /// Runs the network's native all-reduce, after all steps of the round. See
  /// Transport::all_reduce().
  void all_reduce(DType dtype, std::span<std::byte> elements);

  /// Ends a round, after all steps of its pattern.
  void next_round();

  /// Returns whether this worker can still reject the step: no step was left incomplete, and either
  /// nothing was sent in this phase, or late rejections are allowed.
  bool can_refuse() const {
    return !is_inside_step_ && (agreed_.late_refusals || (round_.index == 0 && at_ == 0));
  }
  /// Returns the number of messages to each worker in a step: 1, or 2 for messages in two pieces.
  using PiecesOf = FunctionView<std::size_t(Round round, std::size_t step)>;
  /// Runs all remaining steps of all rounds with rejections instead of payloads, so that the other
  /// workers are informed. If nothing was sent yet, this informs all of them.
  /// @param peer       the worker that rejected the step first
  /// @param reason     its reason
  /// @param pieces_of  messages to each worker
  /// @throws CorruptDataError for a payload larger than Agreed::most_payload
  void refuse(Rank peer, const std::string& reason, const PiecesOf& pieces_of);

  /// Counts bytes of already sent payloads as index bytes.
  void count_index_bytes(std::int64_t bytes) { index_bytes_sent_ += bytes; }
  std::int64_t index_bytes_sent() const { return index_bytes_sent_; }

 private:
  struct Group {
    std::span<const Rank> members;
    Rank own;
  };

  /// Returns a worker's rank as on_arrival gets it.
  Rank told(Rank worker) const;
  /// Runs a call of the transport with the stopwatch paused.
  /// @param arriving  whether messages are in flight afterwards
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
  std::size_t at_ = 0;  // next step of the pattern
  // Whether a step or an all-reduce is incomplete. Leaving it would put this worker out of step
  // with the others.
  bool is_inside_step_ = false;
  std::exception_ptr out_of_memory_;  // from the middle of a step; null if there was none
  ExchangeWorkspace& workspace_;
  std::int64_t index_bytes_sent_ = 0;
};

}  // namespace sparsesync
