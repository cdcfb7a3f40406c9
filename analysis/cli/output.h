// Output of the commands: JSON, aligned tables, and a progress bar.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "analysis/compare/compare.h"
#include "analysis/plan/scale_plan.h"
#include "analysis/profile/profile.h"
#include "analysis/trace/trace.h"
#include "engine/support/json.h"
#include "schemes/cost.h"

namespace sparsesync {

/// Returns the JSON of a comparison, without a final line end.
/// @param transport   "local", "mpi", "ucx" or "nccl"
/// @param provenance  of the program and its inputs
std::string compare_json(const CompareReport& report, const std::string& transport,
                         const Json& provenance);

/// Returns the JSON of a plan, without a final line end.
/// @param provenance  of the program and its inputs
std::string plan_json(const ScalePlan& plan, const Network& network, const Json& provenance);

/// Returns the JSON of a profile, without a final line end.
/// @param profiles    one for each tensor of the trace
/// @param provenance  of the program and its inputs
std::string profile_json(const TraceHeader& trace, const std::vector<TensorProfile>& profiles,
                         const Json& provenance);

/// A text table that is filled row by row.
class Table {
 public:
  enum class Align : unsigned char { left, right };
  /// The title of a column, and the alignment of its cells.
  struct Column {
    std::string title;
    Align align = Align::right;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// Appends a row.
  /// @pre one cell per column (ContractError otherwise)
  void add_row(std::vector<std::string> cells);
  /// Returns the titles, a rule and the rows. Two spaces separate columns; lines have no trailing
  /// spaces.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// A progress bar on standard error. It appears only on a terminal, and only after two seconds. The
/// destructor erases it, so that no part of it remains between the lines of a result. Not
/// thread-safe.
class Progress {
 public:
  /// @param label  short text in front of the bar
  explicit Progress(std::string label);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Redraws the bar, at most every 100 ms.
  /// @param done   completed part of `total`
  /// @param total  total amount of work; 0 or more
  void update(std::int64_t done, std::int64_t total);
  /// Replaces the label, for example by the name of the scheme being measured.
  void set_label(std::string label) { label_ = std::move(label); }
  /// Erases the bar; the next update() draws it again.
  void erase();

  /// Returns the bar as text, without control characters.
  static std::string render(const std::string& label, std::int64_t done, std::int64_t total,
                            double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool on_terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_draw_;
};

}  // namespace sparsesync
