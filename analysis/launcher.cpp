#include "analysis/launcher.h"

#include <fmt/format.h>

#include <utility>

#include "engine/session/bucket_agreement.h"
#include "sparsesync/rendezvous.h"
#include "sparsesync/transports/mpi.h"
#include "sparsesync/transports/ucx.h"

namespace sparsesync {
namespace {

// First character of a process's report in Workers::together().
constexpr char kDone = '.';
constexpr char kBadInput = 'i';
constexpr char kFailed = 'f';

/// Lets workers meet over their control network, whose deadline applies.
class WorkersRendezvous : public Rendezvous {
 public:
  explicit WorkersRendezvous(Workers& workers) : workers_(workers) {}
  Rank rank() const override { return workers_.here().front(); }
  int size() const override { return workers_.size(); }
  std::vector<std::string> all_gather(const std::string& own, Clock::time_point) override {
    return workers_.all_gather(own);
  }

 private:
  Workers& workers_;
};

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
  ends.push_back(connect_(*this));
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
      world, world->join(), [world = world.get(), chunks](Workers&) { return world->join(chunks); },
      true, deadline);
}

std::unique_ptr<Workers> workers_over_ucx(std::chrono::milliseconds deadline, Chunks chunks) {
  const auto world = std::make_shared<MpiWorld>(MpiOptions{.deadline = deadline});
  const UcxOptions options{.chunks = chunks, .deadline = deadline};
  auto workers = std::make_unique<ProcessWorkers>(
      world, world->join(),
      [options](Workers& all) {
        WorkersRendezvous rendezvous(all);
        return ucx_over(rendezvous, options);
      },
      false, deadline);
  workers->together([] {
    if (const std::string reason = why_no_ucx(); !reason.empty()) throw Error(reason);
  });
  return workers;
}

}  // namespace sparsesync
