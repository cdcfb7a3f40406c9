#include "analysis/launcher.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "engine/session/bucket_agreement.h"
#include "kernels/base/printable.h"
#include "sparsesync/rendezvous.h"
#include "sparsesync/transports/mpi.h"
#include "sparsesync/transports/ucx.h"

namespace sparsesync {
namespace {

// First character of a process's report in Workers::together().
constexpr char kDone = '.';
constexpr char kBadInput = 'i';
constexpr char kFailed = 'f';

// Variables of a MeetingPoint.
constexpr const char* kRank = "SPARSESYNC_RANK";
constexpr const char* kSize = "SPARSESYNC_SIZE";
constexpr const char* kAddress = "SPARSESYNC_ADDRESS";

std::string from_environment(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

/// Reads a number of a MeetingPoint.
int number_from_environment(const char* name, int minimum, int maximum) {
  const std::string text = from_environment(name);
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end || number < minimum || number > maximum) {
    throw InputError(fmt::format("{} is {}: set it to a number from {} to {}", name,
                                 in_quotes(text), minimum, maximum));
  }
  return number;
}

/// Connects the processes of a meeting point.
std::unique_ptr<Workers> met_workers(const MeetingPoint& point, const UcxOptions& options) {
  const std::shared_ptr<Rendezvous> rendezvous =
      meet_at(point.address, point.rank, point.size, options.deadline);
  auto control = ucx_over(*rendezvous, {.deadline = options.deadline});
  return std::make_unique<ProcessWorkers>(
      nullptr, std::move(control),
      [rendezvous, options](Transport&) { return ucx_over(*rendezvous, options); }, false,
      options.deadline);
}

}  // namespace

void Workers::together(const std::function<void()>& work) {
  std::string said(1, kDone);
  std::exception_ptr error;
  try {
    work();
  } catch (const InputError& bad) {
    error = std::current_exception();
    said = kBadInput + std::string(bad.what());
  } catch (const std::exception& failed) {
    error = std::current_exception();
    said = kFailed + std::string(failed.what());
  }
  const std::vector<std::string> all = all_gather(said);
  if (error) std::rethrow_exception(error);
  for (std::size_t process = 0; process < all.size(); ++process) {
    if (all[process] == said) continue;
    const std::string text = fmt::format("worker {}: {}", process, all[process].substr(1));
    if (all[process].front() == kBadInput) throw InputError(text);
    throw Error(text);
  }
}

std::vector<Rank> LocalWorkers::here() const {
  std::vector<Rank> all;
  for (const Rank rank : Ranks(size_)) all.push_back(rank);
  return all;
}

std::vector<std::unique_ptr<Transport>> LocalWorkers::connect() {
  network_ = std::make_unique<LocalNetwork>(size_, link_, per_node_);
  std::vector<std::unique_ptr<Transport>> ends;
  for (const Rank rank : here()) ends.push_back(network_->join(rank));
  return ends;
}

ProcessWorkers::ProcessWorkers(std::shared_ptr<MpiWorld> world, std::unique_ptr<Transport> control,
                               Connect connect, bool has_all_reduce,
                               std::chrono::milliseconds deadline)
    : world_(std::move(world)),
      connect_(std::move(connect)),
      has_all_reduce_(has_all_reduce),
      control_(std::move(control)),
      channel_(*control_, Context(memory_), deadline) {}

int ProcessWorkers::on_this_machine() const {
  int workers = 0;
  for (const Rank rank : Ranks(size())) {
    if (control_->node(rank) == control_->node(control_->rank())) ++workers;
  }
  return workers;
}

int ProcessWorkers::per_node() const {
  return workers_of_a_node(*control_);
}

std::vector<std::unique_ptr<Transport>> ProcessWorkers::connect() {
  std::vector<std::unique_ptr<Transport>> ends;
  ends.push_back(connect_(*control_));
  return ends;
}

std::vector<std::string> ProcessWorkers::all_gather(const std::string& own) {
  return channel_.all_gather(own);
}

void ProcessWorkers::agree(const std::string& subject, const ControlChannel::Statement& own) {
  channel_.agree(subject, own);
}

std::unique_ptr<Workers> workers_over_mpi(std::chrono::milliseconds deadline, Chunks chunks) {
  const auto world = std::make_shared<MpiWorld>(MpiOptions{.deadline = deadline});
  return std::make_unique<ProcessWorkers>(
      world, world->join(),
      [world = world.get(), chunks](Transport&) { return world->join(chunks); }, true, deadline);
}

std::string free_address() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool found =
      probe >= 0 && bind(probe, generic, size) == 0 && getsockname(probe, generic, &size) == 0;
  const int error = errno;
  if (probe >= 0) close(probe);
  if (!found) {
    throw IoError(fmt::format("cannot find a free port at 127.0.0.1: {}",
                              std::generic_category().message(error)));
  }
  return fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
}

void set_meeting_point(const MeetingPoint& point) {
  const std::array<std::pair<const char*, std::string>, 3> variables{
      {{kRank, fmt::format("{}", point.rank.value)},
       {kSize, fmt::format("{}", point.size)},
       {kAddress, point.address}}};
  for (const auto& [name, value] : variables) {
    setenv(name, value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): no other thread runs
  }
}

std::optional<MeetingPoint> meeting_point() {
  std::string given;
  std::string missing;
  for (const char* name : {kRank, kSize, kAddress}) {
    (from_environment(name).empty() ? missing : given) += fmt::format(" {}", name);
  }
  if (given.empty()) return std::nullopt;
  if (!missing.empty()) {
    throw InputError(
        fmt::format("the environment has{}, but not{}: set all of them or none", given, missing));
  }
  constexpr int kMostProcesses = 1 << 16;
  const int size = number_from_environment(kSize, 1, kMostProcesses);
  return MeetingPoint{from_environment(kAddress), Rank{number_from_environment(kRank, 0, size - 1)},
                      size};
}

std::unique_ptr<Workers> workers_over_ucx(std::chrono::milliseconds deadline, Chunks chunks) {
  const UcxOptions options{.chunks = chunks, .deadline = deadline};
  if (const std::optional<MeetingPoint> point = meeting_point()) {
    return met_workers(*point, options);
  }
  if (!has_mpi()) {
    throw InputError("--transport ucx needs several processes: start them with sparsesync launch");
  }
  const auto world = std::make_shared<MpiWorld>(MpiOptions{.deadline = deadline});
  auto workers = std::make_unique<ProcessWorkers>(
      world, world->join(),
      [options](Transport& control) { return ucx_over(*rendezvous_over(control), options); }, false,
      deadline);
  workers->together([] {
    if (const std::string reason = why_no_ucx(); !reason.empty()) throw Error(reason);
  });
  return workers;
}

}  // namespace sparsesync
