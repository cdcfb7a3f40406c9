// The workers of a run and what connects them: threads of this process, or processes of an mpirun.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/session/control_channel.h"
#include "sparsesync/memory.h"
#include "sparsesync/transport.h"
#include "sparsesync/transports/local.h"
#include "sparsesync/transports/mpi.h"

namespace sparsesync {

/// Who takes part in a run, as each of its processes sees it. All calls but the trivial ones are
/// made in every process, in the same order.
class Workers {
 public:
  virtual ~Workers() = default;

  virtual int size() const = 0;
  /// The workers of this process.
  virtual std::vector<Rank> here() const = 0;
  /// Whether their network has an all-reduce of its own.
  virtual bool has_all_reduce() const { return false; }
  /// Workers on this machine, in this process or in others.
  virtual int on_this_machine() const = 0;
  /// The workers of a node, as two_level takes them; 0 if nodes are not alike.
  virtual int per_node() const = 0;
  /// Whether this process speaks for the run.
  bool leads() const { return here().front() == Rank{0}; }

  /// Makes a new network between all workers.
  /// @return the ends of those that are here, in the order of here()
  /// @throws what the transport throws that connects them
  virtual std::vector<std::unique_ptr<Transport>> connect() = 0;

  /// Tells all processes, and hears them.
  /// @return what each says, by the rank of its first worker; the own part among them
  /// @throws what ControlChannel::all_gather() throws
  virtual std::vector<std::string> all_gather(const std::string& own) = 0;
  /// Compares what all processes state.
  /// @param subject  stands before the difference in the text
  /// @throws AgreementError in all processes, naming what differs and both sides
  virtual void agree(const std::string& subject, const ControlChannel::Statement& own) = 0;

  /// Runs `work` in every process. If it throws in one, this throws in all.
  /// @throws where `work` threw, that; elsewhere InputError or Error with that worker's text
  void together(const std::function<void()>& work);
};

/// All workers are threads of this process.
class LocalWorkers : public Workers {
 public:
  /// @param link      of each worker
  /// @param per_node  what the network tells of nodes; 0: all workers are on one
  LocalWorkers(int size, LocalLink link, int per_node = 0)
      : size_(size), link_(link), per_node_(per_node > 0 ? per_node : size) {}
  int size() const override { return size_; }
  std::vector<Rank> here() const override;
  int on_this_machine() const override { return size_; }
  int per_node() const override { return size_ % per_node_ == 0 ? per_node_ : 0; }
  std::vector<std::unique_ptr<Transport>> connect() override;
  std::vector<std::string> all_gather(const std::string& own) override { return {own}; }
  void agree(const std::string&, const ControlChannel::Statement&) override {}

 private:
  int size_;
  LocalLink link_;
  int per_node_;
  std::unique_ptr<LocalNetwork> network_;  // the last one
};

/// Each worker is a process.
class MpiWorkers : public Workers {
 public:
  /// @param deadline  of each wait for other processes
  /// @throws what MpiWorld throws
  MpiWorkers(std::chrono::milliseconds deadline, MpiChunks chunks);
  int size() const override { return world_.size(); }
  std::vector<Rank> here() const override { return {world_.rank()}; }
  bool has_all_reduce() const override { return true; }
  int on_this_machine() const override;
  int per_node() const override;
  std::vector<std::unique_ptr<Transport>> connect() override;
  std::vector<std::string> all_gather(const std::string& own) override;
  void agree(const std::string& subject, const ControlChannel::Statement& own) override;

 private:
  MpiChunks chunks_;
  HostMemory memory_;
  MpiWorld world_;
  std::unique_ptr<Transport> control_;
  ControlChannel channel_;
};

}  // namespace sparsesync
