// Output of the commands: JSON, tables with aligned columns, and a progress bar.
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

/// The whole text, without a line end.
/// @param transport   local or mpi
/// @param provenance  of the program and of what it read
std::string compare_json(const CompareReport& report, const std::string& transport,
                         const Json& provenance);

/// The whole text, without a line end.
/// @param provenance  of the program and of what it read
std::string plan_json(const ScalePlan& plan, const Network& network, const Json& provenance);

/// The whole text, without a line end.
/// @param profiles    one for each tensor of the trace
/// @param provenance  of the program and of what it read
std::string profile_json(const TraceHeader& trace, const std::vector<TensorProfile>& profiles,
                         const Json& provenance);

/// A table that is filled row by row.
class Table {
 public:
  enum class Align : unsigned char { left, right };
  /// The title of a column, and the alignment of its cells.
  struct Column {
    std::string title;
    Align align = Align::right;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// Adds a row at the end.
  /// @pre there is a cell for each column (ContractError otherwise)
  void add_row(std::vector<std::string> cells);
  /// Title, a rule, the rows; two spaces between columns, no spaces at the ends of lines.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// A progress bar. Drawn on standard error, only where that is a terminal and two seconds have
/// passed; erased at the end, so that nothing of it stays between the lines of a result. One thread
/// uses it.
class Progress {
 public:
  /// @param label  a few words before the bar
  explicit Progress(std::string label);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Draws the bar anew, if it is time to.
  /// @param done   of `total`
  /// @param total  the work in all; 0 or more
  void update(std::int64_t done, std::int64_t total);
  /// Another label from now on, such as the name of what is measured.
  void set_label(std::string label) { label_ = std::move(label); }
  /// Takes the bar away; the next update() draws it again.
  void erase();

  /// The bar as text, without the control characters around it.
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
