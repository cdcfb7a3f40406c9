// `sparsesync trace`: makes traces from text, token ids or categorical fields, or by Zipf's law.
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

/// The options of all four commands; each command reads the options that it adds.
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
  add_count(command, "--width", options.generate.width, 1, kAny, "Row width: elements per row")
      ->required();
  add_count(command, "--workers", options.generate.workers, 1, kMaxTraceWorkers,
            "Number of workers")
      ->required();
  add_count(command, "--steps", options.generate.steps, 1, std::numeric_limits<int>::max(),
            "Number of training steps (default: 1)");
  add_dtype(command, "--dtype", options.generate.dtype, "Type of the values (default: f32)");
  add_count(command, "--seed", options.seed, 0, kAny,
            "Seed of all random draws and values (default: 1)");
  command.add_option("--out", options.out, "Folder of the trace to write")
      ->type_name("TRACE")
      ->required();
  command.add_flag("--force", options.force, "Replace the trace if it exists");
  add_json(command, options.json);
}

void add_batch(CLI::App& command, TraceOptions& options, const char* help) {
  add_count(command, "--batch", options.batch, 1, kAny, help)->required();
}

void add_sampled(CLI::App& command, TraceOptions& options) {
  add_count(command, "--sampled", options.sampled, 0, Index{1} << 31U,
            "Log-uniform draws to add per worker and step, as in a sampled softmax (default: 0)");
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

/// Sets the callback of a command: it makes a trace, writes it, and prints a summary.
/// @param make  returns the trace to write, from the options
template <typename Make>
void do_on_call(CLI::App& command, const std::shared_ptr<TraceOptions>& options, Make make) {
  command.callback([options, make] {
    options->generate.seed = static_cast<std::uint64_t>(options->seed);
    // Checked before the input is read, which may take long, so that the error appears at once.
    if (!options->force) {
      std::error_code ignored;
      if (std::filesystem::exists(std::filesystem::symlink_status(options->out, ignored))) {
        throw InputError(fmt::format("'{}' exists: choose another name, or replace it with --force",
                                     options->out));
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
  CLI::App& command =
      *trace.add_subcommand("from-text", "Make a trace from the words of text files");
  command
      .add_option("paths", options->paths,
                  "Text files; of a folder, all .py, .txt and .md files at any depth are read")
      ->type_name("PATH...")
      ->required();
  add_common(command, *options);
  add_batch(command, *options, "Words and punctuation marks per worker and step");
  add_count(command, "--vocabulary", options->vocabulary, 1, kAny,
            "Maximum number of rows; the last row represents all rarer words (default: one row "
            "per distinct word)");
  add_sampled(command, *options);
  command.footer(
      "Each distinct word (letters, digits, '_') or punctuation mark is a row. The most frequent\n"
      "is row 0.\n"
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
  CLI::App& command =
      *trace.add_subcommand("from-tokens", "Make a trace from token ids in a NumPy file");
  command.add_option("file", options->input, "NumPy array of integers, shape [tokens]")
      ->type_name("FILE.npy")
      ->required();
  add_count(command, "--rows", options->rows, 1, kAny,
            "Rows of the embedding; more than the largest token id")
      ->required();
  add_common(command, *options);
  add_batch(command, *options, "Tokens per worker and step");
  add_sampled(command, *options);
  command.footer(
      "At step s, worker w of n reads `batch` tokens from position (s*n + w) * batch on. Reading\n"
      "continues at the first token after the last one.\n"
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
  CLI::App& command =
      *trace.add_subcommand("from-fields", "Make a trace from categorical fields in a NumPy file");
  command.add_option("file", options->input, "NumPy array of integers, shape [samples, fields]")
      ->type_name("FILE.npy")
      ->required();
  add_common(command, *options);
  add_batch(command, *options, "Samples per worker and step");
  command.add_flag("--split", options->split,
                   "Make one tensor per field (default: one tensor for all fields)");
  command.footer(
      "Each field has a separate vocabulary with (largest value + 1) rows.\n"
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
  CLI::App& command =
      *trace.add_subcommand("synthetic", "Make a trace of rows drawn by Zipf's law");
  add_count(command, "--rows", options->rows, 1, kAny, "Rows of the embedding")->required();
  add_number(command, "--density", options->density, 0, 1,
             "Share of the rows that each worker touches in a step, 0 to 1")
      ->required();
  add_number(command, "--zipf", options->zipf, 0, kMaxZipf,
             "Exponent s: row r is drawn with weight (r + 1)^-s; 0 is uniform")
      ->required();
  add_common(command, *options);
  command.footer(
      "In each step, each worker draws round(density * rows) rows without replacement.\n"
      "Example:\n"
      "  sparsesync trace synthetic --rows 1000000 --width 32 --density 0.01 --zipf 1 --workers 8 "
      "--steps 4 --seed 1 --out TRACE");
  do_on_call(command, options, [](const TraceOptions& given) {
    return synthetic_trace(given.rows, given.density, given.zipf, given.generate);
  });
}

}  // namespace

void add_trace_command(CLI::App& app) {
  CLI::App& trace =
      *app.add_subcommand("trace", "Make a trace: the rows that each worker touches in each step");
  trace.footer(
      "Example:\n"
      "  sparsesync trace from-text /usr/lib/python3.11 --width 32 --workers 8 --batch 2560 --out "
      "TRACE\n"
      "Run 'sparsesync trace COMMAND --help' for the options of a command.");
  add_from_text(trace);
  add_from_tokens(trace);
  add_from_fields(trace);
  add_synthetic(trace);
}

}  // namespace sparsesync
