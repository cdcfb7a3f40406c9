// Runs a body as each of n workers, which are processes of one mpirun. Every process runs the same
// tests; processes beyond n skip a run. Afterwards all processes know the workers' exceptions,
// through a file that all have mapped. MPI cannot transport them, because MPI itself is under test.
#pragma once

#include <gtest/gtest.h>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

#include "sparsesync/transports/mpi.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {

/// Memory that all processes share. The launcher sets the name of its file.
class Board {
 public:
  /// An exception that a worker threw.
  struct Error {
    int kind = 0;  // 0: none
    char text[1020] = {};
  };
  /// The contents of the file.
  struct Content {
    std::atomic<int> arrived;
    std::atomic<int> counter;
    std::array<Error, 16> errors;
    std::array<std::uint64_t, 16> notes;
  };

  Board() {
    const char* path = std::getenv("SPARSESYNC_TEST_BOARD");  // NOLINT(concurrency-mt-unsafe)
    if (path == nullptr)
      throw ContractError("SPARSESYNC_TEST_BOARD: start this by cmake/mpirun.sh");
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(Content)) != 0) throw ContractError("no board");
    void* memory = mmap(nullptr, sizeof(Content), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) throw ContractError("no board");
    content_ = static_cast<Content*>(memory);
  }
  ~Board() { munmap(content_, sizeof(Content)); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  Content& content() { return *content_; }

  /// Waits for all processes. Fails the test if one does not arrive.
  void barrier(int processes) {
    static_assert(std::atomic<int>::is_always_lock_free);
    std::atomic<int>& arrived = content_->arrived;
    const int before = arrived++;
    const int target = (before / processes + 1) * processes;
    // std::atomic::wait() works only within a process. Polling would take a third of the processor
    // time from the processes that still run.
    if (before + 1 == target) syscall(SYS_futex, &arrived, FUTEX_WAKE, processes);
    const timespec second{1, 0};
    const Clock::time_point deadline = Clock::now() + 4 * kDeadline;
    for (int seen = arrived; seen < target; seen = arrived) {
      if (Clock::now() > deadline) {
        std::fprintf(stderr, "a process does not come to the end of a run\n");
        std::_Exit(1);
      }
      syscall(SYS_futex, &arrived, FUTEX_WAIT, seen, &second);
    }
  }

 private:
  Content* content_ = nullptr;
};

/// Exception types that tests check for. Other exceptions arrive as Error.
template <typename... Kinds>
struct ErrorKinds {
  static int number_of(const std::exception_ptr& error) {
    int number = 0;
    const bool known = ((++number, is<Kinds>(error)) || ...);
    return known ? number : number + 1;
  }
  static std::exception_ptr make(int number, const std::string& text) {
    int at = 0;
    std::exception_ptr error = std::make_exception_ptr(sparsesync::Error(text));
    ((++at, error = at == number ? made<Kinds>(text) : error), ...);
    return error;
  }

 private:
  template <typename E>
  static std::exception_ptr made(const std::string& text) {
    if constexpr (std::is_constructible_v<E, std::string>) {
      return std::make_exception_ptr(E(text));
    } else if constexpr (std::is_constructible_v<E, Rank, std::string>) {
      return std::make_exception_ptr(E(Rank{0}, text));
    } else {
      return std::make_exception_ptr(E(0, 0, text));
    }
  }
};
using KnownErrors =
    ErrorKinds<PeerLostError, DeadlineError, AbortedError, ProtocolError, RefusedError,
               AgreementError, BudgetError, InputError, CorruptDataError, OrderError>;

/// The processes of this mpirun, for all tests of a program.
class MpiProcesses {
 public:
  int rank() const { return world_.rank().value; }

  std::vector<std::exception_ptr> run(int size, const WorkersUnderTest::Body& body, Chunks chunks) {
    Board::Content& shared = board_.content();
    board_.barrier(world_.size());
    Board::Error& own = shared.errors.at(static_cast<std::size_t>(rank()));
    own = {};
    if (rank() == 0) shared.counter = 0;
    std::unique_ptr<Transport> transport = world_.join(size, chunks);
    if (transport != nullptr) {
      try {
        body(transport);
      } catch (...) {
        own.kind = KnownErrors::number_of(std::current_exception());
        text_of(std::current_exception()).copy(own.text, sizeof(own.text) - 1);
      }
      transport.reset();
    }
    board_.barrier(world_.size());
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
    for (std::size_t worker = 0; worker < errors.size(); ++worker) {
      const Board::Error& error = shared.errors.at(worker);
      if (error.kind != 0) errors[worker] = KnownErrors::make(error.kind, error.text);
    }
    return errors;
  }

  std::atomic<int>& counter() { return board_.content().counter; }
  std::uint64_t& note(int rank) {
    return board_.content().notes.at(static_cast<std::size_t>(rank));
  }

  /// Returns the only object. It is created on first use and destroyed after the tests.
  static std::unique_ptr<MpiProcesses>& instance() {
    static std::unique_ptr<MpiProcesses> processes;
    return processes;
  }
  static MpiProcesses& get() {
    if (instance() == nullptr) instance() = std::make_unique<MpiProcesses>();
    return *instance();
  }

 private:
  Board board_;
  MpiWorld world_;
};

inline WorkersUnderTest mpi_workers(const std::string& name, Chunks chunks = {}) {
  return {name,
          [chunks](int size, const WorkersUnderTest::Body& body) {
            return MpiProcesses::get().run(size, body, chunks);
          },
          []() -> std::atomic<int>& { return MpiProcesses::get().counter(); },
          [](int rank) -> std::uint64_t& { return MpiProcesses::get().note(rank); }, true};
}

}  // namespace sparsesync::testing
