// The program `sparsesync`: its commands. Every error prints one line and sets the exit status.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "analysis/cli/command.h"
#include "engine/support/log.h"
#include "engine/support/output_file.h"
#include "kernels/base/printable.h"
#include "sparsesync/errors.h"

namespace sparsesync {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

/// Returns `text` as one printable line: runs of blanks and control characters become one space.
std::string folded(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const bool blank = static_cast<unsigned char>(c) <= ' ' || c == '\x7F';
    if (!blank) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return printable(line);
}

int report(const std::string& text, int status) {
  std::fprintf(stderr, "sparsesync: %s\n", folded(text).c_str());
  return status;
}

/// Returns the innermost sub-command that the parser recognized.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  return *command;
}

/// Returns a command's full name, such as "sparsesync trace synthetic".
std::string full_name(const CLI::App& command) {
  return command.get_parent() == nullptr
             ? command.get_name()
             : full_name(*command.get_parent()) + " " + command.get_name();
}

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string suggestion(const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(name, known);
  return nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest);
}

/// Returns the arguments that neither `command` nor any of its parents accepts.
std::vector<std::string> unknown_words(const CLI::App& command) {
  std::vector<std::string> words = command.remaining();
  std::erase(words, "--");  // precedes the command of `launch`
  if (command.get_parent() != nullptr) {
    const std::vector<std::string> outer = unknown_words(*command.get_parent());
    words.insert(words.end(), outer.begin(), outer.end());
  }
  return words;
}

/// Returns the parser's message as a sentence.
std::string plain_text(const CLI::ParseError& error) {
  std::string text = error.what();
  if (error.get_name() != "ArgumentMismatch") return text;
  const std::string option = text.substr(0, text.find(':'));
  const bool missing = text.find("missing") != std::string::npos;
  return option + (missing ? " needs a value" : " is given more than once");
}

/// Describes a usage error and its fix in one line.
/// @param text  the parser's message; empty if a sub-command is missing
std::string usage_error(const CLI::App& app, const std::string& text) {
  const CLI::App& command = innermost(app);
  const std::string help = fmt::format("; see '{} --help'", full_name(command));
  const std::vector<std::string> commands = command_names(command);
  // An unknown word often causes the other errors, such as a missing option: report it first.
  const std::vector<std::string> unknown = unknown_words(command);
  for (const std::string& word : unknown) {
    if (word.size() > 1 && word[0] == '-') {
      const std::string bare = word.substr(0, word.find('='));
      return fmt::format("unknown option '{}'{}{}", bare, suggestion(bare, option_names(command)),
                         help);
    }
  }
  if (!unknown.empty() && !commands.empty()) {
    return fmt::format("unknown command '{}'{}: use one of {}{}", unknown[0],
                       suggestion(unknown[0], commands), fmt::join(commands, ", "), help);
  }
  if (!unknown.empty()) return fmt::format("unexpected argument '{}'{}", unknown[0], help);
  if (text.empty()) {
    return fmt::format("a command is missing: use one of {}{}", fmt::join(commands, ", "), help);
  }
  return text + help;
}

/// Opens /dev/null for each closed standard stream. Otherwise the next opened file would become
/// standard output and receive the tables.
void open_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is this stream's.
    if (open("/dev/null", stream == STDIN_FILENO ? O_RDONLY : O_WRONLY) != stream) {
      throw IoError(fmt::format("cannot open /dev/null in place of the closed stream {}: {}",
                                stream, std::generic_category().message(errno)));
    }
  }
}

int run(int argc, char** argv) {
  CLI::App app(
      "Measures, predicts and simulates the synchronization of sparse gradients in distributed "
      "training.",
      "sparsesync");
  app.footer(
      "Example:\n"
      "  sparsesync trace from-text /usr/lib/python3.11 --width 32 --workers 8 --batch 2560 --out "
      "TRACE\n"
      "  sparsesync compare TRACE --rate 200mbit\n"
      "Run 'sparsesync COMMAND --help' for the options of a command.");
  app.get_formatter()->column_width(34);
  add_trace_command(app);
  add_compare_command(app);
  add_calibrate_command(app);
  add_profile_command(app);
  add_plan_command(app);
  add_simulate_command(app);
  add_launch_command(app);
  add_info_command(app);

  if (argc <= 1) {
    std::fprintf(stderr, "usage: sparsesync COMMAND [OPTIONS]\ncommands:\n");
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      std::fprintf(stderr, "  %-10s %s\n", command->get_name().c_str(),
                   command->get_description().c_str());
    }
    std::fprintf(stderr, "see 'sparsesync --help'\n");
    return kWrongUse;
  }
  set_log_level_from_environment();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const CLI::App& command = innermost(app);
    print(stdout, command.help(command.get_parent() ? full_name(*command.get_parent()) : ""));
    return 0;
  } catch (const CLI::RuntimeError& error) {  // of a command that has reported the error
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return report(usage_error(app, plain_text(error)), kWrongUse);
  }
  // A command with sub-commands does nothing by itself.
  if (!command_names(innermost(app)).empty()) return report(usage_error(app, ""), kWrongUse);
  print(stdout, "");
  return 0;
}

}  // namespace
}  // namespace sparsesync

int main(int argc, char** argv) {
  using sparsesync::report;
  try {
    sparsesync::open_closed_streams();
    // `launch` writes no files and forwards signals.
    const bool launches = argc > 1 && std::string_view(argv[1]) == "launch";
    if (!launches) sparsesync::remove_uncommitted_on_signals();
    return sparsesync::run(argc, argv);
  } catch (const sparsesync::InputError& error) {
    return report(error.what(), sparsesync::kWrongUse);
  } catch (const std::bad_alloc&) {
    return report("out of memory; use a smaller input or fewer workers", sparsesync::kFailed);
  } catch (const std::exception& error) {
    return report(error.what(), sparsesync::kFailed);
  }
}
