// Python bindings of schedules of training steps.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/planner/schedule/policies.h"
#include "engine/planner/schedule/timeline.h"
#include "engine/support/output_file.h"
#include "python/bindings/bindings.h"
#include "python/bindings/python_session.h"
#include "sparsesync/schedule.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

/// A SchedulePlanner, and the session that it communicates with.
class PythonPlanner {
 public:
  PythonPlanner(PythonSession& session, std::vector<ModelLayer> layers,
                const ScheduleOptions& options)
      : session_(session) {
    session_.under_way([&](Session& of_python) {
      planner_.emplace(of_python, Model{"", std::move(layers)}, options);
    });
  }

  SchedulePlanner& planner() { return *planner_; }

  bool review() {
    bool is_another = false;
    session_.under_way([&](Session&) { is_another = planner_->review(); });
    return is_another;
  }

  void observe(std::size_t layer, double touched, double united) {
    expect_layer(layer);
    if (!planner_->model().layers[layer].sparse) {
      throw InputError(fmt::format("layer {} is dense: it has no rows to observe", layer));
    }
    planner_->observe(layer, touched, united);
  }

  std::vector<std::tuple<std::size_t, double, double>> share(
      std::size_t bucket, const std::vector<std::pair<Index, Index>>& rows) const {
    const std::vector<LayerRange>& buckets = planner_->schedule().buckets;
    if (bucket >= buckets.size()) throw InputError(fmt::format("there is no bucket {}", bucket));
    // Layers of one bucket are all dense, or none is.
    if (!planner_->model().layers[static_cast<std::size_t>(buckets[bucket].last)].sparse) {
      throw InputError(fmt::format("bucket {} is dense: it has no rows to observe", bucket));
    }
    std::vector<ObservedRows> observed;
    for (const auto& [touched, united] : rows) observed.push_back({touched, united});
    std::vector<std::tuple<std::size_t, double, double>> shares;
    for (const ObservedLayer& each : planner_->share(bucket, observed)) {
      shares.emplace_back(each.layer, each.touched, each.united);
    }
    return shares;
  }

  bool add_step(const std::vector<double>& forward_s, const std::vector<double>& backward_s) {
    const std::size_t layers = planner_->model().layers.size();
    if (forward_s.size() != layers || backward_s.size() != layers) {
      throw InputError(fmt::format("seconds of {} and {} layers: the model has {} layers",
                                   forward_s.size(), backward_s.size(), layers));
    }
    return planner_->add_step(forward_s, backward_s);
  }

  nb::object expected() const {
    const std::optional<ExpectedStep>& step = planner_->expected();
    if (!step) return nb::none();
    nb::dict dict;
    dict["iteration_s"] = step->iteration_s;
    dict["compute_s"] = step->compute_s;
    dict["communication_s"] = step->communication_s;
    dict["exposed_s"] = step->exposed_s;
    return dict;
  }

  std::vector<std::tuple<std::size_t, std::string, double, std::string>> exposed() const {
    std::vector<std::tuple<std::size_t, std::string, double, std::string>> exposed;
    const Schedule& schedule = planner_->schedule();
    for (const ExposedPhase& each : planner_->exposed()) {
      exposed.emplace_back(each.bucket, name_of(each.phase), each.seconds,
                           why_exposed(schedule, each.bucket, each.phase));
    }
    return exposed;
  }

 private:
  void expect_layer(std::size_t layer) const {
    if (layer >= planner_->model().layers.size()) {
      throw InputError(fmt::format("there is no layer {}", layer));
    }
  }

  PythonSession& session_;
  std::optional<SchedulePlanner> planner_;
};

/// A ScheduledStep that verifies its arguments.
class PythonStep {
 public:
  PythonStep(const Schedule& schedule, std::size_t layers)
      : layers_(layers), step_(schedule, layers) {}

  std::size_t bucket_of(std::size_t layer) const { return step_.bucket_of(expect(layer)); }
  std::vector<std::pair<std::size_t, std::string>> order(
      const std::vector<std::size_t>& numbers, const std::vector<std::size_t>& beside) const {
    const std::size_t buckets = step_.schedule().buckets.size();
    if (numbers.size() != buckets) {
      throw InputError(
          fmt::format("numbers of {} buckets: the schedule has {}", numbers.size(), buckets));
    }
    std::vector<std::pair<std::size_t, std::string>> order;
    for (const OrderEntry& each : step_.order(ids(numbers), ids(beside))) {
      order.emplace_back(each.bucket.value, name_of(each.phase));
    }
    return order;
  }
  std::vector<std::size_t> gathers() const { return list(step_.gathers()); }
  bool announces(std::size_t bucket) const {
    if (bucket >= step_.schedule().buckets.size()) {
      throw InputError(fmt::format("there is no bucket {}", bucket));
    }
    return step_.announces(bucket);
  }
  void expect_announcements(const std::vector<std::size_t>& layers) {
    std::vector<char> expected(layers_);
    for (const std::size_t layer : layers) expected[expect(layer)] = 1;
    step_.expect_announcements(expected);
  }
  void begin_forward() { step_.begin_forward(); }
  std::optional<std::size_t> announced(std::size_t layer) { return step_.announced(expect(layer)); }
  std::vector<std::size_t> end_forward() { return list(step_.end_forward()); }
  std::optional<std::size_t> ready(std::size_t layer) { return step_.ready(expect(layer)); }
  std::vector<std::size_t> end_backward() { return list(step_.end_backward()); }
  std::vector<std::size_t> waits_after_backward(bool needs_all) const {
    return list(step_.waits_after_backward(needs_all));
  }

 private:
  static std::vector<std::size_t> list(std::span<const std::size_t> buckets) {
    return {buckets.begin(), buckets.end()};
  }
  static std::vector<BucketId> ids(const std::vector<std::size_t>& numbers) {
    std::vector<BucketId> ids;
    for (const std::size_t number : numbers) ids.push_back({number});
    return ids;
  }
  std::size_t expect(std::size_t layer) const {
    if (layer >= layers_) throw InputError(fmt::format("there is no layer {}", layer));
    return layer;
  }

  std::size_t layers_;
  ScheduledStep step_;
};

std::vector<std::pair<int, int>> buckets_of(const Schedule& schedule) {
  std::vector<std::pair<int, int>> buckets;
  for (const LayerRange range : schedule.buckets) buckets.emplace_back(range.first, range.last);
  return buckets;
}

std::vector<std::pair<std::size_t, std::string>> order_of(const Schedule& schedule) {
  std::vector<std::pair<std::size_t, std::string>> order;
  for (const ScheduledPhase& each : schedule.order) {
    order.emplace_back(each.bucket, name_of(each.phase));
  }
  return order;
}

constexpr const char* kLayer = R"doc(One parameter of a model, and the size of its gradient.

The gradient is dense if `rows` is 0, and row-sparse otherwise.

Example:
    >>> import sparsesync
    >>> dense = sparsesync.Layer("linear.weight", bytes=4 * 256 * 256)
    >>> sparse = sparsesync.Layer("embedding.weight", rows=100_000, width=64, touched=2500))doc";

constexpr const char* kLayerInit =
    R"doc(Describes a layer: `bytes` of a dense gradient, or `rows`, `width` and `touched`.

Args:
    name: Name of the parameter.
    bytes: Size of a dense gradient in bytes.
    rows: Number of rows of a sparse gradient; 0 for a dense one.
    width: Row width in elements.
    touched: Expected number of rows that a worker touches per step, until a step has been observed.
    group: Layers of different groups never share a bucket.
    announces: Whether the layer takes part in index prefetch, where it is enabled.
    forward_s: Time of the forward pass in seconds; 0 until measured.
    backward_s: Time of the backward pass in seconds; 0 until measured.
    densification: Pairs `(workers, ratio)`: rows that this many workers touch together, divided by
        `touched`.)doc";

void bind_layer(nb::module_& module) {
  nb::class_<ModelLayer>(module, "Layer", kLayer)
      .def(
          "__init__",
          [](ModelLayer* self, std::string name, double bytes, Index rows, Index width,
             double touched, int group, bool announces, double forward_s, double backward_s,
             const std::vector<std::pair<int, double>>& densification) {
            new (self) ModelLayer{std::move(name), forward_s, backward_s, bytes};
            if (rows > 0) {
              self->sparse = SparseGradient{rows, width, touched};
              self->sparse->densification = {densification.begin(), densification.end()};
            }
            self->group = group;
            self->announces = announces;
          },
          nb::arg("name"), nb::arg("bytes") = 0.0, nb::arg("rows") = 0, nb::arg("width") = 1,
          nb::arg("touched") = 0.0, nb::arg("group") = 0, nb::arg("announces") = true,
          nb::arg("forward_s") = 0.0, nb::arg("backward_s") = 0.0,
          nb::arg("densification") = nb::make_tuple(),
          nb::sig(
              "def __init__(self, name: str, bytes: float = 0.0, rows: int = 0, width: int = 1, "
              "touched: float = 0.0, group: int = 0, announces: bool = True, forward_s: float "
              "= 0.0, backward_s: float = 0.0, densification: "
              "collections.abc.Sequence[tuple[int, float]] = ()) -> None"),
          kLayerInit);
}

constexpr const char* kStep =
    R"doc(Decides which phases a worker submits and waits for in each step of a schedule.

`SchedulePlanner.step()` makes one. It makes no calls itself: it returns which calls of `Session` to
make. Buckets and layers are numbered as in the schedule. A step calls the methods from
`begin_forward()` on in the order of their definition.

Example:
    >>> import sparsesync
    >>> layers = [sparsesync.Layer("first", bytes=400), sparsesync.Layer("second", bytes=400)]
    >>> with sparsesync.Session(sparsesync.LocalNetwork(1).join(0)) as session:
    ...     step = sparsesync.SchedulePlanner(session, layers, schedule="wfbp").step()
    >>> step.begin_forward()
    >>> step.end_forward()
    []
    >>> step.ready(1), step.ready(0)  # the backward pass reaches the last layer first
    (0, 1)
    >>> step.end_backward()
    []
    >>> step.waits_after_backward(needs_all=False)
    [0, 1])doc";

constexpr const char* kStepOrder = R"doc(Returns the order for `Session.set_order()`.

Args:
    numbers: The session's number of each bucket of the schedule.
    beside: The session's numbers of buckets outside the schedule. Their phases follow the last
        reduce of gradients.

Raises:
    InputError: The number of buckets is wrong.)doc";

constexpr const char* kExpectAnnouncements = R"doc(Sets the layers that announce rows in most steps.

A bucket announces once its layers among these have announced, and in `end_forward()` at the latest.
Before the first call, all layers count.

Args:
    layers: Indices of the layers.)doc";

constexpr const char* kAnnounced = R"doc(Records that the rows of a layer are known.

Args:
    layer: Index of the layer.

Returns:
    The bucket to announce now, or None. Wait for its last results first.)doc";

constexpr const char* kReady = R"doc(Records that the gradient of a layer is ready.

Args:
    layer: Index of the layer.

Returns:
    The bucket whose reduce and gather to submit now, or None.)doc";

constexpr const char* kWaitsAfterBackward =
    R"doc(Returns the buckets to wait for after `end_backward()`, in order.

These are all buckets, or none if gathers run during the next forward pass.

Args:
    needs_all: Whether all results are needed now in any case, such as for a review.)doc";

void bind_step(nb::module_& module) {
  nb::class_<PythonStep>(module, "ScheduledStep", kStep)
      .def("bucket_of", &PythonStep::bucket_of, nb::arg("layer"), "Returns the bucket of a layer.")
      .def("announces", &PythonStep::announces, nb::arg("bucket"),
           "Returns whether a bucket announces its rows during the forward pass.")
      .def("order", &PythonStep::order, nb::arg("numbers"),
           nb::arg("beside") = std::vector<std::size_t>(), kStepOrder)
      .def("gathers", &PythonStep::gathers,
           "Returns all buckets in the order of their gathers. Wait for results in this order.")
      .def("expect_announcements", &PythonStep::expect_announcements, nb::arg("layers"),
           kExpectAnnouncements)
      .def("begin_forward", &PythonStep::begin_forward,
           "Begins a forward pass, or begins it again after an error. No layer has announced yet.")
      .def("announced", &PythonStep::announced, nb::arg("layer"), kAnnounced)
      .def("end_forward", &PythonStep::end_forward,
           "Ends the forward pass. Returns the buckets to announce now, with the known rows.")
      .def("ready", &PythonStep::ready, nb::arg("layer"), kReady)
      .def("end_backward", &PythonStep::end_backward,
           "Ends the backward pass; the next step begins. Returns the buckets to submit now, with "
           "the gradients that are ready.")
      .def("waits_after_backward", &PythonStep::waits_after_backward, nb::arg("needs_all"),
           kWaitsAfterBackward);
}

constexpr const char* kPlanner = R"doc(Plans the buckets of a model and the order of their phases.

Worker 0 plans, and all workers use its plan. Before the passes are measured, buckets hold 25 MiB.
All workers make a planner, and call `review()`, between the same steps.

Example:
    >>> import sparsesync
    >>> embedding = sparsesync.Layer("embedding", rows=1000, width=8, touched=50)
    >>> layers = [embedding, sparsesync.Layer("linear", bytes=400)]
    >>> with sparsesync.Session(sparsesync.LocalNetwork(1).join(0)) as session:
    ...     planner = sparsesync.SchedulePlanner(session, layers, schedule="wfbp")
    ...     planner.buckets
    [(1, 1), (0, 0)])doc";

constexpr const char* kPlannerInit =
    R"doc(Plans a first schedule. All workers call it, between steps.

Args:
    session: Session that the planner communicates with.
    layers: Layers in the order of the forward pass; the same on all workers.
    schedule: A name from `schedules()`.
    full_bytes: Size in bytes at which a bucket of `'lazy'` and `'dear'` is full. None selects the
        size that is expected to be fastest.
    first_bytes: Size in bytes of the first bucket of a step, at most `full_bytes`. None is the size
        of the others.
    scheme: Scheme for sparse gradients.
    dense_scheme: Scheme for dense gradients.
    announce: Whether row indices are exchanged during the forward pass (index prefetch).
    under_forward: Whether the forward pass can wait for one bucket after another. If not, `'auto'`
        runs no gathers during it.

Raises:
    AgreementError: The workers' arguments differ. If the orders of layers differ, the error names
        both layers.
    InputError: The schedule or a scheme is unknown, or there are no layers.)doc";

constexpr const char* kObserve = R"doc(Records how many rows of a layer the last step touched.

Args:
    layer: Index of a layer with a sparse gradient.
    touched: Rows touched by this worker.
    united: Rows touched by all workers together.)doc";

constexpr const char* kShare = R"doc(Divides the observed rows of a bucket among its layers.

Tensors with the same dtype and width are observed together. Their rows are divided in proportion to
the rows that each layer was first expected to touch.

Args:
    bucket: A bucket of layers with sparse gradients.
    observed: Result of `Session.observed()`.

Returns:
    A triple `(layer, touched, united)` per layer, for `observe()`.)doc";

constexpr const char* kAddStep = R"doc(Records the measured seconds of a step's passes.

Args:
    forward_s: `[layers]`, seconds of each layer's forward pass.
    backward_s: `[layers]`, seconds of each layer's backward pass.

Returns:
    Whether a review is due; the same on all workers.)doc";

constexpr const char* kReview = R"doc(Plans again, from the medians of the last steps.

All workers call it, between steps. A new schedule replaces the current one only if it is expected
to save 3% of a step.

Returns:
    Whether there is a new schedule.)doc";

void bind_planner(nb::module_& module) {
  nb::class_<PythonPlanner>(module, "SchedulePlanner", kPlanner)
      .def(
          "__init__",
          [](PythonPlanner* self, PythonSession& session, const std::vector<ModelLayer>& layers,
             const std::string& schedule, std::optional<double> full_bytes,
             std::optional<double> first_bytes, const std::string& scheme,
             const std::string& dense_scheme, bool announce, bool under_forward) {
            ScheduleOptions options{schedule, full_bytes, first_bytes, scheme, dense_scheme};
            options.announce = announce;
            options.may_go_on_under_forward = under_forward;
            new (self) PythonPlanner(session, layers, options);
          },
          nb::keep_alive<1, 2>(), nb::arg("session"), nb::arg("layers"),
          nb::arg("schedule") = "auto", nb::arg("full_bytes") = nb::none(),
          nb::arg("first_bytes") = nb::none(), nb::arg("scheme") = "auto",
          nb::arg("dense_scheme") = "dense_ring", nb::arg("announce") = false,
          nb::arg("under_forward") = true, kPlannerInit)
      .def_prop_ro(
          "buckets", [](PythonPlanner& self) { return buckets_of(self.planner().schedule()); },
          "First and last layer of each bucket, in the order of the backward pass.")
      .def_prop_ro(
          "order", [](PythonPlanner& self) { return order_of(self.planner().schedule()); },
          "Every phase of a step as (bucket, 'announce', 'reduce' or 'gather'), in running order.")
      .def_prop_ro(
          "after_backward",
          [](PythonPlanner& self) { return self.planner().schedule().after_backward; },
          "Whether reduces wait for the end of the backward pass.")
      .def_prop_ro(
          "under_forward",
          [](PythonPlanner& self) { return self.planner().schedule().under_forward; },
          "Whether gathers run during the next forward pass.")
      .def_prop_ro("expected", &PythonPlanner::expected,
                   "Expected seconds of a step: iteration_s, compute_s, communication_s and "
                   "exposed_s; None before the passes are measured.",
                   nb::sig("def expected(self) -> dict[str, float] | None"))
      .def_prop_ro(
          "exposed", &PythonPlanner::exposed,
          "Phases that are expected to be exposed (not hidden behind computation), longest "
          "first: (bucket, phase, seconds per step, reason).")
      .def(
          "step",
          [](PythonPlanner& self) {
            return PythonStep(self.planner().schedule(), self.planner().model().layers.size());
          },
          "Returns a `ScheduledStep` for the steps of the current schedule.")
      .def("observe", &PythonPlanner::observe, nb::arg("layer"), nb::arg("touched"),
           nb::arg("united"), kObserve)
      .def("share", &PythonPlanner::share, nb::arg("bucket"), nb::arg("observed"), kShare)
      .def("add_step", &PythonPlanner::add_step, nb::arg("forward_s"), nb::arg("backward_s"),
           kAddStep)
      .def("review", &PythonPlanner::review, kReview);
}

constexpr const char* kSchedules = R"doc(Lists the schedules.

Returns:
    Pairs of a name and a one-line summary.

Example:
    >>> import sparsesync
    >>> "wfbp" in dict(sparsesync.schedules())
    True)doc";

constexpr const char* kExpectWritable =
    R"doc(Verifies that a file can be written, and leaves nothing behind.

Args:
    path: Path of the file.
    force: Whether an existing file may be replaced.

Raises:
    InputError: The file exists.
    IoError: The file cannot be written.)doc";

}  // namespace

void bind_schedules(nb::module_& module) {
  module.def(
      "schedules",
      [] {
        std::vector<std::pair<std::string, std::string>> names;
        for (const SchedulePolicy& policy : schedule_policies()) {
          names.emplace_back(policy.name, policy.summary);
        }
        return names;
      },
      kSchedules);
  bind_layer(module);
  module.def(
      "expect_writable",
      [](const std::filesystem::path& path, bool force) { const OutputFile probe(path, force); },
      nb::arg("path"), nb::arg("force") = false, kExpectWritable,
      nb::sig("def expect_writable(path: str | os.PathLike[str], force: bool = False) -> None"));
  bind_step(module);
  bind_planner(module);
}

}  // namespace sparsesync::python
