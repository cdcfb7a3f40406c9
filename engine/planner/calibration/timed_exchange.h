// Measures the time of a group of messages, from posting to the last arrival.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/context.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// One worker's side of timed exchanges. Payloads have no meaning.
class TimedExchange {
 public:
  /// @param deadline  timeout of each exchange
  TimedExchange(Transport& transport, const Context& context, std::chrono::milliseconds deadline)
      : transport_(transport), context_(context), deadline_(deadline) {}

  /// Sends a message to each of `to`, and receives one from each of `from`. A worker may be listed
  /// more than once. Synchronizes the stream.
  /// @param sequence  number in the messages' headers, the same at both ends
  /// @return seconds from posting to the last arrival
  /// @throws what Transport throws, ProtocolError if another size arrives
  double run(std::uint64_t sequence, std::span<const Rank> to, std::int64_t bytes_sent,
             std::span<const Rank> from, std::int64_t bytes_received);

 private:
  /// Receives payloads of one size.
  class Payloads : public ReceiveProvider {
   public:
    void expect(std::size_t messages, std::size_t bytes_each);
    std::byte* provide(std::size_t receive, const Header& header) override;

   private:
    std::size_t each_ = 0;
    std::vector<std::byte> bytes_;
  };

  Transport& transport_;
  Context context_;
  std::chrono::milliseconds deadline_;
  std::vector<std::byte> payload_;
  Payloads payloads_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

}  // namespace sparsesync
