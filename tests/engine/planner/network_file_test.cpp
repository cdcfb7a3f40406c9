// NETWORK.json: files are read back with the same bits, and errors name missing or invalid values.
#include "sparsesync/network_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "schemes/cost.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

using Json = nlohmann::json;

const NetworkFile kNetwork{FittedLink{5e-05, 2.5e10 / 3, {4e-05, 6.1e-05}, {8e9, 8.5e9}},
                           FittedLink{1e-06, 1e11, {0, 2e-06}, {9e10, 1.1e11}},
                           {1e-9, 2.5e-10, 2e-9, 1.0 / 3e9, 3e-9, 4e-9, 5e-11, 6e-6, 7e-6}};

void expect_same(const HostCosts& a, const HostCosts& b) {
  for (const HostCost& cost : kHostCosts) EXPECT_EQ(a.*cost.seconds, b.*cost.seconds) << cost.name;
}

void expect_same(const std::optional<FittedLink>& a, const std::optional<FittedLink>& b) {
  ASSERT_EQ(a.has_value(), b.has_value());
  if (!a) return;
  EXPECT_EQ(a->latency_s, b->latency_s);
  EXPECT_EQ(a->rate_bps, b->rate_bps);
  EXPECT_EQ(a->latency_ci.low, b->latency_ci.low);
  EXPECT_EQ(a->latency_ci.high, b->latency_ci.high);
  EXPECT_EQ(a->rate_ci.low, b->rate_ci.low);
  EXPECT_EQ(a->rate_ci.high, b->rate_ci.high);
}

TEST(NetworkFiles, SurviveARoundTrip) {
  const Scratch scratch;
  for (const bool inter : {true, false}) {
    for (const bool intra : {true, false}) {
      NetworkFile network = kNetwork;
      if (!inter) network.inter.reset();
      if (!intra) network.intra.reset();
      write_all(scratch / "n.json", network_json(network, {{"commit", "abc \"\n"}}));
      if (!inter && !intra) {
        EXPECT_THROW(read_network(scratch / "n.json"), InputError);
        continue;
      }
      const NetworkFile read = read_network(scratch / "n.json");
      expect_same(read.inter, network.inter);
      expect_same(read.intra, network.intra);
      expect_same(read.host, network.host);
    }
  }
}

TEST(NetworkFiles, GiveAModelOfTheRequestedLink) {
  const Network between = kNetwork.network();
  EXPECT_EQ(between.rate_bps, kNetwork.inter->rate_bps);
  EXPECT_EQ(between.latency_s, kNetwork.inter->latency_s);
  expect_same(between.host, kNetwork.host);
  EXPECT_EQ(kNetwork.network(false).rate_bps, kNetwork.intra->rate_bps);
  NetworkFile one = kNetwork;
  one.intra.reset();
  EXPECT_EQ(one.network(false).rate_bps, kNetwork.inter->rate_bps);
  one = kNetwork;
  one.inter.reset();
  EXPECT_EQ(one.network().rate_bps, kNetwork.intra->rate_bps);
}

TEST(NetworkFiles, ContainTheLinkUnderLoadIfItWasMeasured) {
  const Scratch scratch;
  NetworkFile network = kNetwork;
  network.inter_loaded = FittedLink{9e-05, 2e9, {8e-05, 1e-04}, {1.5e9, 2.5e9}};
  // A single message keeps its latency. Concurrent messages have the rate under load.
  EXPECT_EQ(network.network().latency_s, network.inter->latency_s);
  EXPECT_EQ(network.network().rate_bps, network.inter_loaded->rate_bps);
  EXPECT_EQ(network.network(false).rate_bps, network.intra->rate_bps);
  write_all(scratch / "n.json", network_json(network, {}));
  NetworkFile read = read_network(scratch / "n.json");
  expect_same(read.inter_loaded, network.inter_loaded);
  expect_same(read.intra_loaded, network.intra_loaded);

  // Files of other programs may have no measurement under load.
  Json json = Json::parse(network_json(network, {}));
  json["links"]["inter"].erase("loaded");
  write_all(scratch / "n.json", json.dump());
  read = read_network(scratch / "n.json");
  EXPECT_FALSE(read.inter_loaded);
  EXPECT_EQ(read.network().rate_bps, network.inter->rate_bps);

  json["links"]["inter"]["loaded"] = {{"latency_s", -1}};
  write_all(scratch / "n.json", json.dump());
  expect_error<InputError>([&] { read_network(scratch / "n.json"); }, {"links.inter.loaded"});
}

TEST(NetworkFiles, UnmeasuredHostCostsAreZero) {
  const Scratch scratch;
  Json json = Json::parse(network_json(kNetwork, {}));
  json["host"] = {{"encode_s_per_byte", 1e-9}, {"aggregate_s_per_byte", 2e-9}};
  write_all(scratch / "n.json", json.dump());
  HostCosts expected;
  expected.encode_s_per_byte = 1e-9;
  expected.aggregate_s_per_byte = 2e-9;
  expect_same(read_network(scratch / "n.json").host, expected);
}

class BadNetworkFile : public ::testing::Test {
 protected:
  BadNetworkFile() : json_(Json::parse(network_json(kNetwork, {}))) {}

  /// Expects that reading the current file fails with a message that contains the file's name and
  /// all parts.
  void expect_refused(std::vector<std::string> parts) {
    write_all(scratch_ / "bad.json", json_.dump());
    parts.emplace_back("bad.json");
    expect_error<InputError>([&] { read_network(scratch_ / "bad.json"); }, parts);
  }

  Scratch scratch_;
  Json json_;
};

TEST_F(BadNetworkFile, MissingKeysAreNamed) {
  const Json good = json_;
  for (const char* path :
       {"/links", "/host", "/links/inter", "/links/intra", "/links/inter/latency_s",
        "/links/inter/rate_bps", "/links/inter/ci", "/links/intra/latency_s",
        "/host/encode_s_per_byte", "/host/aggregate_s_per_byte"}) {
    const Json::json_pointer pointer(path);
    json_ = good;
    json_.at(pointer.parent_pointer()).erase(pointer.back());
    std::string name = std::string(path).substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    expect_refused({name + " is missing"});
  }
}

TEST_F(BadNetworkFile, InvalidValuesAreNamed) {
  const Json good = json_;
  struct Case {
    const char* path;
    Json value;
    const char* said;
  };
  for (const Case& c : std::vector<Case>{
           {"/links/inter/latency_s", -1e-5, "links.inter.latency_s is -1e-05"},
           {"/links/inter/latency_s", "fast", "links.inter.latency_s is \"fast\""},
           {"/links/inter/latency_s", nullptr, "links.inter.latency_s is null"},
           {"/links/inter/latency_s", true, "links.inter.latency_s is true"},
           {"/links/inter/rate_bps", 0, "links.inter.rate_bps is 0"},
           {"/links/inter/rate_bps", -5, "links.inter.rate_bps is -5"},
           {"/links/intra/rate_bps", nullptr, "links.intra.rate_bps is null"},
           {"/links/inter/ci", 3, "links.inter.ci is 3, not a list"},
           {"/links/inter/ci", Json::array(), "links.inter.ci is a list of 0, not a list"},
           {"/links/inter/ci/0", Json::array({1}), "links.inter.ci[0] is a list of 1, not a list"},
           {"/links/inter/ci/1", Json::array({2, 1}), "links.inter.ci[1] has its higher end first"},
           {"/links/inter/ci/1/0", "x", "links.inter.ci[1][0] is \"x\""},
           {"/links/inter", 7, "links.inter is 7, not an object"},
           {"/links", Json::array(), "links is a list of 0, not an object"},
           {"/links", Json{{"inter", nullptr}, {"intra", nullptr}}, "links has no link"},
           {"/host", "strong", "host is \"strong\", not an object"},
           {"/host/encode_s_per_byte", -1, "host.encode_s_per_byte is -1"},
           {"/host/aggregate_s_per_byte", Json::array(),
            "host.aggregate_s_per_byte is a list of 0"},
           {"/host/step_s", -2, "host.step_s is -2"}}) {
    json_ = good;
    json_.at(Json::json_pointer(c.path)) = c.value;
    expect_refused({c.said});
  }
  json_ = Json::array();
  expect_refused({"is a list of 0, not an object"});
}

TEST_F(BadNetworkFile, InvalidJsonIsReported) {
  const std::string good = network_json(kNetwork, {});
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts) {
    write_all(scratch_ / "bad.json", text);
    expect_error<InputError>([&] { read_network(scratch_ / "bad.json"); }, parts);
  };
  refused("", {"bad.json", "JSON"});
  refused(good.substr(0, good.size() / 2), {"JSON"});
  std::string not_a_number = good;
  not_a_number.replace(not_a_number.find("5e-05"), 5, "NaN");
  refused(not_a_number, {"JSON"});
  std::string too_large = good;
  too_large.replace(too_large.find("5e-05"), 5, "1e999");
  refused(too_large, {"JSON"});
  expect_error<InputError>([&] { read_network(scratch_ / "gone.json"); }, {"gone.json"});
  expect_error<InputError>([&] { read_network(scratch_.path()); }, {"regular file"});
}

}  // namespace
}  // namespace sparsesync
