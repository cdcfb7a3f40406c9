#include "analysis/simulate/training_simulator.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/support/input_json.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

using Json = nlohmann::ordered_json;

/// Maximum number of workers: more than any real cluster has, and too few to overflow.
constexpr int kMostWorkers = 1 << 24;

int workers_named(const std::string& name, const InputJson& value) {
  int workers = 0;
  const char* const end = name.data() + name.size();
  const auto [stopped, error] = std::from_chars(name.data(), end, workers);
  if (error != std::errc() || stopped != end || workers < 1 || workers > kMostWorkers) {
    value.refuse(
        fmt::format("has a name that is not a number of workers from 1 to {}", kMostWorkers));
  }
  return workers;
}

/// Reads {"2": γ, ...}: the densification for some numbers of workers.
std::map<int, double> read_densification(const InputJson& json) {
  std::map<int, double> known;
  for (const auto& [name, value] : json.members()) {
    const int workers = workers_named(name, value);
    const double gamma = value.positive();
    if (gamma < 1 || gamma > workers) value.refuse("is not from 1 to the number of workers");
    known[workers] = gamma;
  }
  double before = 1;
  for (const auto& [workers, gamma] : known) {
    if (gamma < before) json.refuse("decreases: more workers cannot touch fewer rows");
    before = gamma;
  }
  return known;
}

SparseGradient read_sparse(const InputJson& json) {
  SparseGradient sparse;
  constexpr Index kMost = Index{1} << 40U;
  sparse.rows = json.member("rows").whole<Index>(1, kMost);
  sparse.width = json.member("width").whole<Index>(1, kMost / sparse.rows);
  sparse.nnz = json.member("nnz").not_negative();
  if (sparse.nnz > static_cast<double>(sparse.rows)) {
    json.member("nnz").refuse("is more than 'rows'");
  }
  if (json.has("densification")) {
    sparse.densification = read_densification(json.member("densification"));
  }
  return sparse;
}

/// Reads a number in [0, most].
double at_most(const InputJson& json, double most) {
  const double number = json.not_negative();
  if (number > most) json.refuse(fmt::format("is more than {:g}", most));
  return number;
}

ModelLayer read_layer(const InputJson& json) {
  ModelLayer layer{json.member("name").text()};
  constexpr double kLongest = 3600;
  layer.forward_s = at_most(json.member("forward_s"), kLongest);
  layer.backward_s = at_most(json.member("backward_s"), kLongest);
  const bool is_sparse = json.has("sparse") && !json.member("sparse").is_null();
  if (is_sparse == json.has("bytes")) {
    json.refuse("must have either 'bytes' (of a dense gradient) or 'sparse', not both or neither");
  }
  constexpr double kMostBytes = 1e15;
  if (is_sparse) {
    layer.sparse = read_sparse(json.member("sparse"));
  } else {
    layer.bytes = at_most(json.member("bytes"), kMostBytes);
  }
  return layer;
}

}  // namespace

std::string model_json(const Model& model,
                       const std::vector<std::pair<std::string, std::string>>& provenance) {
  Json layers = Json::array();
  for (const ModelLayer& each : model.layers) {
    Json layer{{"name", each.name}, {"forward_s", each.forward_s}, {"backward_s", each.backward_s}};
    if (each.sparse) {
      Json densification = Json::object();
      for (const auto& [workers, gamma] : each.sparse->densification) {
        densification[std::to_string(workers)] = gamma;
      }
      layer["sparse"] = {{"rows", each.sparse->rows},
                         {"width", each.sparse->width},
                         {"nnz", each.sparse->nnz},
                         {"densification", densification}};
    } else {
      layer["bytes"] = each.bytes;
    }
    layers.push_back(layer);
  }
  Json origin = Json::object();
  for (const auto& [name, value] : provenance) origin[name] = value;
  const Json json{{"name", model.name}, {"layers", layers}, {"provenance", origin}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

Model read_model(const std::filesystem::path& path) {
  const InputFile file = InputFile::read(path);
  const auto json = InputJson::parse(
      file.text(), InputPlace(path, "docs/tools/simulate.md describes the file format"));
  Model model{json.member("name").text(), {}};
  std::set<std::string> names;
  for (const InputJson& each : json.member("layers").list()) {
    model.layers.push_back(read_layer(each));
    const std::string& name = model.layers.back().name;
    if (!names.insert(name).second) {
      each.refuse(fmt::format("has the name {} of an earlier layer: names must be unique",
                              in_quotes(name)));
    }
  }
  if (model.layers.empty()) json.member("layers").refuse("has no layer");
  return model;
}

}  // namespace sparsesync
