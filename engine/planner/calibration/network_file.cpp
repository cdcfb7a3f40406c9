#include "sparsesync/network_file.h"

#include <nlohmann/json.hpp>

#include "engine/support/input_json.h"
#include "kernels/base/error.h"
#include "schemes/cost.h"

namespace sparsesync {
namespace {

using Json = nlohmann::ordered_json;

Json fitted_json(const FittedLink& link) {
  return {
      {"latency_s", link.latency_s},
      {"rate_bps", link.rate_bps},
      {"ci", {{link.latency_ci.low, link.latency_ci.high}, {link.rate_ci.low, link.rate_ci.high}}}};
}

Json link_json(const std::optional<FittedLink>& link, const std::optional<FittedLink>& loaded) {
  if (!link) return nullptr;
  Json json = fitted_json(*link);
  json["loaded"] = loaded ? fitted_json(*loaded) : Json(nullptr);
  return json;
}

Interval read_interval(const InputJson& json) {
  const std::vector<InputJson> ends = json.list(2);
  const Interval interval{ends[0].not_negative(), ends[1].not_negative()};
  if (interval.low > interval.high) json.refuse("has its higher end first");
  return interval;
}

std::optional<FittedLink> read_link(const InputJson& json) {
  if (json.is_null()) return std::nullopt;
  const std::vector<InputJson> ci = json.member("ci").list(2);
  if (json.member("rate_bps").positive() < 1) json.member("rate_bps").refuse("is below 1 bit/s");
  if (json.member("latency_s").not_negative() > 1e6) {
    json.member("latency_s").refuse("is more than 1000000 s");
  }
  return FittedLink{json.member("latency_s").not_negative(), json.member("rate_bps").positive(),
                    read_interval(ci[0]), read_interval(ci[1])};
}

/// Reads a link's fit under load, if there is one.
std::optional<FittedLink> read_loaded(const InputJson& link) {
  return !link.is_null() && link.has("loaded") ? read_link(link.member("loaded")) : std::nullopt;
}

}  // namespace

Network NetworkFile::network(bool between_nodes) const {
  const bool is_inter = between_nodes ? inter.has_value() : !intra.has_value();
  const std::optional<FittedLink>& link = is_inter ? inter : intra;
  SPARSESYNC_EXPECT(link.has_value(), ==, true);
  const std::optional<FittedLink>& loaded = is_inter ? inter_loaded : intra_loaded;
  return {link->latency_s, loaded ? loaded->rate_bps : link->rate_bps, host};
}

std::string network_json(const NetworkFile& network,
                         const std::vector<std::pair<std::string, std::string>>& provenance) {
  Json origin = Json::object();
  for (const auto& [name, value] : provenance) origin[name] = value;
  Json host = Json::object();
  for (const HostCost& cost : kHostCosts) host[std::string(cost.name)] = network.host.*cost.seconds;
  const Json json{{"links",
                   {{"inter", link_json(network.inter, network.inter_loaded)},
                    {"intra", link_json(network.intra, network.intra_loaded)}}},
                  {"host", host},
                  {"provenance", origin}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

NetworkFile read_network(const std::filesystem::path& path) {
  const InputFile file = InputFile::read(path);
  const auto json =
      InputJson::parse(file.text(), InputPlace(path, "create it again with sparsesync calibrate"));
  const InputJson links = json.member("links");
  const InputJson host = json.member("host");
  NetworkFile network{read_link(links.member("inter")), read_link(links.member("intra")), {}};
  network.inter_loaded = read_loaded(links.member("inter"));
  network.intra_loaded = read_loaded(links.member("intra"));
  if (!network.inter && !network.intra) links.refuse("has no link");
  for (const HostCost& cost : kHostCosts) {
    // Costs that not every calibration measures are optional, and then 0.
    const bool needed = cost.name == "encode_s_per_byte" || cost.name == "aggregate_s_per_byte";
    if (needed || host.has(cost.name)) {
      network.host.*cost.seconds = host.member(cost.name).not_negative();
    }
  }
  return network;
}

}  // namespace sparsesync
