//! The single binary: collector, agent, and the command line client. Each subcommand has a file under `command`.

#![allow(clippy::print_stdout, reason = "a command line program prints its results")]

#[macro_use]
mod say;

mod client;
mod command;
mod failure;
mod locate;
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::command::Command;

/// jemalloc returns freed memory to the system, also memory that one thread allocates and another frees: a collector allocates samples on
/// some threads and frees them on others.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Settings that jemalloc reads at its start. Freed memory is returned within one second; otherwise the names of 250,000 series leave 90 MB
/// behind. Two arenas, because each arena keeps unused memory of its own and there are about a dozen threads.
#[expect(
    unsafe_code,
    reason = "the allocator finds its settings by this name alone; nothing else has it"
)]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: &[u8; 47] = b"narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// Watches PyTorch training on NVIDIA GPUs, shows which rank has a problem and why, and manages training runs.
#[derive(Parser)]
#[command(
    name = "lockstep",
    version,
    propagate_version = true,
    after_help = "First steps:
  lockstep demo                                  a simulated cluster with faults to find, in one process
  lockstep up --simulate h100x8                  a collector, an agent, and eight simulated GPUs
  lockstep run submit --recipe ddp --wait        a small training run
  lockstep run why RUN                           what is wrong with the run

Options of services can also be set by environment variables: --listen is LOCKSTEP_LISTEN. Exit codes: 0 success, 1 failure, 2 wrong usage, 3 no collector."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command.execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::fs;
    use std::path::Path;

    use clap::CommandFactory as _;
    use domain::rule::shipped;
    use domain::run::knob::KNOBS;

    use super::*;

    /// Checks that each `lockstep …` between backticks in the text is a command that exists, with options and knobs that exist. Returns
    /// their number.
    fn check(place: &str, text: &str) -> usize {
        let mut commands = 0;
        for line in text.lines() {
            let quoted = line.split('`').skip(1).step_by(2);
            for quoted in quoted.filter(|quoted| quoted.starts_with("lockstep ")) {
                commands += 1;
                let command = subcommand(place, quoted);
                check_options(place, quoted, &command);
            }
        }
        commands
    }

    /// Returns the innermost subcommand that the text names.
    fn subcommand(place: &str, quoted: &str) -> clap::Command {
        let mut command = Arguments::command();
        for word in quoted.split_whitespace().skip(1) {
            if let Some(found) = command.find_subcommand(word).cloned() {
                command = found;
                continue;
            }
            let argument = !word.chars().all(|letter| letter.is_ascii_lowercase());
            assert!(
                argument || !command.has_subcommands(),
                "{place}: `{quoted}`: `{}` has no subcommand {word:?}",
                command.get_name()
            );
            break;
        }
        command
    }

    fn check_options(place: &str, quoted: &str, command: &clap::Command) {
        for word in quoted.split_whitespace() {
            let (name, _) = word.split_once('=').unwrap_or((word, ""));
            if let Some(long) = name.strip_prefix("--") {
                let mut options = command.get_arguments().filter_map(clap::Arg::get_long);
                assert!(
                    options.any(|option| option == long),
                    "{place}: `{quoted}`: `{}` has no option {name}",
                    command.get_name()
                );
            } else if command.get_name() == "apply" && word.contains('=') {
                assert!(
                    KNOBS.iter().any(|knob| knob.name == name),
                    "{place}: `{quoted}`: no knob {name}"
                );
            }
        }
    }

    #[test]
    fn the_advice_of_rules_names_commands_that_exist() {
        let mut commands = 0;
        for rule in shipped::alerts() {
            for text in rule.annotations.values() {
                commands += check(&rule.name, text);
            }
        }
        assert!(commands > 10, "only {commands} commands were found");
    }

    #[test]
    fn the_pages_of_diagnoses_name_commands_that_exist() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/diagnoses");
        let mut commands = 0;
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            commands += check(&path.display().to_string(), &fs::read_to_string(&path).unwrap());
        }
        assert!(commands > 30, "only {commands} commands were found");
    }

    #[test]
    #[should_panic(expected = "has no subcommand \"node\"")]
    fn a_command_that_does_not_exist_is_found() {
        check("advice", "Drain it with `lockstep node drain NODE`.");
    }

    #[test]
    #[should_panic(expected = "has no option --now")]
    fn an_option_that_does_not_exist_is_found() {
        check("advice", "Stop it with `lockstep run stop RUN --now`.");
    }

    #[test]
    #[should_panic(expected = "no knob workers")]
    fn a_knob_that_does_not_exist_is_found() {
        check("advice", "Try `lockstep run apply RUN workers=4`.");
    }
}
