//! `lockstep rules check|test|list`

mod check;
mod list;
mod test;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use domain::api::alerts::RuleView;

use crate::client::Target;
use crate::failure::Failure;

/// Check and test rule files, and list the rules in force.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep rules check my-rules.yaml             exit code 1 when something is wrong
  lockstep rules test my-rules.test.yaml         what `promtool test rules` takes, unchanged
  lockstep rules list")]
pub(crate) struct Rules {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Read rule files in Prometheus' format and say what is wrong with them. Needs no collector.
    Check {
        /// The files, or patterns for them.
        #[arg(required = true)]
        files: Vec<String>,
        /// Also fail when two rules of a file have the same name and labels.
        #[arg(long)]
        lint_fatal: bool,
    },
    /// Run rule tests, in the format of `promtool test rules`. Needs no collector.
    Test {
        /// The test files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Only tests whose name matches.
        #[arg(long, value_name = "REGEX")]
        run: Option<regex::Regex>,
        /// Say what every evaluation gives.
        #[arg(long)]
        debug: bool,
    },
    /// List the collector's rules and what they say now.
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
