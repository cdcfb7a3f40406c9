// `sparsesync info`: the build, its features, and the schemes in the design space.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/cli/output.h"
#include "analysis/cli/units.h"
#include "engine/support/json.h"
#include "schemes/registry.h"
#include "sparsesync/device.h"
#include "sparsesync/transports/mpi.h"
#include "sparsesync/transports/nccl.h"
#include "sparsesync/transports/ucx.h"

namespace sparsesync {
namespace {

struct InfoArguments {
  bool schemes = false;
  std::string json;
};

std::vector<std::string> transports() {
  std::vector<std::string> all{"local"};
  if (has_mpi()) all.emplace_back("mpi");
  if (why_no_ucx().empty()) all.emplace_back("ucx");
  if (device_facts().compiled_in) all.emplace_back("nccl");
  return all;
}

/// Formats a CUDA version number: 12040 is "12.4".
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::vector<std::string> devices() {
  std::vector<std::string> all{"cpu"};
  const DeviceFacts facts = device_facts();
  for (int device = 0; device < facts.devices; ++device) {
    all.push_back(fmt::format("cuda:{}", device));
  }
  return all;
}

std::string cuda_text() {
  const DeviceFacts facts = device_facts();
  if (!facts.compiled_in) return "not compiled in";
  std::string text = facts.emulated ? "emulated on the host"
                                    : fmt::format("compiled in, {}",
                                                  version_text(facts.runtime_version.value_or(0)));
  if (facts.driver_version) text += fmt::format("; driver {}", version_text(*facts.driver_version));
  if (!facts.problem.empty()) return text + "; " + facts.problem;
  for (int device = 0; device < facts.devices; ++device) {
    const DeviceBytes bytes = device_bytes(device);
    text += fmt::format("; cuda:{} has {} of {} free", device,
                        format_bytes(static_cast<double>(bytes.available)),
                        format_bytes(static_cast<double>(bytes.total)));
  }
  return text;
}

Json cuda_json() {
  const DeviceFacts facts = device_facts();
  Json json{{"compiled_in", facts.compiled_in}, {"emulated", facts.emulated}};
  json["runtime"] = facts.runtime_version ? Json(version_text(*facts.runtime_version)) : Json();
  json["driver"] = facts.driver_version ? Json(version_text(*facts.driver_version)) : Json();
  json["problem"] = facts.problem.empty() ? Json() : Json(facts.problem);
  json["devices"] = Json::array();
  for (int device = 0; device < facts.devices; ++device) {
    const DeviceBytes bytes = device_bytes(device);
    json["devices"].push_back(
        {{"memory_available_bytes", bytes.available}, {"memory_bytes", bytes.total}});
  }
  return json;
}

std::string build_text() {
  std::string text;
  const auto line = [&](const std::string& what, const std::string& value) {
    text += fmt::format("{:<18}{}\n", what, value);
  };
  for (const auto& [name, value] : provenance()) line(name, value);
  line("memory available", format_bytes(static_cast<double>(available_memory())));
  line("devices", fmt::format("{}", fmt::join(devices(), ", ")));
  line("cuda", cuda_text());
  line("nccl", nccl_text());
  line("mpi", mpi_text());
  line("ucx", ucx_text());
  line("transports", fmt::format("{}", fmt::join(transports(), ", ")));
  line("dtypes", dtype_names(", "));
  std::vector<std::string_view> names;
  for (const SchemeEntry& entry : all_schemes()) names.push_back(entry.name);
  line("schemes", fmt::format("{}", fmt::join(names, ", ")));
  return text;
}

std::string schemes_text() {
  Table table({{"scheme", Table::Align::left},
               {"communication", Table::Align::left},
               {"aggregation", Table::Align::left},
               {"partition", Table::Align::left},
               {"balance", Table::Align::left},
               {"format", Table::Align::left}});
  std::string summaries;
  for (const SchemeEntry& entry : all_schemes()) {
    const DesignSpace& design = entry.design;
    table.add_row({std::string(entry.name), std::string(name_of(design.communication)),
                   std::string(name_of(design.aggregation)), std::string(name_of(design.partition)),
                   std::string(name_of(design.balance)), std::string(name_of(design.format))});
    summaries += fmt::format("{}: {}\n", entry.name, entry.summary);
  }
  return table.text() + "\n" + summaries;
}

std::string as_json() {
  Json json = provenance_json();
  json["memory_available_bytes"] = available_memory();
  json["devices"] = devices();
  json["cuda"] = cuda_json();
  json["nccl"] = nccl_text();
  json["mpi"] = mpi_text();
  json["ucx"] = ucx_text();
  json["transports"] = transports();
  for (const DType dtype : kDTypes) json["dtypes"].push_back(name_of(dtype));
  json["schemes"] = Json::array();
  for (const SchemeEntry& entry : all_schemes()) {
    json["schemes"].push_back({{"name", entry.name},
                               {"summary", entry.summary},
                               {"communication", name_of(entry.design.communication)},
                               {"aggregation", name_of(entry.design.aggregation)},
                               {"partition", name_of(entry.design.partition)},
                               {"balance", name_of(entry.design.balance)},
                               {"format", name_of(entry.design.format)}});
  }
  return json_text(json);
}

}  // namespace

void add_info_command(CLI::App& app) {
  auto given = std::make_shared<InfoArguments>();
  CLI::App& command = *app.add_subcommand(
      "info", "Show the version, devices, transports, dtypes and schemes of this build");
  command.add_flag("--schemes", given->schemes,
                   "List the schemes by the dimensions of Zen's design space");
  add_json(command, given->json);
  command.footer("Example:\n  sparsesync info --schemes");
  command.callback([given] {
    JsonOutput json(given->json);
    print(json.tables(), given->schemes ? schemes_text() : build_text());
    json.write(as_json());
  });
}

}  // namespace sparsesync
