#include "analysis/network_file.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/input_file.h"
#include "analysis/quote.h"

namespace sparsesync {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

OrderedJson link_json(const std::optional<FittedLink>& link) {
  if (!link) return nullptr;
  return {
      {"latency_s", link->latency_s},
      {"rate_bps", link->rate_bps},
      {"ci",
       {{link->latency_ci.low, link->latency_ci.high}, {link->rate_ci.low, link->rate_ci.high}}}};
}

/// Reads one file, and knows its name for what is wrong.
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw InputError(
        fmt::format("{}: {} {}: make it anew with sparsesync calibrate", file_, name, what));
  }

  /// @param where  what `object` is called: "links.inter"
  const Json& member(const Json& object, const std::string& where, const char* key) const {
    const std::string name = where.empty() ? key : where + "." + key;
    if (!object.is_object()) fail(where.empty() ? "the whole" : where, "is not an object");
    const auto found = object.find(key);
    if (found == object.end()) fail(name, "is missing");
    return *found;
  }

  /// @param least  the number is this at least, or more than this
  double number(const Json& value, const std::string& name, bool above_zero) const {
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!std::isfinite(number) || number < 0 || (above_zero && number == 0)) {
      fail(name, fmt::format("is {} where a number {} belongs",
                             printable(value.dump(-1, ' ', true, Json::error_handler_t::replace)),
                             above_zero ? "above 0" : "of 0 or more"));
    }
    return number;
  }

  Interval interval(const Json& value, const std::string& name) const {
    if (!value.is_array() || value.size() != 2) fail(name, "is not a list of two numbers");
    const Interval interval{number(value[0], name + "[0]", false),
                            number(value[1], name + "[1]", false)};
    if (interval.low > interval.high) fail(name, "has its higher end first");
    return interval;
  }

  std::optional<FittedLink> link(const Json& links, const char* key) const {
    const std::string name = std::string("links.") + key;
    const Json& json = member(links, "links", key);
    if (json.is_null()) return std::nullopt;
    const Json& ci = member(json, name, "ci");
    if (!ci.is_array() || ci.size() != 2) {
      fail(name + ".ci", "is not a list of two intervals, of the latency and of the rate");
    }
    return FittedLink{number(member(json, name, "latency_s"), name + ".latency_s", false),
                      number(member(json, name, "rate_bps"), name + ".rate_bps", true),
                      interval(ci[0], name + ".ci[0]"), interval(ci[1], name + ".ci[1]")};
  }

 private:
  std::string file_;
};

}  // namespace

Network NetworkFile::network(bool between_nodes) const {
  const std::optional<FittedLink>& first = between_nodes ? inter : intra;
  const std::optional<FittedLink>& link = first ? first : between_nodes ? intra : inter;
  if (!link) throw ContractError("a network of which no link is known");
  return {link->latency_s, link->rate_bps, host};
}

std::string network_json(const NetworkFile& network,
                         const std::vector<std::pair<std::string, std::string>>& provenance) {
  OrderedJson origin = OrderedJson::object();
  for (const auto& [name, value] : provenance) origin[name] = value;
  OrderedJson host = OrderedJson::object();
  for (const HostCost& cost : kHostCosts) host[std::string(cost.name)] = network.host.*cost.seconds;
  const OrderedJson json{
      {"links", {{"inter", link_json(network.inter)}, {"intra", link_json(network.intra)}}},
      {"host", host},
      {"provenance", origin}};
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

NetworkFile read_network(const std::filesystem::path& path) {
  const FileBytes file = FileBytes::read(path);
  const Json json = parse_json(file.text(), shown_path(path));
  const Reader reader(shown_path(path));
  const Json& links = reader.member(json, "", "links");
  const Json& host = reader.member(json, "", "host");
  NetworkFile network;
  network.inter = reader.link(links, "inter");
  network.intra = reader.link(links, "intra");
  if (!network.inter && !network.intra) reader.fail("links", "has no link");
  for (const HostCost& cost : kHostCosts) {
    const std::string key(cost.name);
    // Of what not everyone measures, nothing is taken to cost nothing.
    const bool needed = key == "encode_s_per_byte" || key == "aggregate_s_per_byte";
    if (!needed && host.is_object() && !host.contains(key)) continue;
    network.host.*cost.seconds =
        reader.number(reader.member(host, "host", key.c_str()), "host." + key, false);
  }
  return network;
}

}  // namespace sparsesync
