// The workers of a run and the network between them: threads of this process, or processes that
// mpirun started.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/session/control_channel.h"
#include "sparsesync/memory.h"
#include "sparsesync/transport.h"
#include "sparsesync/transports/chunks.h"
#include "sparsesync/transports/local.h"

namespace sparsesync {

class MpiWorld;

/// The workers of a run, as seen by one of its processes. Every process makes the same calls in the
/// same order, except for trivial accessors.
class Workers {
 public:
  virtual ~Workers() = default;

  virtual int size() const = 0;
  /// Returns the workers of this process.
  virtual std::vector<Rank> here() const = 0;
  /// Returns whether the network provides an all-reduce.
  virtual bool has_all_reduce() const { return false; }
  /// Returns the number of workers on this machine, in all processes.
  virtual int on_this_machine() const = 0;
  /// Returns the number of workers per node, for the scheme two_level; 0 if the nodes differ.
  virtual int per_node() const = 0;
  /// Returns whether this process has worker 0, and therefore reads options and prints results.
  bool leads() const { return here().front() == Rank{0}; }

  /// Makes a new network between all workers.
  /// @return the transports of this process's workers, in the order of here()
  /// @throws what the transport throws
  virtual std::vector<std::unique_ptr<Transport>> connect() = 0;

  /// Gathers a text from every process.
  /// @return the texts, by the rank of the process's first worker
  /// @throws what ControlChannel::all_gather() throws
  virtual std::vector<std::string> all_gather(const std::string& own) = 0;
  /// Verifies that all processes make the same statement.
  /// @param subject  text in front of the difference in the error message
  /// @throws AgreementError in all processes, naming what differs and both sides
  virtual void agree(const std::string& subject, const ControlChannel::Statement& own) = 0;

  /// Runs `work` in every process. If it throws in one process, this throws in all.
  /// @throws in a process where `work` threw, the same; elsewhere InputError or Error with that
  ///         worker's message
  void together(const std::function<void()>& work);
};

/// All workers are threads of this process.
class LocalWorkers : public Workers {
 public:
  /// @param link      link of each worker
  /// @param per_node  workers per node that the network reports; 0: all workers are on one node
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
  std::unique_ptr<LocalNetwork> network_;  // made by the last connect()
};

/// Each worker is a process. One network carries control messages while the others come and go.
class ProcessWorkers : public Workers {
 public:
  /// Creates a network between all workers.
  using Connect = std::function<std::unique_ptr<Transport>(Transport& control)>;
  /// @param world           provides `control`, and is destroyed after it; nullptr: nothing to keep
  /// @param control         the network of control messages
  /// @param connect         creates the networks of connect()
  /// @param has_all_reduce  whether these networks provide an all-reduce
  /// @param deadline        timeout of each wait for other processes
  ProcessWorkers(std::shared_ptr<MpiWorld> world, std::unique_ptr<Transport> control,
                 Connect connect, bool has_all_reduce, std::chrono::milliseconds deadline);
  int size() const override { return control_->size(); }
  std::vector<Rank> here() const override { return {control_->rank()}; }
  bool has_all_reduce() const override { return has_all_reduce_; }
  int on_this_machine() const override;
  int per_node() const override;
  std::vector<std::unique_ptr<Transport>> connect() override;
  std::vector<std::string> all_gather(const std::string& own) override;
  void agree(const std::string& subject, const ControlChannel::Statement& own) override;

 private:
  std::shared_ptr<MpiWorld> world_;
  Connect connect_;
  bool has_all_reduce_;
  HostMemory memory_;
  std::unique_ptr<Transport> control_;
  ControlChannel channel_;
};

/// Returns the processes that mpirun started, connected by MPI.
/// @param deadline  timeout of each wait for other processes
/// @throws what MpiWorld throws
std::unique_ptr<Workers> workers_over_mpi(std::chrono::milliseconds deadline, Chunks chunks);

/// The address at which a process meets the others of its run without MPI, and its rank.
struct MeetingPoint {
  std::string address;  // "HOST:PORT", at which rank 0 listens
  Rank rank;            // of this process
  int size;             // number of processes
};
/// Returns an address of this machine at which no program listens.
/// @throws IoError if there is none
std::string free_address();
/// Writes the meeting point to the environment. No other thread may run.
void set_meeting_point(const MeetingPoint& point);
/// Reads the meeting point from the environment.
/// @return nothing if none of the variables is set
/// @throws InputError if one of the variables is missing or invalid
std::optional<MeetingPoint> meeting_point();

/// Returns processes that are connected by UCX: those of meeting_point() if it is set, otherwise
/// those that mpirun started. MPI then carries control messages.
/// @param deadline  timeout of each wait for other processes
/// @throws what meeting_point(), meet_at(), ucx_over() and MpiWorld throw
std::unique_ptr<Workers> workers_over_ucx(std::chrono::milliseconds deadline, Chunks chunks);

}  // namespace sparsesync
