#include "engine/planner/calibration/timed_exchange.h"

#include <fmt/format.h>

namespace sparsesync {

void TimedExchange::Payloads::expect(std::size_t messages, std::size_t bytes_each) {
  each_ = bytes_each;
  bytes_.resize(messages * bytes_each);
}

std::byte* TimedExchange::Payloads::provide(std::size_t receive, const Header& header) {
  if (header.bytes != each_) {
    throw ProtocolError(
        fmt::format("received a probe of {} bytes, expected {}", header.bytes, each_));
  }
  return bytes_.data() + receive * each_;
}

double TimedExchange::run(std::uint64_t sequence, std::span<const Rank> to, std::int64_t bytes_sent,
                          std::span<const Rank> from, std::int64_t bytes_received) {
  constexpr std::uint32_t kChannel = 1;  // any channel except the control channel
  payload_.resize(static_cast<std::size_t>(bytes_sent));
  sends_.clear();
  for (const Rank peer : to) sends_.push_back({peer, payload_.data(), bytes_sent});
  receives_.clear();
  for (const Rank peer : from) receives_.push_back({peer});
  payloads_.expect(from.size(), static_cast<std::size_t>(bytes_received));
  const Clock::time_point begin = Clock::now();
  const Clock::time_point until = begin + deadline_;
  const GroupId group =
      transport_.post(context_, {kChannel, 0, sequence, 0, 0}, sends_, receives_, payloads_);
  while (transport_.next(group, until)) {
  }
  const Clock::time_point end = Clock::now();
  transport_.finish(group, until);
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace sparsesync
