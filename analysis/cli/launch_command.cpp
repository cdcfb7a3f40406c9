// `sparsesync launch`: starts the processes of a run on this machine, and ends them together.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/launcher.h"
#include "kernels/base/printable.h"
#include "sparsesync/transport.h"

namespace sparsesync {
namespace {

/// Time for the other workers to report the failure of one, and then to end by SIGTERM.
constexpr std::chrono::seconds kGrace{3};
constexpr std::array kForwarded{SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

struct LaunchArguments {
  int workers = 0;
  std::vector<std::string> command;
};

/// The processes of a launch. They start with the signals that this process had unblocked before.
class Processes {
 public:
  Processes() {
    std::signal(SIGCHLD, SIG_DFL);
    sigemptyset(&waited_);
    sigaddset(&waited_, SIGCHLD);
    for (const int number : kForwarded) {
      struct sigaction action {};
      if (sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) {
        sigaddset(&waited_, number);
      }
    }
    pthread_sigmask(SIG_BLOCK, &waited_, &before_);
  }

  /// @throws InputError if the command cannot be started
  void start(std::vector<std::string> command, const MeetingPoint& point) {
    set_meeting_point(point);  // for the process, which inherits the environment
    std::vector<char*> words;
    for (std::string& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &before_);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    pid_t process = -1;
    const int error =
        posix_spawnp(&process, words.front(), nullptr, &attributes, words.data(), environ);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
      send_all(SIGKILL);
      throw InputError(fmt::format("cannot start {}: {}", in_quotes(command.front()),
                                   std::generic_category().message(error)));
    }
    running_.emplace(process, point.rank);
  }

  /// Waits until all processes have ended. After a failure, ends the others.
  /// @return the first exit status that is not 0; 128 + signal if a signal ended the process
  int wait() {
    int next_signal = SIGTERM;
    std::optional<Clock::time_point> until;  // of the next signal
    while (reap(), !running_.empty()) {
      if (status_ != 0 && !until) until = Clock::now() + kGrace;
      siginfo_t info{};
      constexpr timespec kTick{0, 100'000'000};
      const int number =
          until ? sigtimedwait(&waited_, &info, &kTick) : sigwaitinfo(&waited_, &info);
      // The terminal sends its signals to all processes of the group.
      if (number > 0 && number != SIGCHLD && info.si_code != SI_KERNEL) send_all(number);
      if (!until || Clock::now() < *until) continue;
      send_all(std::exchange(next_signal, SIGKILL));
      until = Clock::now() + kGrace;
    }
    return status_;
  }

 private:
  void send_all(int number) {
    for (const auto& [process, rank] : running_) kill(process, number);
  }

  /// Removes the processes that have ended. Reports the first one that failed.
  void reap() {
    std::erase_if(running_, [&](const auto& process) {
      int ended = 0;
      if (waitpid(process.first, &ended, WNOHANG) == 0) return false;
      if (ended == 0 || status_ != 0) return true;
      const bool killed = WIFSIGNALED(ended);
      status_ = killed ? 128 + WTERMSIG(ended) : WEXITSTATUS(ended);
      const std::string how = killed
                                  ? fmt::format("was ended by SIG{}", sigabbrev_np(WTERMSIG(ended)))
                                  : fmt::format("ended with status {}", status_);
      print(stderr, fmt::format("sparsesync: worker {} {}\n", process.second.value, how));
      return true;
    });
  }

  sigset_t waited_{};
  sigset_t before_{};
  std::map<pid_t, Rank> running_;
  int status_ = 0;
};

}  // namespace

void add_launch_command(CLI::App& app) {
  auto given = std::make_shared<LaunchArguments>();
  CLI::App& command = *app.add_subcommand(
      "launch", "Start the processes of --transport ucx on this machine, without MPI");
  add_count(command, "-n", given->workers, 1, 1024, "Number of processes")->required();
  command.add_option("COMMAND", given->command, "Program and its arguments, after --")
      ->type_name(" ")
      ->required();
  command.footer(
      "The processes find each other through three variables of their environment:\n"
      "SPARSESYNC_RANK, SPARSESYNC_SIZE, and SPARSESYNC_ADDRESS, at which rank 0 listens. Set "
      "them\n"
      "yourself to start processes on several machines. If a process fails, launch ends the "
      "others\n"
      "after 3 s and ends with its status.\n"
      "Example:\n"
      "  sparsesync launch -n 8 -- sparsesync compare TRACE --transport ucx");
  command.callback([given] {
    Processes processes;
    const std::string address = free_address();
    for (const Rank rank : Ranks(given->workers)) {
      processes.start(given->command, {address, rank, given->workers});
    }
    if (const int status = processes.wait(); status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace sparsesync
