// ctest: NEEDS UCX
// UCX as loaded at run time, and a context with a worker.
#include "engine/transport/ucx/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>

#include "engine/transport/ucx/context.h"
#include "tests/support/scratch.h"

namespace sparsesync::testing {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::Test;

constexpr std::chrono::seconds kDeadline{20};
constexpr const char* kInstall =
    "install the Debian package libucx0, or run `pip install libucx-cu12` and set "
    "SPARSESYNC_UCX_LIBRARY to its folder libucx/lib";

// NOLINTBEGIN(concurrency-mt-unsafe): tests change the environment while there is one thread

/// Sets a variable of the environment until the end of a scope.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

// ---- Loading. A process loads UCX once, so each of these tests runs in a new process: an exit
// test in the style "threadsafe" starts the program again.

class UcxLoading : public Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  /// Returns the path of a fake library: the folder `name`.
  static fs::path fake(const std::string& name) {
    const char* const folder = std::getenv("SPARSESYNC_FAKE_UCX");
    return fs::path(folder == nullptr ? "" : folder) / name;
  }

  /// Prints why UCX at `path` is unusable as "[reason]", and exits.
  [[noreturn]] static void print_failure(const fs::path& path) {
    setenv("SPARSESYNC_UCX_LIBRARY", path.c_str(), 1);
    const std::string why = ucx::why_no_ucx();
    EXPECT_EQ(error_of<Error>([] { ucx::library(); }), why);
    std::fprintf(stderr, "[%s]", why.c_str());
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  }
};

TEST_F(UcxLoading, RejectsAnOldVersion) {
  EXPECT_EXIT(print_failure(fake("old")), ExitedWithCode(0),
              HasSubstr(std::string("[UCX 1.9.0 is installed, but sparsesync needs 1.13 or a later "
                                    "1.x: ") +
                        kInstall + "]"));
}

TEST_F(UcxLoading, NamesAMissingFunction) {
  EXPECT_EXIT(print_failure(fake("incomplete") / "libucp.so.0"), ExitedWithCode(0),
              HasSubstr(std::string("[the installed UCX has no function ucp_get_version_string: ") +
                        kInstall + "]"));
}

TEST_F(UcxLoading, NamesTheVariableOfAMissingFile) {
  EXPECT_EXIT(print_failure("/nonexistent/libucp.so.0"), ExitedWithCode(0),
              HasSubstr("[cannot load UCX from SPARSESYNC_UCX_LIBRARY '/nonexistent/libucp.so.0' "
                        "(/nonexistent/libucp.so.0: cannot open shared object file: No such file "
                        "or directory): set it to libucp.so.0 or to the folder of this file, or "
                        "unset it]"));
}

TEST_F(UcxLoading, SaysHowToInstallUcx) {
  // An empty file hides the system's library.
  const Scratch scratch;
  write_all(scratch / "libucp.so.0", "");
  const Variable path("LD_LIBRARY_PATH", scratch.path());
  EXPECT_EXIT(print_failure(""), ExitedWithCode(0),
              AllOf(HasSubstr("[cannot load UCX (/"),
                    HasSubstr(std::string("libucp.so.0: file too short): ") + kInstall + "]")));
}

TEST_F(UcxLoading, NamesAMissingSetting) {
  const auto create = [] {
    setenv("SPARSESYNC_UCX_LIBRARY", fake("without_settings").c_str(), 1);
    const std::string why = error_of<Error>([] { const ucx::Context context({}); });
    std::fprintf(stderr, "[%s]", why.c_str());
    std::exit(0);
  };
  EXPECT_EXIT(create(), ExitedWithCode(0),
              HasSubstr("[UCX 1.99.0 has no setting TCP_CONN_NB: install UCX 1.13 to 1.22]"));
}

/// Returns the first bytes of mmap(), which UCX would overwrite.
std::string code_of_mmap() {
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), dlsym(RTLD_DEFAULT, "mmap"), bytes.size());
  return bytes;
}

/// Returns the handlers of all signals.
std::vector<sighandler_t> signal_handlers() {
  std::vector<sighandler_t> handlers;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    handlers.push_back(sigaction(signal, nullptr, &action) == 0 ? action.sa_handler : SIG_DFL);
  }
  return handlers;
}

/// Returns the environment.
std::vector<std::string> variables() {
  std::vector<std::string> all;
  for (char** each = environ; *each != nullptr; ++each) all.emplace_back(*each);
  return all;
}

/// Loads UCX, creates a context, and exits with status 0 if the process is otherwise unchanged.
[[noreturn]] void load_and_compare() {
  signal(SIGHUP, [](int) {});
  signal(SIGSEGV, [](int) {});
  const auto handlers = signal_handlers();
  const auto environment = variables();
  const auto code = code_of_mmap();
  if (ucx::why_no_ucx().empty()) {
    const ucx::Context context({});
  }
  EXPECT_EQ(signal_handlers(), handlers);
  EXPECT_EQ(variables(), environment);
  EXPECT_TRUE(code_of_mmap() == code);
  std::exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST_F(UcxLoading, ChangesNothingInTheProcess) {
  EXPECT_EXIT(load_and_compare(), ExitedWithCode(0), "");
}

// ---- With UCX.

class Ucx : public Test {
 protected:
  void SetUp() override {
    if (const std::string why = ucx::why_no_ucx(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(Ucx, ReportsItsVersion) {
  const ucx::Version version = ucx::version();
  EXPECT_EQ(version.major, 1U);
  EXPECT_GE(version.minor, 13U);
  EXPECT_THAT(ucx::version_text(), StartsWith(std::to_string(version.major) + "." +
                                              std::to_string(version.minor) + "."));
  EXPECT_NE(ucx::library().get_version, nullptr);
}

TEST_F(Ucx, NamesTheFailedCall) {
  EXPECT_NO_THROW(ucx::check(UCS_OK, "ucp_ep_create"));
  EXPECT_NO_THROW(ucx::check(UCS_INPROGRESS, "ucp_ep_create"));
  EXPECT_EQ(error_of<Error>([] { ucx::check(UCS_ERR_UNREACHABLE, "ucp_ep_create"); }),
            "ucp_ep_create of UCX " + ucx::version_text() +
                " failed: Destination is unreachable; set UCX_LOG_LEVEL=info to see why");
}

/// Counts the entries of a folder.
std::ptrdiff_t entries(const char* folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST_F(Ucx, AContextLeavesNothingBehind) {
  { const ucx::Context first({}); }
  const auto descriptors = entries("/proc/self/fd");
  const auto threads = entries("/proc/self/task");
  for (int round = 0; round < 50; ++round) {
    const ucx::Context context({});
    ASSERT_NE(context.worker(), nullptr);
    ASSERT_FALSE(context.address().empty());
  }
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries("/proc/self/task"), threads);
}

TEST_F(Ucx, ProgramsDoNotInheritTheEventDescriptor) {
  const ucx::Context context({});
  EXPECT_EQ(fcntl(context.event_descriptor(), F_GETFD), FD_CLOEXEC);
}

/// Returns a TCP port that is free on all addresses.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(socket);
  return ntohs(address.sin_port);
}

TEST_F(Ucx, NamesAPortRangeThatIsInUse) {
  const std::string range = std::to_string(free_port());
  const Variable ports("UCX_TCP_PORT_RANGE", range + "-" + range);
  const ucx::Context first({.transports = "tcp"});
  EXPECT_EQ(error_of<Error>([] { const ucx::Context second({.transports = "tcp"}); }),
            "all TCP ports of UCX_TCP_PORT_RANGE '" + range + "-" + range +
                "' are in use: widen the range or unset it");
}

// ---- Messages.

/// One direction between two contexts: an endpoint of the sender, and what arrived.
class Connection {
 public:
  explicit Connection(const std::string& transports)
      : sender_({.transports = transports}), receiver_({.transports = transports}) {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kId;
    handler.arg = &received_;
    handler.cb = [](void* received, const void*, std::size_t, void* data, std::size_t size,
                    const ucp_am_recv_param_t*) {
      static_cast<std::string*>(received)->assign(static_cast<const char*>(data), size);
      return UCS_OK;
    };
    ucx::check(ucx::library().worker_set_am_recv_handler(receiver_.worker(), &handler),
               "ucp_worker_set_am_recv_handler");
    // With this error mode, shared memory needs MM_ERROR_HANDLING.
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(receiver_.address().data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    ucx::check(ucx::library().ep_create(sender_.worker(), &params, &endpoint_), "ucp_ep_create");
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    const ucp_request_param_t params{};
    complete(ucx::library().ep_close_nbx(endpoint_, &params));
  }

  /// Returns the text that arrives.
  std::string send(const std::string& text) {
    const ucp_request_param_t params{};
    complete(
        ucx::library().am_send_nbx(endpoint_, kId, nullptr, 0, text.data(), text.size(), &params));
    progress_until([&] { return !received_.empty(); });
    return received_;
  }

  /// Whether a message makes the receiver's event descriptor readable.
  bool wakes_the_receiver() {
    // A worker that arms before its progress has ended can miss an event (UCX 1.13, shared memory).
    progress_until([&] {
      return ucx::library().worker_progress(receiver_.worker()) == 0 &&
             ucx::library().worker_arm(receiver_.worker()) == UCS_OK;
    });
    const ucp_request_param_t params{};
    const char text[] = "wake";
    ucs_status_ptr_t request =
        ucx::library().am_send_nbx(endpoint_, kId, nullptr, 0, text, sizeof(text), &params);
    pollfd waiting{.fd = receiver_.event_descriptor(), .events = POLLIN, .revents = 0};
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (poll(&waiting, 1, 1) == 0 && std::chrono::steady_clock::now() < end) {
      ucx::library().worker_progress(sender_.worker());
    }
    complete(request);
    return (waiting.revents & POLLIN) != 0;
  }

 private:
  static constexpr unsigned kId = 7;

  template <typename Condition>
  void progress_until(const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "nothing arrived";
      ucx::library().worker_progress(sender_.worker());
      ucx::library().worker_progress(receiver_.worker());
    }
  }

  /// Waits for a request, which is null if it is already complete.
  void complete(ucs_status_ptr_t request) {
    if (request == nullptr) return;
    ASSERT_FALSE(UCS_PTR_IS_ERR(request)) << ucx::library().status_string(UCS_PTR_STATUS(request));
    ucs_status_t status = UCS_INPROGRESS;
    progress_until([&] {
      status = ucx::library().request_check_status(request);
      return status != UCS_INPROGRESS;
    });
    EXPECT_EQ(status, UCS_OK);
    ucx::library().request_free(request);
  }

  ucx::Context sender_;
  ucx::Context receiver_;
  std::string received_;
  ucp_ep_h endpoint_ = nullptr;
};

TEST_F(Ucx, SendsAnActiveMessageOverTcp) {
  Connection connection("tcp");
  EXPECT_EQ(connection.send("over tcp"), "over tcp");
  EXPECT_TRUE(connection.wakes_the_receiver());
}

TEST_F(Ucx, SendsAnActiveMessageOverSharedMemory) {
  Connection connection("posix");
  EXPECT_EQ(connection.send("over shared memory"), "over shared memory");
  EXPECT_TRUE(connection.wakes_the_receiver());
}

/// Returns whether this process maps a file of POSIX shared memory.
bool maps_posix_memory() {
  return read_all("/proc/self/maps").find("/ucx_shm_posix") != std::string::npos;
}

TEST_F(Ucx, UsesPosixSharedMemoryOnlyIfAsked) {
  {
    const ucx::Context context({});
    EXPECT_FALSE(maps_posix_memory());
  }
  const ucx::Context context({.transports = "posix,self"});
  EXPECT_TRUE(maps_posix_memory());
}

TEST_F(Ucx, TakesTransportsFromTheEnvironment) {
  const Variable transports("UCX_TLS", "no_such_transport");
  EXPECT_EQ(error_of<Error>([] { const ucx::Context context({}); }),
            "ucp_init of UCX " + ucx::version_text() +
                " failed: No such device; set UCX_LOG_LEVEL=info to see why");
}

// ---- Interfaces.

/// Returns this machine's interfaces as an error message lists them.
std::string interface_list() {
  std::set<std::string> names;
  struct if_nameindex* const all = if_nameindex();
  for (const auto* each = all; each->if_index != 0; ++each) names.insert(each->if_name);
  if_freenameindex(all);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

TEST(UcxInterfaces, TheFirstSourceThatIsNotEmptyWins) {
  EXPECT_EQ(ucx::choose_interfaces(""), "");
  const Variable of_torch("GLOO_SOCKET_IFNAME", "lo");
  EXPECT_EQ(ucx::choose_interfaces(""), "lo");
  const Variable of_ucx("UCX_NET_DEVICES", "all");
  EXPECT_EQ(ucx::choose_interfaces(""), "all");
  EXPECT_EQ(ucx::choose_interfaces("^lo"), "^lo");
}

TEST(UcxInterfaces, AnUnknownInterfaceIsAnInputError) {
  if (fs::exists("/sys/class/infiniband")) GTEST_SKIP() << "expects a machine without InfiniBand";
  const auto expected = [](const std::string& source, const std::string& name) {
    return source + ": this machine has no network interface '" + name + "': choose from " +
           interface_list();
  };
  EXPECT_EQ(error_of<InputError>([] { ucx::choose_interfaces("lo,eth9"); }),
            expected("interfaces", "eth9"));
  EXPECT_EQ(error_of<InputError>([] { ucx::choose_interfaces("^mlx5_0:1"); }),
            expected("interfaces", "mlx5_0:1"));
  EXPECT_EQ(error_of<InputError>([] { ucx::choose_interfaces("lo,"); }),
            expected("interfaces", ""));
  const Variable of_torch("GLOO_SOCKET_IFNAME", "eth8");
  EXPECT_EQ(error_of<InputError>([] { ucx::choose_interfaces(""); }),
            expected("GLOO_SOCKET_IFNAME", "eth8"));
  const Variable of_ucx("UCX_NET_DEVICES", "eth9");
  EXPECT_EQ(error_of<InputError>([] { const ucx::Context context({}); }),
            expected("UCX_NET_DEVICES", "eth9"));
}

// NOLINTEND(concurrency-mt-unsafe)

}  // namespace
}  // namespace sparsesync::testing
