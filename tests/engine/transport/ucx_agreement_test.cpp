// ctest: NEEDS UCX
// Workers over UCX that receive something unexpected while they agree on their connections.
#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "engine/transport/ucx/library.h"
#include "tests/support/ucx_workers.h"

namespace sparsesync::testing {
namespace {

using nlohmann::json;

/// A rendezvous that changes the text that worker 1 sends first.
class Forger : public Rendezvous {
 public:
  using Change = std::function<std::string(const std::string&)>;

  Forger(std::unique_ptr<Rendezvous> real, Change change)
      : real_(std::move(real)), change_(std::move(change)) {}
  Rank rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  std::vector<std::string> all_gather(const std::string& own, Clock::time_point until) override {
    const bool forges = rank() == Rank{1} && std::exchange(is_first_, false);
    return real_->all_gather(forges ? change_(own) : own, until);
  }

 private:
  std::unique_ptr<Rendezvous> real_;
  Change change_;
  bool is_first_ = true;
};

/// Connects two workers, and expects that both throw `E`.
/// @return the message of worker 0
template <typename E>
std::string error_after(const Forger::Change& change) {
  const auto room = std::make_shared<Room>(2);
  std::vector<std::unique_ptr<Transport>> ends(2);
  const auto errors =
      run_in_threads(std::move(ends), [&](std::unique_ptr<Transport>& end, std::size_t rank) {
        Forger forger(Room::door(room, Rank{static_cast<int>(rank)}), change);
        end = ucx_over(forger, {.transports = "tcp,self", .deadline = kDeadline});
      });
  EXPECT_TRUE(errors[0] && is<E>(errors[0]));
  EXPECT_TRUE(errors[1] && is<E>(errors[1]));
  try {
    if (errors[0]) std::rethrow_exception(errors[0]);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Returns a change of one value of a worker's CBOR text.
Forger::Change with(const std::string& name, const json& value) {
  return [=](const std::string& own) {
    json card = json::from_cbor(own);
    EXPECT_TRUE(card.contains(name));
    card[name] = value;
    const std::vector<std::uint8_t> bytes = json::to_cbor(card);
    return std::string(bytes.begin(), bytes.end());
  };
}

class UcxAgreement : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_ucx(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(UcxAgreement, DifferentVersions) {
  const ucx::Version version = ucx::version();
  EXPECT_EQ(
      error_after<AgreementError>(with("version", "1.99\n")),
      "worker 0 has UCX " + std::to_string(version.major) + "." + std::to_string(version.minor) +
          " and worker 1 has UCX 1.99\\x0a, which cannot connect: install the same version on "
          "all machines");
}

TEST_F(UcxAgreement, DifferentWindows) {
  EXPECT_EQ(error_after<AgreementError>(with("window", 15)),
            "worker 0 sends 14 chunks of 16384 bytes and worker 1 sends 15 of 16384: give all "
            "workers the same chunks and window");
}

TEST_F(UcxAgreement, AWorkerThatCannotConnect) {
  EXPECT_EQ(error_after<Error>(with("error", "it is broken")),
            "worker 1 cannot connect over UCX: it is broken");
}

TEST_F(UcxAgreement, SomethingElseThanAnAddress) {
  const std::vector<Forger::Change> changes{
      [](const std::string&) { return ""; },
      [](const std::string&) { return "GET / HTTP/1.1\r\n"; },
      [](const std::string& own) { return own.substr(0, own.size() / 2); },
      [](const std::string& own) { return own + "more"; },
      with("address", "a text"),
      with("version", 1),
      with("job", "1"),
      with("process", "1"),
  };
  for (const Forger::Change& change : changes) {
    EXPECT_EQ(error_after<ProtocolError>(change),
              "worker 1 sent something else than its UCX address");
  }
}

}  // namespace
}  // namespace sparsesync::testing
