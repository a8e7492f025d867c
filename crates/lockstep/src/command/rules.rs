//! `lockstep rules check|list`

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use domain::api::alerts::RuleView;
use domain::rule::RuleFile;

use crate::client::Target;
use crate::failure::Failure;
use crate::table;

/// Check rule files, and list the rules in force.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep rules check my-rules.yaml             exit code 1 when something is wrong
  lockstep rules list")]
pub(crate) struct Rules {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Read rule files in Prometheus' format and say what is wrong with them. Needs no collector.
    Check {
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
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
            Action::Check { files } => files.iter().try_for_each(check).map_err(Failure::Failed),
            Action::List { target } => {
                list(&target.client()?.get::<Vec<RuleView>>("/api/rules", &[]).await?);
                Ok(())
            }
        }
    }
}

fn check(path: &PathBuf) -> anyhow::Result<()> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("{name} could not be read"))?;
    let file = RuleFile::parse(&text).with_context(|| format!("{name} is not usable"))?;
    let mut count = 0;
    for group in &file.groups {
        for rule in &group.rules {
            for (place, text) in rule.queries() {
                query::parse(&text).with_context(|| {
                    format!("{name}: group {:?}, rule {:?}, {place}", group.name, rule.alert)
                })?;
            }
            count += 1;
        }
    }
    say!("{name}: {count} rules, all usable");
    Ok(())
}

fn list(rules: &[RuleView]) {
    let rows: Vec<_> = rules
        .iter()
        .map(|rule| {
            let firing = rule
                .alerts
                .iter()
                .filter(|alert| alert.fired_ms.is_some())
                .count();
            let state = match (&rule.error, firing, rule.alerts.len()) {
                (Some(error), ..) => format!("error: {error}"),
                (None, 0, 0) => "quiet".to_owned(),
                (None, firing, all) => format!("{firing} firing, {} pending", all - firing),
            };
            vec![rule.group.clone(), rule.name.clone(), state]
        })
        .collect();
    table::print(&["GROUP", "RULE", "STATE"], &rows);
}
