#include "analysis/launcher.h"

#include <fmt/format.h>

#include "engine/session/bucket_agreement.h"

namespace sparsesync {
namespace {

// First character of a process's report in Workers::together().
constexpr char kDone = '.';
constexpr char kBadInput = 'i';
constexpr char kFailed = 'f';

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

MpiWorkers::MpiWorkers(std::chrono::milliseconds deadline, Chunks chunks)
    : chunks_(chunks),
      world_({false, deadline}),
      control_(world_.join()),
      channel_(*control_, Context(memory_), deadline) {}

int MpiWorkers::on_this_machine() const {
  int workers = 0;
  for (const Rank rank : Ranks(size())) {
    if (control_->node(rank) == control_->node(world_.rank())) ++workers;
  }
  return workers;
}

int MpiWorkers::per_node() const {
  return workers_of_a_node(*control_);
}

std::vector<std::unique_ptr<Transport>> MpiWorkers::connect() {
  std::vector<std::unique_ptr<Transport>> ends;
  ends.push_back(world_.join(chunks_));
  return ends;
}

std::vector<std::string> MpiWorkers::all_gather(const std::string& own) {
  return channel_.all_gather(own);
}

void MpiWorkers::agree(const std::string& subject, const ControlChannel::Statement& own) {
  channel_.agree(subject, own);
}

}  // namespace sparsesync
