#include "sparsesync/transports/ucx.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>  // NOLINT(misc-include-cleaner): IFF_LOOPBACK
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/transport/packets/endpoint_transport.h"
#include "engine/transport/process_watch.h"
#include "engine/transport/ucx/context.h"
#include "engine/transport/ucx/driver.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

using nlohmann::json;

/// Time beyond the deadline in which workers agree on who did not connect.
constexpr std::chrono::milliseconds kAgreement{1000};

/// Facts about a worker that it sends to the others before they connect.
struct Card {
  std::string error;    // why it cannot connect; empty: it can
  std::string version;  // of UCX: "1.13"
  std::string machine;  // the same text on all workers of a machine
  std::string place;    // where it runs, for messages
  ProcessName process;
  std::uint64_t job = 0;
  Chunks chunks;
  std::string address;  // of its UCX worker
};

std::string to_text(const Card& card) {
  const std::vector<std::uint8_t> bytes =
      json::to_cbor(json{{"error", card.error},
                         {"version", card.version},
                         {"machine", card.machine},
                         {"place", card.place},
                         {"processes", card.process.machine},
                         {"process", card.process.process},
                         {"job", card.job},
                         {"bytes", card.chunks.bytes},
                         {"window", card.chunks.window},
                         {"address", json::binary({card.address.begin(), card.address.end()})}});
  return {bytes.begin(), bytes.end()};
}

/// @throws ProtocolError if the text is not from to_text()
Card from_text(const std::string& text, Rank worker) {
  try {
    const json read = json::from_cbor(text);
    const json::binary_t& address = read.at("address").get_binary();
    return {read.at("error"),
            read.at("version"),
            read.at("machine"),
            read.at("place"),
            {read.at("processes"), read.at("process")},
            read.at("job"),
            {read.at("bytes"), read.at("window")},
            {address.begin(), address.end()}};
  } catch (const json::exception&) {
    throw ProtocolError(
        fmt::format("worker {} sent something else than its UCX address", worker.value));
  }
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

/// Returns a text that identifies this machine. Containers with names of their own count as
/// machines.
std::string this_machine() {
  return host_name() + " " + boot_id();
}

/// Returns the host's name and its IPv4 addresses: "node3 (10.1.0.3)".
/// @param interfaces  names separated by commas; empty: all
std::string this_place(const std::string& interfaces) {
  const std::string among = "," + interfaces + ",";
  std::vector<std::string> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
      if ((each->ifa_flags & IFF_LOOPBACK) != 0) continue;
      if (!interfaces.empty() &&
          among.find(fmt::format(",{},", each->ifa_name)) == std::string::npos) {
        continue;
      }
      std::array<char, INET_ADDRSTRLEN> text{};
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr,
                text.data(), text.size());
      addresses.emplace_back(text.data());
    }
    freeifaddrs(all);
  }
  if (addresses.empty()) return host_name();
  return fmt::format("{} ({})", host_name(), fmt::join(addresses, ", "));
}

std::uint64_t random_number() {
  // Not std::random_device: a wheel that contains it would need glibc 2.36.
  std::uint64_t number = 0;
  if (getentropy(&number, sizeof(number)) != 0) {
    throw Error("the system has no random numbers: getentropy() failed");
  }
  return number;
}

/// Returns the numbers of the workers' machines: the lowest rank of each.
std::vector<int> nodes_of(const std::vector<Card>& cards) {
  std::vector<int> nodes;
  for (const Card& card : cards) {
    const auto first = std::find_if(cards.begin(), cards.end(), [&](const Card& other) {
      return other.machine == card.machine;
    });
    nodes.push_back(static_cast<int>(first - cards.begin()));
  }
  return nodes;
}

/// @throws Error naming a worker that cannot use UCX
/// @throws AgreementError if workers have different versions or chunks
void expect_agreement(const std::vector<Card>& cards) {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].error.empty()) continue;
    throw Error(
        fmt::format("worker {} cannot connect over UCX: {}", rank, printable(cards[rank].error)));
  }
  const Card& first = cards.front();
  for (std::size_t rank = 1; rank < cards.size(); ++rank) {
    const Card& card = cards[rank];
    if (card.version != first.version) {
      throw AgreementError(fmt::format(
          "worker 0 has UCX {} and worker {} has UCX {}, which cannot connect: install the same "
          "version on all machines",
          first.version, rank, printable(card.version)));
    }
    if (card.chunks.bytes != first.chunks.bytes || card.chunks.window != first.chunks.window) {
      throw AgreementError(fmt::format(
          "worker 0 sends {} chunks of {} bytes and worker {} sends {} of {}: give all workers the "
          "same chunks and window",
          first.chunks.window, first.chunks.bytes, rank, card.chunks.window, card.chunks.bytes));
    }
  }
}

/// Throws that some peers do not answer.
[[noreturn]] void throw_silent(const std::vector<Rank>& silent, const std::vector<Card>& cards,
                               std::chrono::milliseconds deadline) {
  std::vector<std::string> texts;
  for (const Rank peer : silent) {
    texts.push_back(
        fmt::format("worker {} at {}", peer.value, printable(cards[peer.index()].place)));
  }
  throw DeadlineError(
      fmt::format("no answer over UCX within {} s from {}: check that firewalls let the workers' "
                  "connections through, or limit their ports by UCX_TCP_PORT_RANGE",
                  static_cast<double>(deadline.count()) / 1000, fmt::join(texts, " and ")));
}

/// Gathers whether all workers have succeeded.
/// @throws Error naming a worker that failed
void agree_on_success(Rendezvous& rendezvous, const std::string& error, Clock::time_point until) {
  const std::vector<std::string> errors = rendezvous.all_gather(error, until);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    throw Error(
        fmt::format("worker {} did not connect over UCX: {}", rank, printable(errors[rank])));
  }
}

/// A worker's endpoint, with the thread that drives it, and the network that serves the native
/// all-reduce, if there is one.
class UcxTransport : public packets::EndpointTransport {
 public:
  UcxTransport(std::shared_ptr<packets::Endpoint> endpoint, std::unique_ptr<ucx::Driver> driver,
               std::unique_ptr<Transport> words)
      : EndpointTransport(std::move(endpoint)),
        words_(std::move(words)),
        driver_(std::move(driver)) {}

  bool has_all_reduce() const override { return words_ != nullptr && words_->has_all_reduce(); }
  void all_reduce(const Context& context, DType dtype, std::span<std::byte> elements,
                  Clock::time_point until) override {
    if (!has_all_reduce()) return EndpointTransport::all_reduce(context, dtype, elements, until);
    words_->all_reduce(context, dtype, elements, until);
  }
  void abort(const std::string& reason) noexcept override {
    EndpointTransport::abort(reason);
    if (words_ != nullptr) words_->abort(reason);
  }
  TransportCounters counters() const override {
    TransportCounters all = EndpointTransport::counters();
    if (words_ != nullptr) all += words_->counters() - before_;
    return all;
  }

 private:
  std::unique_ptr<Transport> words_;
  const TransportCounters before_ = words_ == nullptr ? TransportCounters{} : words_->counters();
  std::unique_ptr<ucx::Driver> driver_;
};

/// Connects the workers of a rendezvous.
/// @param words  the network that serves the native all-reduce; may be null
std::unique_ptr<Transport> connected(Rendezvous& rendezvous, const UcxOptions& options,
                                     std::unique_ptr<Transport> words) {
  const Clock::time_point until = Clock::now() + options.deadline;
  Card own;
  own.machine = this_machine();
  own.process = ProcessName::own();
  own.job = random_number();
  own.chunks = options.chunks;
  std::unique_ptr<ucx::Context> context;
  packets::PacketOptions packets;
  std::exception_ptr failure;
  try {
    packets = packets::PacketOptions::of(options.chunks);
    context =
        std::make_unique<ucx::Context>(ucx::ContextOptions{options.interfaces, options.transports});
    own.place = this_place(context->interfaces());
    own.address = context->address();
    own.version = fmt::format("{}.{}", ucx::version().major, ucx::version().minor);
  } catch (const Error& error) {
    failure = std::current_exception();
    own.error = error.what();
  }
  const std::vector<std::string> texts = rendezvous.all_gather(to_text(own), until);
  if (failure) std::rethrow_exception(failure);
  std::vector<Card> cards;
  std::vector<std::string> addresses;
  std::vector<ProcessName> processes;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    cards.push_back(from_text(texts[rank], Rank{static_cast<int>(rank)}));
    addresses.push_back(cards.back().address);
    processes.push_back(cards.back().process);
  }
  expect_agreement(cards);

  const Rank rank = rendezvous.rank();
  std::unique_ptr<ucx::Driver> driver;
  std::shared_ptr<packets::Endpoint> endpoint;
  try {
    auto link = std::make_unique<ucx::Link>(std::move(context), cards.front().job, rank,
                                            std::move(addresses));
    driver = std::make_unique<ucx::Driver>(std::move(link), rank, nodes_of(cards),
                                           std::move(processes), packets, until, options.deadline);
    auto [connected, silent] = driver->connect();
    if (!silent.empty()) throw_silent(silent, cards, options.deadline);
    endpoint = std::move(connected);
  } catch (const Error& error) {
    failure = std::current_exception();
    own.error = error.what();
  }
  try {
    agree_on_success(rendezvous, own.error, until + kAgreement);
  } catch (const Error&) {
    if (!failure) throw;  // otherwise this worker's own error says more
  }
  if (failure) std::rethrow_exception(failure);
  return std::make_unique<UcxTransport>(std::move(endpoint), std::move(driver), std::move(words));
}

}  // namespace

std::unique_ptr<Transport> ucx_over(Rendezvous& rendezvous, const UcxOptions& options) {
  return connected(rendezvous, options, nullptr);
}

std::unique_ptr<Transport> ucx_over(std::unique_ptr<Transport> words, const UcxOptions& options) {
  const std::unique_ptr<Rendezvous> rendezvous = rendezvous_over(*words);
  return connected(*rendezvous, options, std::move(words));
}

std::unique_ptr<Transport> join(const std::string& address, Rank rank, int size,
                                const UcxOptions& options) {
  const std::unique_ptr<Rendezvous> rendezvous = meet_at(address, rank, size, options.deadline);
  return ucx_over(*rendezvous, options);
}

std::string why_no_ucx() {
  return ucx::why_no_ucx();
}

std::string ucx_text() {
  const std::string reason = ucx::why_no_ucx();
  return reason.empty() ? ucx::version_text() : fmt::format("({})", reason);
}

}  // namespace sparsesync
