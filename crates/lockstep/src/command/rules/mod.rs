//! `lockstep rules check|test|list`

mod check;
mod list;
mod test;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use domain::api::alerts::RuleView;

use crate::client::Target;
use crate::failure::Failure;

/// Check and test rule files, and list the collector's rules.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep rules check my-rules.yaml             exit code 1 if a file is invalid
  lockstep rules test my-rules.test.yaml         an unchanged file of `promtool test rules`
  lockstep rules list")]
pub(crate) struct Rules {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Check rule files in Prometheus' format and report all mistakes. Needs no collector.
    Check {
        /// Rule files, or glob patterns for them.
        #[arg(required = true)]
        files: Vec<String>,
        /// Also fail if two rules of a file have the same name and labels.
        #[arg(long)]
        lint_fatal: bool,
    },
    /// Run rule tests in the format of `promtool test rules`. Needs no collector.
    Test {
        /// Test files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Run only tests whose name matches.
        #[arg(long, value_name = "REGEX")]
        run: Option<regex::Regex>,
        /// Print the result of every evaluation.
        #[arg(long)]
        debug: bool,
    },
    /// List the collector's rules and their current state.
    List {
        #[command(flatten)]
        target: Target,
    },
}

impl Rules {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        match self.action {
            Action::Check { files, lint_fatal } => check::all(&files, lint_fatal),
            Action::Test { files, run, debug } => test::all(&files, &test::Options { run, debug }),
            Action::List { target } => {
                list::print(&target.client()?.get::<Vec<RuleView>>("/api/rules", &[]).await?);
                Ok(())
            }
        }
    }
}
