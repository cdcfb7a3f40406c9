// A worker over UCX, for tests that cause faults: it connects, runs steps, and leaves.
//
//   engine_ucx_survivor FOLDER ADDRESS RANK SIZE DEADLINE_MS [NAME=VALUE...]
//
// It creates FOLDER/RANK.PHASE when it enters a phase: `start`, `steps`, `idle`, `end`. It writes
// its outcome into FOLDER/RANK.status as JSON. Its exit status is 0 unless it misbehaves.
//
//   transports=, interfaces=, chunk_bytes=   as in UcxOptions
//   kind=messages     steps of groups with messages of up to 8 MB; otherwise a Session's
//   steps=N           leaves after N steps; otherwise it runs until an error
//   idle=N            pauses before step N until FOLDER/continue exists
//   hold=PHASE        pauses at the start of a phase until FOLDER/release exists
//   throw=N           throws an exception before step N
//   fork=N            before step N, forks a child that destroys the endpoint and exits
//   rounds=N          joins and leaves N times
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "engine/support/json.h"
#include "schemes/pattern.h"
#include "sparsesync/transports/ucx.h"
#include "tests/support/gradients.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

namespace fs = std::filesystem;

/// Arguments of the program.
struct Settings {
  fs::path folder;
  std::string address;
  Rank rank;
  int size = 0;
  std::chrono::milliseconds deadline{};
  std::map<std::string, std::string> named;

  /// Returns a named argument, or a default.
  std::string text(const std::string& name) const {
    const auto found = named.find(name);
    return found == named.end() ? "" : found->second;
  }
  int number(const std::string& name, int otherwise) const {
    const std::string value = text(name);
    return value.empty() ? otherwise : std::stoi(value);
  }
  UcxOptions options() const {
    UcxOptions options{
        .interfaces = text("interfaces"), .transports = text("transports"), .deadline = deadline};
    options.chunks.bytes = number("chunk_bytes", static_cast<int>(options.chunks.bytes));
    return options;
  }
};

/// Returns the class of an error.
std::string type_of(const std::exception_ptr& error) {
  if (is<PeerLostError>(error)) return "PeerLostError";
  if (is<DeadlineError>(error)) return "DeadlineError";
  if (is<AbortedError>(error)) return "AbortedError";
  if (is<AgreementError>(error)) return "AgreementError";
  if (is<InputError>(error)) return "InputError";
  if (is<ProtocolError>(error)) return "ProtocolError";
  if (is<Error>(error)) return "Error";
  return "another exception";
}

/// Returns the time in seconds, on a clock that all processes of the machine share.
double seconds() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

std::set<std::string> descriptors() {
  std::set<std::string> open;
  for (const auto& each : fs::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // the descriptor of the iterator
    const fs::path target = fs::read_symlink(each.path(), closed);
    if (!closed && !fs::is_directory(target)) {
      open.insert(each.path().filename().string() + " " + target.string());
    }
  }
  return open;
}

std::ptrdiff_t threads() {
  return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
}

/// One worker's life.
class Survivor {
 public:
  explicit Survivor(Settings settings) : settings_(std::move(settings)) {}

  /// Runs all phases and writes the outcome.
  /// @return whether the process has the descriptors and threads that it started with
  bool run() {
    ucx_is_loaded();
    const auto descriptors_before = descriptors();
    const auto threads_before = threads();
    for (int round = 0; round < settings_.number("rounds", 1); ++round) live();
    outcome_["ending_s"] = seconds() - outcome_.value("known_at", 0.0);
    std::set<std::string> left;
    for (const std::string& each : descriptors()) {
      if (!descriptors_before.contains(each)) left.insert(each);
    }
    outcome_["descriptors"] = left;
    outcome_["threads"] = threads() - threads_before;
    write("status", outcome_.dump());
    return left.empty() && threads() == threads_before;
  }

 private:
  /// Loads UCX and creates what remains in a process until its end.
  void ucx_is_loaded() { outcome_["ucx"] = why_no_ucx(); }

  void live() {
    enter("start");
    outcome_["type"] = "none";
    outcome_["text"] = "";
    try {
      transport_ = join(settings_.address, settings_.rank, settings_.size, settings_.options());
      if (settings_.text("kind") != "messages") {
        session_ = std::make_unique<Session>(std::move(transport_), memory_,
                                             SessionOptions{settings_.deadline, 1});
      }
      work();
    } catch (const std::exception& error) {
      outcome_["type"] = type_of(std::current_exception());
      outcome_["text"] = error.what();
      if (transport_ != nullptr) transport_->abort(error.what());
    }
    outcome_["known_at"] = seconds();
    enter("end");
    leave();
  }

  /// Destroys the session, or the transport.
  void leave() {
    session_ = nullptr;
    transport_ = nullptr;
  }

  void work() {
    const TensorSpec tensor{"t", 100'000, 16, DType::f32};
    const BucketId bucket =
        session_ == nullptr ? BucketId{} : session_->register_bucket({"b", {tensor}, "balanced"});
    Random random(1 + static_cast<std::uint64_t>(settings_.rank.value));
    const int last = settings_.number("steps", -1);
    for (int step = 0; step != last; ++step) {
      if (step == settings_.number("idle", -1)) pause("idle", "continue");
      if (step == settings_.number("throw", -1)) throw std::runtime_error("this worker failed");
      if (step == settings_.number("fork", -1)) fork_child();
      if (step == 2) enter("steps");
      if (session_ == nullptr) {
        exchange(*transport_, step);
        continue;
      }
      static constexpr std::array<int, 4> kRows{1, 100, 5'000, 100'000};
      const OwnedGradient own = random_gradient(
          random, tensor,
          distinct_rows(random, tensor.rows, kRows.at(static_cast<std::size_t>(step) % 4)));
      const std::vector<Gradient> gradients{own.view()};
      session_->wait(session_->submit(bucket, Phase::reduce, gradients));
      session_->wait(session_->submit(bucket, Phase::gather));
    }
  }

  /// Sends a message to every other worker, and receives one from each.
  void exchange(Transport& transport, int step) const {
    static constexpr std::array<std::size_t, 7> kBytes{0,       1,         100,      4'000,
                                                       100'000, 1'000'000, 8'000'000};
    struct Provider : ReceiveProvider {
      std::byte* provide(std::size_t receive, const Header& header) override {
        payloads[receive].resize(header.bytes);
        return payloads[receive].data();
      }
      std::vector<std::vector<std::byte>> payloads;
    };
    const std::vector<std::byte> payload(kBytes.at(static_cast<std::size_t>(step) % 7));
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (const Rank peer : peers_after(transport.rank(), transport.size())) {
      sends.push_back({peer, payload.data(), static_cast<std::int64_t>(payload.size())});
      receives.push_back({peer});
    }
    Provider provider;
    provider.payloads.resize(receives.size());
    const auto until = Clock::now() + settings_.deadline;
    const GroupId group = transport.post(
        own_context(), {1, 0, static_cast<std::uint64_t>(step), 7, 0}, sends, receives, provider);
    while (transport.next(group, until)) {
    }
    transport.finish(group, until);
  }

  /// Forks a child that destroys its copy of the endpoint. Records its end.
  void fork_child() {
    const pid_t child = fork();
    if (child == 0) {
      leave();
      _exit(0);
    }
    int status = 0;
    const auto until = Clock::now() + std::chrono::seconds(20);
    while (waitpid(child, &status, WNOHANG) == 0) {
      if (Clock::now() >= until) {
        kill(child, SIGKILL);
        outcome_["child"] = "hangs";
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    outcome_["child"] = WIFEXITED(status) ? std::to_string(WEXITSTATUS(status)) : "killed";
  }

  void write(const std::string& name, const std::string& text) const {
    const fs::path path = settings_.folder / (std::to_string(settings_.rank.value) + "." + name);
    std::ofstream(path.string() + ".new") << text << '\n';
    fs::rename(path.string() + ".new", path);
  }

  /// Announces a phase.
  void enter(const std::string& phase) const {
    if (settings_.text("hold") == phase) return pause(phase, "release");
    write(phase, std::to_string(getpid()));
  }

  /// Announces a phase, and waits for a file.
  void pause(const std::string& phase, const std::string& file) const {
    write(phase, std::to_string(getpid()));
    while (!fs::exists(settings_.folder / file)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  const Settings settings_;
  Json outcome_;
  HostMemory memory_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Session> session_;
};

Settings settings_of(std::span<char*> arguments) {
  Settings settings{arguments[1],
                    arguments[2],
                    Rank{std::stoi(arguments[3])},
                    std::stoi(arguments[4]),
                    std::chrono::milliseconds(std::stoi(arguments[5])),
                    {}};
  for (const std::string argument : arguments.subspan(6)) {
    const std::size_t equals = argument.find('=');
    settings.named[argument.substr(0, equals)] = argument.substr(equals + 1);
  }
  return settings;
}

}  // namespace
}  // namespace sparsesync::testing

int main(int argc, char** argv) {
  using sparsesync::testing::settings_of;
  using sparsesync::testing::Survivor;
  if (argc < 6) return 2;
  return Survivor(settings_of({argv, static_cast<std::size_t>(argc)})).run() ? 0 : 1;
}
