// `sparsesync trace`: makes traces from text, token ids, categorical fields, or Zipf's law.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/cli/output.h"
#include "analysis/cli/units.h"
#include "analysis/trace/generate.h"
#include "analysis/trace/inputs.h"
#include "analysis/trace/trace.h"
#include "engine/support/json.h"
#include "engine/support/random_draws.h"

namespace sparsesync {
namespace {

constexpr Index kAny = std::numeric_limits<Index>::max();

/// The options of all four commands; each reads those that it adds.
struct TraceOptions {
  GenerateOptions generate;
  std::vector<std::string> paths;
  std::string input;
  Index rows = 0;
  Index batch = 0;
  Index sampled = 0;
  Index vocabulary = 0;
  std::int64_t seed = 1;
  double density = 0;
  double zipf = 0;
  bool split = false;
  std::string out;
  bool force = false;
  std::string json;
};

void add_common(CLI::App& command, TraceOptions& options) {
  add_count(command, "--width", options.generate.width, 1, kAny, "Elements of a row")->required();
  add_count(command, "--workers", options.generate.workers, 1, kMaxTraceWorkers, "Workers")
      ->required();
  add_count(command, "--steps", options.generate.steps, 1, std::numeric_limits<int>::max(),
            "Steps (1 if not given)");
  add_dtype(command, "--dtype", options.generate.dtype, "Type of the values (f32 if not given)");
  add_count(command, "--seed", options.seed, 0, kAny,
            "Seed of all draws and values (1 if not given)");
  command.add_option("--out", options.out, "Folder of the trace")->type_name("TRACE")->required();
  command.add_flag("--force", options.force, "Replace a trace that is there");
  add_json(command, options.json);
}

void add_batch(CLI::App& command, TraceOptions& options, const char* help) {
  add_count(command, "--batch", options.batch, 1, kAny, help)->required();
}

void add_sampled(CLI::App& command, TraceOptions& options) {
  add_count(command, "--sampled", options.sampled, 0, Index{1} << 31U,
            "Log-uniform draws added for each worker and step, as a sampled softmax does");
}

std::string summary(const TraceHeader& header, const TraceSummary& made, const std::string& path) {
  double bytes = 0;
  double rows = 0;
  std::size_t name_width = 6;
  for (const TensorSpec& tensor : header.tensors) {
    rows += static_cast<double>(tensor.rows);
    bytes += static_cast<double>(tensor.dense_bytes());
    name_width = std::max(name_width, tensor.name.size());
  }
  std::string text =
      fmt::format("{:<{}}  {:>15}  {:>9}  dtype\n", "tensor", name_width, "rows", "width");
  for (const TensorSpec& tensor : header.tensors) {
    text +=
        fmt::format("{:<{}}  {:>15}  {:>9}  {}\n", tensor.name, name_width,
                    format_count(tensor.rows), format_count(tensor.width), name_of(tensor.dtype));
  }
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("{:<22}{}\n", what, value);
  };
  text += '\n';
  line("workers", format_count(header.workers));
  line("steps", format_count(header.steps));
  line("touched rows a worker", fmt::format("{:.1f} of {} (mean)", made.touched_rows_mean,
                                            rows < 0x1p62 ? format_count(static_cast<Index>(rows))
                                                          : fmt::format("{:.3g}", rows)));
  line("row density", fmt::format("{:.4g}%", 100 * made.row_density_mean));
  line("dense gradient", format_bytes(bytes));
  line("trace", path);
  return text;
}

std::string as_json(const TraceHeader& header, const TraceSummary& made, const std::string& path) {
  return json_text({{"path", path},
                    {"tensors", tensors_json(header.tensors)},
                    {"workers", header.workers},
                    {"steps", header.steps},
                    {"source", header.source},
                    {"seed", header.seed},
                    {"touched_rows_mean", made.touched_rows_mean},
                    {"row_density_mean", made.row_density_mean}});
}

/// @param make  from the options to the trace that is to be written
template <typename Make>
void do_on_call(CLI::App& command, const std::shared_ptr<TraceOptions>& options, Make make) {
  command.callback([options, make] {
    options->generate.seed = static_cast<std::uint64_t>(options->seed);
    // Before the input is read, which may take long: what cannot be written to is said at once.
    if (!options->force) {
      std::error_code ignored;
      if (std::filesystem::exists(std::filesystem::symlink_status(options->out, ignored))) {
        throw InputError(
            fmt::format("'{}' exists: name another, or replace it with --force", options->out));
      }
    }
    JsonOutput json(options->json);
    const TraceSource source = make(*options);
    TraceSummary made;
    {
      Progress progress("writing");
      made = write_trace(source, options->out, options->force,
                         [&](Index done, Index total) { progress.update(done, total); });
    }
    json.write(as_json(source.header, made, options->out));
    print(json.tables(), summary(source.header, made, options->out));
  });
}

void add_from_text(CLI::App& trace) {
  auto options = std::make_shared<TraceOptions>();
  CLI::App& command = *trace.add_subcommand("from-text", "The words of text files");
  command
      .add_option("paths", options->paths,
                  "Files, or folders of which all .py, .txt and .md files are taken")
      ->type_name("PATH...")
      ->required();
  add_common(command, *options);
  add_batch(command, *options, "Words and marks that each worker takes at a step");
  add_count(command, "--vocabulary", options->vocabulary, 1, kAny,
            "At most so many rows: the last one stands for all rarer words");
  add_sampled(command, *options);
  command.footer(
      "A row is a word (letters, digits, '_') or a punctuation mark; the most frequent is row 0.\n"
      "Example:\n"
      "  sparsesync trace from-text /usr/lib/python3.11 --width 32 --workers 8 --batch 2560 "
      "--steps 4 "
      "--out TRACE");
  do_on_call(command, options, [](const TraceOptions& given) {
    const std::vector<std::filesystem::path> paths(given.paths.begin(), given.paths.end());
    return trace_from_text(paths, given.vocabulary, given.batch, given.sampled, given.generate);
  });
}

void add_from_tokens(CLI::App& trace) {
  auto options = std::make_shared<TraceOptions>();
  CLI::App& command = *trace.add_subcommand("from-tokens", "Token ids in a NumPy file");
  command.add_option("file", options->input, "One dimension, integers")
      ->type_name("FILE.npy")
      ->required();
  add_count(command, "--rows", options->rows, 1, kAny, "Rows of the embedding")->required();
  add_common(command, *options);
  add_batch(command, *options, "Tokens that each worker takes at a step");
  add_sampled(command, *options);
  command.footer(
      "Worker w of n takes tokens [(s*n + w)*batch, +batch) at step s, wrapping at the end.\n"
      "Example:\n"
      "  sparsesync trace from-tokens FILE.npy --rows 793471 --width 512 --workers 16 --batch 2560 "
      "--sampled 8192 --out TRACE");
  do_on_call(command, options, [](const TraceOptions& given) {
    NpyArray array = read_npy(given.input);
    if (array.shape.size() != 1) {
      throw InputError(
          fmt::format("'{}' has two dimensions, not one: save array.reshape(-1)", given.input));
    }
    return trace_from_tokens(std::move(array.values), given.rows, given.batch, given.sampled,
                             given.generate, given.input);
  });
}

void add_from_fields(CLI::App& trace) {
  auto options = std::make_shared<TraceOptions>();
  CLI::App& command = *trace.add_subcommand("from-fields", "Categorical fields in a NumPy file");
  command.add_option("file", options->input, "Two dimensions [samples, fields], integers")
      ->type_name("FILE.npy")
      ->required();
  add_common(command, *options);
  add_batch(command, *options, "Samples that each worker takes at a step");
  command.add_flag("--split", options->split, "A tensor for each field, not one for all");
  command.footer(
      "Each field is a vocabulary of its own, of its largest value + 1 rows.\n"
      "Example:\n"
      "  sparsesync trace from-fields FILE.npy --width 16 --workers 16 --batch 1024 --split --out "
      "TRACE");
  do_on_call(command, options, [](const TraceOptions& given) {
    return trace_from_fields(read_npy(given.input), given.batch, given.split, given.generate,
                             given.input);
  });
}

void add_synthetic(CLI::App& trace) {
  auto options = std::make_shared<TraceOptions>();
  CLI::App& command = *trace.add_subcommand("synthetic", "Rows drawn from Zipf's law");
  add_count(command, "--rows", options->rows, 1, kAny, "Rows of the embedding")->required();
  add_number(command, "--density", options->density, 0, 1,
             "Share of the rows that a worker touches")
      ->required();
  add_number(command, "--zipf", options->zipf, 0, kMaxZipf,
             "Exponent s: row r is drawn with weight (r + 1)^-s; 0 draws all rows alike")
      ->required();
  add_common(command, *options);
  command.footer(
      "Each worker draws round(density * rows) distinct rows, one after another without "
      "replacement.\n"
      "Example:\n"
      "  sparsesync trace synthetic --rows 1000000 --width 32 --density 0.01 --zipf 1 --workers 8 "
      "--steps 4 --seed 1 --out TRACE");
  do_on_call(command, options, [](const TraceOptions& given) {
    return synthetic_trace(given.rows, given.density, given.zipf, given.generate);
  });
}

}  // namespace

void add_trace_command(CLI::App& app) {
  CLI::App& trace = *app.add_subcommand("trace", "Make a trace: which rows each worker touches");
  trace.footer(
      "Example:\n"
      "  sparsesync trace from-text /usr/lib/python3.11 --width 32 --workers 8 --batch 2560 --out "
      "TRACE\n"
      "'sparsesync trace COMMAND --help' says more of each.");
  add_from_text(trace);
  add_from_tokens(trace);
  add_from_fields(trace);
  add_synthetic(trace);
}

}  // namespace sparsesync
