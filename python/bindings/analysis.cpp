// The Python module `sparsesync._analysis`: traces, models, and the results of profile, compare and
// plan as JSON.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "analysis/cli/output.h"
#include "analysis/compare/compare.h"
#include "analysis/launcher.h"
#include "analysis/plan/extrapolation.h"
#include "analysis/plan/scale_plan.h"
#include "analysis/profile/profile.h"
#include "analysis/simulate/training_simulator.h"
#include "analysis/trace/trace.h"
#include "engine/support/log.h"
#include "engine/support/output_file.h"
#include "python/bindings/arrays.h"
#include "python/bindings/closed.h"
#include "python/bindings/gil.h"
#include "python/bindings/link.h"
#include "sparsesync/network_file.h"
#include "sparsesync/schedule.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

/// What made a result, and from which trace.
Json provenance_of(const std::string& trace) {
  Json json = provenance_json();
  json["trace"] = trace;
  return json;
}

std::string profile_of(const std::string& path, const std::vector<int>& partitions) {
  const WithoutGil without_gil;
  ProfileOptions options;
  options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (!partitions.empty()) options.partitions = partitions;
  for (const int partition : options.partitions) {
    if (partition < 1) throw InputError(fmt::format("{} partitions: 1 or more", partition));
  }
  std::sort(options.partitions.begin(), options.partitions.end());
  const Trace trace = Trace::open(path);
  Json provenance = provenance_of(path);
  provenance["seed"] = trace.header().seed;
  return profile_json(trace.header(), profile(trace, options), provenance);
}

Network network_from(const std::optional<double>& rate_bps, double latency_s,
                     const std::optional<std::string>& file) {
  if (!rate_bps && !file) {
    throw InputError("nothing is known of the network: give rate_bps (and latency_s), or network");
  }
  Network network;
  if (file) network = read_network(*file).network();
  const LocalLink link = link_of(rate_bps, latency_s);
  if (link.rate_bps) {
    network.rate_bps = *link.rate_bps;
    network.latency_s = link.latency_s;
  }
  return network;
}

std::string plan_of(const std::string& path, std::vector<int> workers,
                    const std::optional<double>& rate_bps, double latency_s,
                    const std::optional<std::string>& network_file,
                    const std::optional<std::int64_t>& memory_bytes) {
  const WithoutGil without_gil;
  const Network network = network_from(rate_bps, latency_s, network_file);
  if (memory_bytes && *memory_bytes < 0) {
    throw InputError(fmt::format("a memory of {} bytes: 0 or more", *memory_bytes));
  }
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  if (workers.empty() || workers.front() < 2 || workers.back() > kMaxTraceWorkers) {
    throw InputError(fmt::format("workers: numbers from 2 to {}", kMaxTraceWorkers));
  }
  const Trace trace = Trace::open(path);
  const SchemeOptions options;
  const Outlook outlook(trace, options, kTouchesToPlanBy);
  const ScalePlan plan = plan_over(
      outlook, network, options, workers,
      memory_bytes ? std::optional<double>(static_cast<double>(*memory_bytes)) : std::nullopt);
  Json provenance = provenance_of(path);
  if (network_file) provenance["network"] = *network_file;
  return plan_json(plan, network, provenance);
}

std::string compare_of(const std::string& path, const std::vector<std::string>& schemes,
                       const std::optional<double>& rate_bps, double latency_s, bool virtual_clock,
                       int repeat, const std::optional<std::string>& wire, bool announce) {
  const WithoutGil without_gil;
  if (repeat < 1) throw InputError("repeat: 1 or more");
  CompareOptions options;
  options.schemes = schemes;
  options.link = link_of(rate_bps, latency_s);
  options.repeat = repeat;
  options.announce = announce;
  if (wire) options.scheme_options.wire = dtype_named(*wire);
  if (virtual_clock) options.clock = CompareClock::replayed;
  Trace trace = Trace::open(path);
  LocalWorkers workers(trace.header().workers, virtual_clock ? LocalLink{} : options.link);
  Json provenance = provenance_of(path);
  provenance["seed"] = trace.header().seed;
  Comparison comparison(workers, std::move(trace), std::move(options));
  return compare_json(comparison.run(), "local", provenance);
}

/// @throws InputError unless the trace has such a worker and step
void expect_in(const TraceHeader& header, int worker, int step) {
  if (worker < 0 || worker >= header.workers || step < 0 || step >= header.steps) {
    throw InputError(fmt::format("worker {} at step {}: the trace has {} workers and {} steps",
                                 worker, step, header.workers, header.steps));
  }
}

/// What a worker touched at a step, by tensor: (indices, values); values of bf16 as uint16.
nb::dict load(const Trace& trace, int worker, int step) {
  const TraceHeader& header = trace.header();
  expect_in(header, worker, step);
  std::vector<TracePart> parts;
  {
    const WithoutGil without_gil;
    parts = trace.load(Rank{worker}, step);
  }
  nb::dict loaded;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TensorSpec& tensor = header.tensors[i];
    const ConstMatrix values{parts[i].values.data(), tensor.dtype, std::ssize(parts[i].indices),
                             tensor.width};
    loaded[tensor.name.c_str()] = nb::make_tuple(new_indices(parts[i].indices), new_values(values));
  }
  return loaded;
}

/// A TraceWriter that knows what it writes.
class PythonTraceWriter {
 public:
  PythonTraceWriter(const std::filesystem::path& path, const TraceHeader& header, bool force)
      : header_(header),
        writer_(of_this_process(std::make_unique<TraceWriter>(path, header, force))),
        written_(static_cast<std::size_t>(header.workers) *
                 static_cast<std::size_t>(header.steps)) {}

  /// @param given  of each tensor its indices
  void write(int worker, int step, const nb::sequence& given) {
    expect_open();
    expect_in(header_, worker, step);
    if (nb::len(given) != header_.tensors.size()) {
      throw InputError(fmt::format("{} arrays for {} tensors: give one for each", nb::len(given),
                                   header_.tensors.size()));
    }
    const std::size_t place =
        static_cast<std::size_t>(step) * static_cast<std::size_t>(header_.workers) +
        static_cast<std::size_t>(worker);
    if (written_[place])
      throw InputError(fmt::format("worker {} at step {} was written already", worker, step));
    std::vector<TracePart> parts;
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
      const TensorSpec& tensor = header_.tensors[i];
      const std::string what = fmt::format("tensor '{}'", tensor.name);
      const ConstIndices indices = indices_of(nb::object(given[i]), what);
      const std::span<const Index> rows = span_of(indices);
      expect_inside(rows, tensor.rows, what);
      parts.push_back({{rows.begin(), rows.end()}, {}});
    }
    writer_->write(Rank{worker}, step, parts);
    written_[place] = true;
  }

  void commit() {
    expect_open();
    const auto missing = std::find(written_.begin(), written_.end(), false) - written_.begin();
    if (missing < std::ssize(written_)) {
      throw InputError(fmt::format("worker {} at step {} is not written yet",
                                   missing % header_.workers, missing / header_.workers));
    }
    writer_->commit();
    writer_.reset();
  }

 private:
  void expect_open() const {
    process_.expect("TraceWriter");
    if (!writer_) throw_closed("TraceWriter");
  }

  Process process_;
  TraceHeader header_;
  OfThisProcess<TraceWriter> writer_;  // what a child leaves behind is not what it began
  std::vector<bool>
      written_;  // [step · workers + worker]; after the writer, which checks the numbers
};

void bind_reports(nb::module_& module) {
  module.def("profile_json", profile_of, nb::arg("trace"), nb::arg("partitions"),
             "JSON of sparsesync.profile().");
  module.def("plan_json", plan_of, nb::arg("trace"), nb::arg("workers"), nb::arg("rate_bps").none(),
             nb::arg("latency_s"), nb::arg("network").none(), nb::arg("memory_bytes").none(),
             "JSON of sparsesync.plan().");
  module.def("compare_json", compare_of, nb::arg("trace"), nb::arg("schemes"),
             nb::arg("rate_bps").none(), nb::arg("latency_s"), nb::arg("virtual_clock"),
             nb::arg("repeat"), nb::arg("wire").none(), nb::arg("announce"),
             "JSON of sparsesync.compare().");
}

void bind_models(nb::module_& module) {
  module.def(
      "write_model",
      [](const std::filesystem::path& path, const std::string& name,
         const std::vector<ModelLayer>& layers,
         const std::vector<std::pair<std::string, std::string>>& provenance, bool force) {
        OutputFile file(path, force);
        file.write(model_json({name, layers}, provenance) + "\n");
        file.commit();
      },
      nb::arg("path"), nb::arg("name"), nb::arg("layers"),
      nb::arg("provenance") = std::vector<std::pair<std::string, std::string>>(),
      nb::arg("force") = false,
      "Writes a model as `sparsesync simulate` reads it, whole or not at all. layers: in the order "
      "of the forward pass. force: replace a file that is there. Raises InputError, IoError.",
      nb::sig("def write_model(path: str | os.PathLike[str], name: str, layers: "
              "collections.abc.Sequence[sparsesync.Layer], provenance: "
              "collections.abc.Sequence[tuple[str, str]] = [], force: bool = False) -> None"));
}

void bind_trace(nb::module_& module) {
  nb::class_<Trace>(
      module, "Trace",
      "A recorded trace: which rows each worker touched at each step (docs/traces.md).")
      .def(
          "__init__",
          [](Trace* self, const std::filesystem::path& path) {
            new (self) Trace(Trace::open(path));
          },
          nb::arg("path"), "path: a folder with trace.json. Raises InputError where it is none.",
          nb::sig("def __init__(self, path: str | os.PathLike[str]) -> None"))
      .def_prop_ro(
          "tensors", [](const Trace& self) { return self.header().tensors; },
          "What the rows are of.")
      .def_prop_ro(
          "workers", [](const Trace& self) { return self.header().workers; }, "How many there are.")
      .def_prop_ro(
          "steps", [](const Trace& self) { return self.header().steps; }, "How many there are.")
      .def_prop_ro(
          "source", [](const Trace& self) { return self.header().source; },
          "Where it comes from, for people.")
      .def_prop_ro(
          "seed", [](const Trace& self) { return self.header().seed; },
          "Of the draws, and of values that are not recorded.")
      .def("load", load, nb::arg("worker"), nb::arg("step"),
           "What a worker touched: name -> (indices int64 [nnz], values [nnz, width]). Values that "
           "are not recorded are made, and rows then distinct and increasing; bf16 stands as "
           "uint16.",
           nb::sig("def load(self, worker: int, step: int) -> dict[str, "
                   "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[typing.Any]]]"));
}

void bind_trace_writer(nb::module_& module) {
  nb::class_<PythonTraceWriter>(module, "TraceWriter",
                                "Writes a trace of indices; nothing is at `path` before commit().")
      .def(
          "__init__",
          [](PythonTraceWriter* self, const std::filesystem::path& path,
             const std::vector<TensorSpec>& tensors, int workers, int steps,
             const std::string& source, std::uint64_t seed, bool force) {
            new (self) PythonTraceWriter(path, {tensors, workers, steps, source, seed}, force);
          },
          nb::arg("path"), nb::arg("tensors"), nb::arg("workers"), nb::arg("steps"),
          nb::arg("source") = "", nb::arg("seed") = 1, nb::arg("force") = false,
          "source: where it comes from, for people. force: replaces a trace that is there.",
          nb::sig("def __init__(self, path: str | os.PathLike[str], tensors: "
                  "collections.abc.Sequence[sparsesync.TensorSpec], workers: int, steps: int, "
                  "source: str = '', seed: int = 1, force: bool = False) -> None"))
      .def("write", &PythonTraceWriter::write, nb::arg("worker"), nb::arg("step"),
           nb::arg("indices"),
           "One worker's step, once: of each tensor int64 [nnz], any order, repeats allowed.",
           nb::sig("def write(self, worker: int, step: int, indices: "
                   "collections.abc.Sequence[sparsesync.SupportsDLPack]) -> None"))
      .def("commit", &PythonTraceWriter::commit,
           "Puts the trace at its path, once every worker's every step is written.");
}

}  // namespace
}  // namespace sparsesync::python

NB_MODULE(_analysis, module) {
  module.doc() = "The laboratory behind sparsesync.analysis.";
  // Exceptions and the classes that calls take are those of the library's module.
  nanobind::module_::import_("sparsesync._native");
  sparsesync::set_log_level_from_environment();
  sparsesync::python::bind_reports(module);
  sparsesync::python::bind_models(module);
  sparsesync::python::bind_trace(module);
  sparsesync::python::bind_trace_writer(module);
}
