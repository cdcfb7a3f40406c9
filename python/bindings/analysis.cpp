// The Python module `sparsesync._analysis`: bindings of traces, models, and of profile, compare and
// plan, whose results are JSON.
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

/// Returns the provenance of a result: the program, and the path of the trace.
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
    if (partition < 1) throw InputError(fmt::format("{} partitions: give 1 or more", partition));
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
    throw InputError("no network is given: pass rate_bps (and latency_s), or network");
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
    throw InputError(fmt::format("a memory of {} bytes: give 0 or more", *memory_bytes));
  }
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  if (workers.empty() || workers.front() < 2 || workers.back() > kMaxTraceWorkers) {
    throw InputError(fmt::format("workers: give numbers from 2 to {}", kMaxTraceWorkers));
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
  if (repeat < 1) throw InputError("repeat: give 1 or more");
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

/// Verifies a worker and a step.
/// @throws InputError unless the trace has them
void expect_in(const TraceHeader& header, int worker, int step) {
  if (worker < 0 || worker >= header.workers || step < 0 || step >= header.steps) {
    throw InputError(fmt::format("worker {} at step {}: the trace has {} workers and {} steps",
                                 worker, step, header.workers, header.steps));
  }
}

/// Returns a worker's rows at a step as a dict: tensor name -> (indices, values). bf16 values
/// become uint16.
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

/// A TraceWriter that verifies what it writes.
class PythonTraceWriter {
 public:
  PythonTraceWriter(const std::filesystem::path& path, const TraceHeader& header, bool force)
      : header_(header),
        writer_(of_this_process(std::make_unique<TraceWriter>(path, header, force))),
        written_(static_cast<std::size_t>(header.workers) *
                 static_cast<std::size_t>(header.steps)) {}

  /// Writes one worker's step.
  /// @param given  the indices of each tensor
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
  // Owned by this process: a forked child must not delete the parent's unfinished trace.
  OfThisProcess<TraceWriter> writer_;
  // [step · workers + worker]. Declared after the writer, which verifies the numbers first.
  std::vector<bool> written_;
};

void bind_reports(nb::module_& module) {
  module.def("profile_json", profile_of, nb::arg("trace"), nb::arg("partitions"),
             "Returns the JSON behind sparsesync.profile().");
  module.def("plan_json", plan_of, nb::arg("trace"), nb::arg("workers"), nb::arg("rate_bps").none(),
             nb::arg("latency_s"), nb::arg("network").none(), nb::arg("memory_bytes").none(),
             "Returns the JSON behind sparsesync.plan().");
  module.def("compare_json", compare_of, nb::arg("trace"), nb::arg("schemes"),
             nb::arg("rate_bps").none(), nb::arg("latency_s"), nb::arg("virtual_clock"),
             nb::arg("repeat"), nb::arg("wire").none(), nb::arg("announce"),
             "Returns the JSON behind sparsesync.compare().");
}

constexpr const char* kWriteModel =
    R"doc(Writes a model file for `sparsesync simulate`. The file appears only once it is complete.

Args:
    path: Path of the file.
    name: Name of the model.
    layers: Layers in the order of the forward pass.
    provenance: Pairs of a name and a value that describe the origin of the model.
    force: Whether an existing file may be replaced.

Raises:
    InputError: The file exists.
    IoError: The file cannot be written.

Example:
    >>> import pathlib, sparsesync, tempfile
    >>> layers = [sparsesync.Layer("linear.weight", bytes=400, forward_s=1e-3, backward_s=2e-3)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sparsesync.write_model(pathlib.Path(folder) / "model.json", "small", layers))doc";

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
      nb::arg("force") = false, kWriteModel,
      nb::sig("def write_model(path: str | os.PathLike[str], name: str, layers: "
              "collections.abc.Sequence[sparsesync.Layer], provenance: "
              "collections.abc.Sequence[tuple[str, str]] = [], force: bool = False) -> None"));
}

constexpr const char* kTrace =
    R"doc(A recorded trace: the rows that each worker touched at each step.

docs/tools/traces.md describes the format.

Example:
    >>> import numpy, pathlib, sparsesync, tempfile
    >>> spec = sparsesync.TensorSpec("embedding", rows=100, width=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "TRACE"
    ...     writer = sparsesync.TraceWriter(path, [spec], workers=1, steps=1)
    ...     writer.write(0, 0, [numpy.array([5, 3, 5])])
    ...     writer.commit()
    ...     indices, values = sparsesync.Trace(path).load(worker=0, step=0)["embedding"]
    >>> indices.tolist(), values.shape
    ([3, 5], (2, 2)))doc";

constexpr const char* kTraceInit = R"doc(Opens a trace.

Args:
    path: Folder with trace.json.

Raises:
    InputError: The folder is not a trace.)doc";

constexpr const char* kTraceLoad = R"doc(Returns the rows that a worker touched at a step.

Args:
    worker: Rank of the worker, from 0.
    step: Index of the step, from 0.

Returns:
    For each tensor name a pair `(indices, values)`. `indices`: `[nnz]`, dtype int64. `values`:
    `[nnz, width]`, of the tensor's dtype; bf16 is returned as uint16. If the trace has no values,
    they are generated from its seed, and the indices are distinct and increasing.

Raises:
    InputError: The worker or the step does not exist, or a file of the trace is invalid.)doc";

void bind_trace(nb::module_& module) {
  nb::class_<Trace>(module, "Trace", kTrace)
      .def(
          "__init__",
          [](Trace* self, const std::filesystem::path& path) {
            new (self) Trace(Trace::open(path));
          },
          nb::arg("path"), kTraceInit,
          nb::sig("def __init__(self, path: str | os.PathLike[str]) -> None"))
      .def_prop_ro(
          "tensors", [](const Trace& self) { return self.header().tensors; },
          "Tensors of the trace.")
      .def_prop_ro(
          "workers", [](const Trace& self) { return self.header().workers; }, "Number of workers.")
      .def_prop_ro(
          "steps", [](const Trace& self) { return self.header().steps; }, "Number of steps.")
      .def_prop_ro(
          "source", [](const Trace& self) { return self.header().source; },
          "Free-text description of the origin.")
      .def_prop_ro(
          "seed", [](const Trace& self) { return self.header().seed; },
          "Seed of the random draws, and of generated values.")
      .def("load", load, nb::arg("worker"), nb::arg("step"), kTraceLoad,
           nb::sig("def load(self, worker: int, step: int) -> dict[str, "
                   "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[typing.Any]]]"));
}

constexpr const char* kTraceWriter = R"doc(Writes a trace of indices, without values.

The trace appears at its path with `commit()`.

Example:
    >>> import numpy, pathlib, sparsesync, tempfile
    >>> spec = sparsesync.TensorSpec("embedding", rows=100, width=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "TRACE"
    ...     writer = sparsesync.TraceWriter(path, [spec], workers=2, steps=1, source="example")
    ...     for worker in range(2):
    ...         writer.write(worker, 0, [numpy.array([worker, 7])])
    ...     writer.commit()
    ...     sparsesync.Trace(path).workers
    2)doc";

constexpr const char* kTraceWriterInit = R"doc(Begins a trace.

Args:
    path: Folder of the trace.
    tensors: Tensors of the trace.
    workers: Number of workers.
    steps: Number of steps.
    source: Free-text description of the origin.
    seed: Seed of the values that tools generate.
    force: Whether an existing trace may be replaced.

Raises:
    InputError: An argument is invalid, or the folder exists.
    IoError: The folder cannot be written.)doc";

constexpr const char* kTraceWriterWrite = R"doc(Writes one worker's step, once.

Args:
    worker: Rank of the worker, from 0.
    step: Index of the step, from 0.
    indices: One array per tensor: `[nnz]`, dtype int64, in any order, with repeats allowed.

Raises:
    InputError: The step is written already, or the arrays are invalid.)doc";

constexpr const char* kTraceWriterCommit =
    R"doc(Moves the trace to its path, once every step of every worker is written.

Raises:
    InputError: A step is missing.)doc";

void bind_trace_writer(nb::module_& module) {
  nb::class_<PythonTraceWriter>(module, "TraceWriter", kTraceWriter)
      .def(
          "__init__",
          [](PythonTraceWriter* self, const std::filesystem::path& path,
             const std::vector<TensorSpec>& tensors, int workers, int steps,
             const std::string& source, std::uint64_t seed, bool force) {
            new (self) PythonTraceWriter(path, {tensors, workers, steps, source, seed}, force);
          },
          nb::arg("path"), nb::arg("tensors"), nb::arg("workers"), nb::arg("steps"),
          nb::arg("source") = "", nb::arg("seed") = 1, nb::arg("force") = false, kTraceWriterInit,
          nb::sig("def __init__(self, path: str | os.PathLike[str], tensors: "
                  "collections.abc.Sequence[sparsesync.TensorSpec], workers: int, steps: int, "
                  "source: str = '', seed: int = 1, force: bool = False) -> None"))
      .def("write", &PythonTraceWriter::write, nb::arg("worker"), nb::arg("step"),
           nb::arg("indices"), kTraceWriterWrite,
           nb::sig("def write(self, worker: int, step: int, indices: "
                   "collections.abc.Sequence[sparsesync.SupportsDLPack]) -> None"))
      .def("commit", &PythonTraceWriter::commit, kTraceWriterCommit);
}

}  // namespace
}  // namespace sparsesync::python

NB_MODULE(_analysis, module) {
  module.doc() = "Native code of sparsesync.analysis: traces, models, profile, compare and plan.";
  // The library's module defines the exceptions and the classes of arguments.
  nanobind::module_::import_("sparsesync._native");
  sparsesync::set_log_level_from_environment();
  sparsesync::python::bind_reports(module);
  sparsesync::python::bind_models(module);
  sparsesync::python::bind_trace(module);
  sparsesync::python::bind_trace_writer(module);
}
