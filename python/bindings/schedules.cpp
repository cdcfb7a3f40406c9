// Schedules of training steps, for Python.
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

/// A SchedulePlanner, and the session that its calls are made under.
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
      throw InputError(fmt::format("layer {} is dense: no rows of it are observed", layer));
    }
    planner_->observe(layer, touched, united);
  }

  std::vector<std::tuple<std::size_t, double, double>> share(
      std::size_t bucket, const std::vector<std::pair<Index, Index>>& rows) const {
    const std::vector<LayerRange>& buckets = planner_->schedule().buckets;
    if (bucket >= buckets.size()) throw InputError(fmt::format("there is no bucket {}", bucket));
    // Layers of one bucket are all dense, or none is.
    if (!planner_->model().layers[static_cast<std::size_t>(buckets[bucket].last)].sparse) {
      throw InputError(fmt::format("bucket {} is dense: no rows of it are observed", bucket));
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
      throw InputError(fmt::format("seconds of {} and {} layers: there are {}", forward_s.size(),
                                   backward_s.size(), layers));
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

/// A ScheduledStep that looks at what it is asked for.
class PythonStep {
 public:
  PythonStep(const Schedule& schedule, std::size_t layers)
      : layers_(layers), step_(schedule, layers) {}

  std::size_t bucket_of(std::size_t layer) const { return step_.bucket_of(expect(layer)); }
  std::vector<std::pair<std::size_t, std::string>> order(
      const std::vector<std::size_t>& numbers, const std::vector<std::size_t>& beside) const {
    const std::size_t buckets = step_.schedule().buckets.size();
    if (numbers.size() != buckets) {
      throw InputError(fmt::format("numbers of {} buckets: there are {}", numbers.size(), buckets));
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

void bind_layer(nb::module_& module) {
  nb::class_<ModelLayer>(
      module, "Layer",
      "Of a model: a parameter, and what its gradient is. Dense where `bytes` is "
      "given; else `touched` of its `rows` rows of `width` elements cross.")
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
          "touched: as a step is expected to, until one has shown it. group: layers of different "
          "ones never share a bucket. announces: whether its rows are told ahead, where rows are. "
          "forward_s, backward_s: seconds of its passes, 0 until they are measured. densification: "
          "of so many workers the rows that they touch together, over touched.");
}

void bind_step(nb::module_& module) {
  nb::class_<PythonStep>(module, "ScheduledStep",
                         "Decides what a worker submits and waits for in each step of a schedule. "
                         "Buckets and layers are numbered as in the schedule; a step's calls are "
                         "made in this order.")
      .def("bucket_of", &PythonStep::bucket_of, nb::arg("layer"),
           "Returns the bucket that the layer is in.")
      .def("announces", &PythonStep::announces, nb::arg("bucket"),
           "Returns whether the bucket announces its rows in the forward pass.")
      .def("order", &PythonStep::order, nb::arg("numbers"),
           nb::arg("beside") = std::vector<std::size_t>(),
           "Returns the order for Session.set_order(). numbers: of the schedule's buckets at the "
           "session. beside: those of buckets that are no part of the schedule; their phases come "
           "behind the last reduce of gradients.")
      .def("gathers", &PythonStep::gathers,
           "Returns all buckets in the order of their gathers: wait for results in this order.")
      .def("expect_announcements", &PythonStep::expect_announcements, nb::arg("layers"),
           "Names the layers that announce rows in most steps: a bucket announces once these of "
           "its layers did, else in end_forward(). Before the first call, all layers do.")
      .def("begin_forward", &PythonStep::begin_forward,
           "Begins a forward pass, or begins it again: nothing has been announced.")
      .def("announced", &PythonStep::announced, nb::arg("layer"),
           "Counts a layer whose rows are known. Returns the bucket to announce now, if any; wait "
           "for its last results first.")
      .def("end_forward", &PythonStep::end_forward,
           "Ends the forward pass. Returns the buckets to announce now, with the known rows.")
      .def("ready", &PythonStep::ready, nb::arg("layer"),
           "Counts a layer whose gradient is ready. Returns the bucket to submit now, if any.")
      .def("end_backward", &PythonStep::end_backward,
           "Ends the backward pass; the next step begins. Returns the buckets to submit now, with "
           "the gradients that are ready.")
      .def("waits_after_backward", &PythonStep::waits_after_backward, nb::arg("needs_all"),
           "Returns the buckets whose results to wait for behind end_backward(), in the order of "
           "their gathers: none where gathers go on under the next forward pass, unless "
           "needs_all.");
}

void bind_planner(nb::module_& module) {
  nb::class_<PythonPlanner>(
      module, "SchedulePlanner",
      "Plans when gradients cross, on worker 0, for all workers alike: until passes were measured "
      "in buckets of 25 MiB. All workers make one, and call review(), between the same steps.")
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
          nb::arg("under_forward") = true,
          "Between steps. layers: in the order of the forward pass. schedule: a name of "
          "schedules(). full_bytes: what a bucket of 'lazy' and 'dear' is full with; what is the "
          "best if not given. first_bytes: the same of the first one. scheme, dense_scheme: that "
          "rows and dense gradients cross by. announce: whether rows are told under the forward "
          "pass. under_forward: whether a forward pass can wait for one bucket after another. "
          "Raises AgreementError on all workers where they differ, naming both layers where their "
          "orders do.")
      .def_prop_ro(
          "buckets", [](PythonPlanner& self) { return buckets_of(self.planner().schedule()); },
          "First and last layer of each, in the order of backward.")
      .def_prop_ro(
          "order", [](PythonPlanner& self) { return order_of(self.planner().schedule()); },
          "Every phase of a step as (bucket, 'announce', 'reduce' or 'gather'), as they cross.")
      .def_prop_ro(
          "after_backward",
          [](PythonPlanner& self) { return self.planner().schedule().after_backward; },
          "Whether reduces wait for the end of the backward pass.")
      .def_prop_ro(
          "under_forward",
          [](PythonPlanner& self) { return self.planner().schedule().under_forward; },
          "Whether gathers go on under the next forward pass.")
      .def_prop_ro("expected", &PythonPlanner::expected,
                   "iteration_s, compute_s, communication_s, exposed_s of a step; None before "
                   "passes were measured.",
                   nb::sig("def expected(self) -> dict[str, float] | None"))
      .def_prop_ro("exposed", &PythonPlanner::exposed,
                   "What of a step is expected not to hide, the longest first: (bucket, phase, "
                   "seconds, why).")
      .def(
          "step",
          [](PythonPlanner& self) {
            return PythonStep(self.planner().schedule(), self.planner().model().layers.size());
          },
          "The first step by the present schedule.")
      .def("observe", &PythonPlanner::observe, nb::arg("layer"), nb::arg("touched"),
           nb::arg("united"), "Rows that this worker, and all workers, touched in the last step.")
      .def("share", &PythonPlanner::share, nb::arg("bucket"), nb::arg("observed"),
           "Shares what Session.observed() returns of a bucket with rows among its layers, by the "
           "rows that they were first expected to touch: (layer, touched, united) of each.")
      .def(
          "add_step", &PythonPlanner::add_step, nb::arg("forward_s"), nb::arg("backward_s"),
          "What the passes of each layer took in a step that is over, in seconds. Whether a review "
          "is due: the same on all workers.")
      .def("review", &PythonPlanner::review,
           "Between steps. Plans anew, from the medians of the last steps. Whether there is "
           "another schedule now.");
}

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
      "Names of schedules, each with a line about it.");
  bind_layer(module);
  module.def(
      "expect_writable",
      [](const std::filesystem::path& path, bool force) { const OutputFile probe(path, force); },
      nb::arg("path"), nb::arg("force") = false,
      "Raises InputError or IoError where no file can be made at `path`; leaves nothing behind. "
      "force: whether it may replace one.",
      nb::sig("def expect_writable(path: str | os.PathLike[str], force: bool = False) -> None"));
  bind_step(module);
  bind_planner(module);
}

}  // namespace sparsesync::python
