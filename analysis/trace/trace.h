// Traces: which rows each worker touched at each step, in a folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/support/output_file.h"
#include "kernels/base/views.h"
#include "schemes/bucket.h"
#include "schemes/statistics.h"
#include "sparsesync/gradient.h"
#include "sparsesync/rank.h"

namespace sparsesync {

/// What `trace.json` says.
struct TraceHeader {
  std::vector<TensorSpec> tensors;
  int workers = 0;
  int steps = 0;
  std::string source;      // where the trace comes from, for people
  std::uint64_t seed = 0;  // of the draws, and of the values where none are recorded

  friend bool operator==(const TraceHeader&, const TraceHeader&) = default;
};

/// The most workers that a trace may have, and the most files (workers × steps).
inline constexpr int kMaxTraceWorkers = 65'536;
inline constexpr std::int64_t kMaxTraceFiles = std::int64_t{1} << 24U;

/// The header, where a trace can have it.
/// @param where  what the header is of; the message begins with it
/// @throws InputError if a name, a size or a count is not one that a trace can have
TraceHeader checked_header(TraceHeader header, const std::string& where);

/// The name of one worker's file at one step: w0003.s0001.safetensors.
std::string trace_file_name(Rank worker, int step);
/// Whether trace_file_name() gives that name to some worker and step.
bool is_trace_file_name(std::string_view name);

/// One tensor of one worker at one step.
struct TracePart {
  std::vector<Index> indices;
  std::vector<std::byte> values;  // indices.size() × width elements of the tensor's dtype; or none
};

/// Sorts rows, and keeps one of each.
void make_distinct(std::vector<Index>& rows);

/// The values of a trace that records none. Element `column` of `row` is
/// 1 + (h >> 2·(column mod 32) mod 4) with h = mix64(mix64(k + row) + column div 32) and
/// k = mix64(mix64(mix64(mix64(seed) + worker) + step) + tensor): 1, 2, 3 or 4, so that sums are
/// exact in every dtype and nothing cancels.
/// @param rows  distinct, in the order of the values that are returned
/// @return rows.size() × width elements of the tensor's dtype
/// @pre checked_header() takes the header, and it has such a tensor
std::vector<std::byte> made_values(const TraceHeader& header, Rank worker, int step, int tensor,
                                   std::span<const Index> rows);

/// A trace to be read.
class Trace {
 public:
  /// Reads the header and checks that all files are there; what is in them is checked when it is
  /// read. Names in `trace.json` that are not in the format are passed over.
  /// @throws InputError if it is no trace, its header makes no sense, or a file is missing
  static Trace open(const std::filesystem::path& path);

  const TraceHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return path_; }
  /// Whether values are recorded. All files have them or none.
  bool has_values() const { return has_values_; }

  /// What a worker touched at a step. Recorded values come with the indices as they stand in the
  /// file: any order, duplicates kept. Without recorded values the indices are made distinct and
  /// sorted, and values are made (made_values()).
  /// @return one part for each tensor
  /// @pre there is such a worker and step (ContractError otherwise)
  /// @throws InputError if the file is not what the header says; an index outside its tensor is
  ///                    named with its position
  std::vector<TracePart> load(Rank worker, int step) const;

  /// The same as load(), with indices only: no value is read or made.
  std::vector<TracePart> load_indices(Rank worker, int step) const;

 private:
  std::vector<TracePart> read(Rank worker, int step, bool want_values) const;

  TraceHeader header_;
  std::filesystem::path path_;
  bool has_values_ = false;
};

/// A trace to be written. It gets its name at commit(); until then nothing is at `path`.
class TraceWriter {
 public:
  /// Begins a trace.
  /// @param force  replace a trace (or an empty folder) of that name, at commit()
  /// @throws InputError if the header is not one that a trace can have, or `path` may not be
  ///                    written to
  /// @throws IoError if the system fails otherwise
  TraceWriter(const std::filesystem::path& path, TraceHeader header, bool force);

  /// Writes one file. Indices are written as they stand: I32 where the tensor has at most 2^31
  /// rows, else I64. A part without values is written without; all parts of a trace have them or
  /// none.
  /// @param parts  one for each tensor of the header
  /// @pre there is such a worker and step, not written before, and the parts fit the header
  ///      (ContractError otherwise)
  /// @throws InputError if an index is outside its tensor
  /// @throws IoError if the file cannot be written
  void write(Rank worker, int step, std::span<const TracePart> parts);

  /// Writes the header, and gives the folder its name.
  /// @pre every worker's every step was written (ContractError otherwise)
  /// @throws IoError if it cannot be written
  void commit();

 private:
  void write_file(Rank worker, int step, std::span<const TracePart> parts);

  TraceHeader header_;
  OutputDirectory directory_;
  std::vector<bool> written_;
  std::optional<bool> values_;  // whether parts have values, once one has rows
  std::vector<std::pair<Rank, int>>
      waiting_;  // (worker, step) without any row, until that is known
};

/// The rows of each tensor that each worker touched at a step.
/// @throws InputError if a file of the trace is not what its header says
std::vector<OwnedIndexSets> tensor_sets(const Trace& trace, int step);

/// The same of each row space of those tensors.
std::vector<OwnedIndexSets> space_sets(const std::vector<OwnedIndexSets>& of_tensors,
                                       std::span<const RowSpace> spaces);

}  // namespace sparsesync
