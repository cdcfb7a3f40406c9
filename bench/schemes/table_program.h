// Command-line options and main function of the programs that print tables of schemes.
#pragma once

#include <fmt/format.h>

#include <array>
#include <exception>
#include <string>

#include "analysis/cli/command.h"

namespace sparsesync {

inline constexpr std::array kWorkers{2, 4, 8, 16, 32, 64};

/// Options of all table programs.
struct TableArguments {
  std::string data;  // folder of RealInputs
  std::string out;
  int repeat = 0;
  int most_workers = kWorkers.back();
  bool small = false;
};

/// @param repeat  the help text of --repeat
inline void add_table_options(CLI::App& app, TableArguments& given, const std::string& repeat) {
  app.add_option("--out", given.out, "write the table to this JSON file");
  add_count(app, "--repeat", given.repeat, 1, 1000, repeat);
  add_count(app, "--most-workers", given.most_workers, 2, kWorkers.back(),
            "skip inputs with more workers");
  app.add_flag("--small", given.small, "small tables, to test the program");
}

/// Parses the command line into `given`, builds a Table from it, prints it and writes its JSON.
/// @return the program's exit status
template <typename Table, typename Arguments>
int make_table(CLI::App& app, const Arguments& given, int count, char** arguments) {
  CLI11_PARSE(app, count, arguments);
  try {
    JsonOutput json(given.out);
    Table table(given);
    table.run();
    print(json.tables(), table.text());
    json.write(table.as_json());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", app.get_name(), error.what());
    return 1;
  }
}

}  // namespace sparsesync
