//! `lockstep run list`: lists runs, newest first.

use clap::Args;
use domain::api::runs::RunSummary;

use super::submit::setting;
use super::{show, unknown};
use crate::client::Client;
use crate::failure::Failure;

/// Number of runs that are searched for labels: the maximum of the API.
const SEARCHED_MAX: u32 = 10_000;

/// Arguments of `list`.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep run list
  lockstep run list --label team=vision --label stage=pretrain")]
pub(super) struct List {
    /// Show only runs with this label. Can be repeated: a run must have all of them.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = setting)]
    labels: Vec<(String, String)>,
}

impl List {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let limit = (!self.labels.is_empty()).then(|| ("limit", SEARCHED_MAX.to_string()));
        let query: Vec<_> = limit.into_iter().collect();
        let mut runs: Vec<RunSummary> = client.get("/api/runs", &query).await?;
        runs.retain(|run| self.takes(run));
        show::list(&runs);
        for held in unknown::all(client).await? {
            eprintln!("{}", unknown::words(&held));
        }
        Ok(())
    }

    fn takes(&self, run: &RunSummary) -> bool {
        self.labels
            .iter()
            .all(|(key, value)| run.labels.get(key) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_must_have_all_labels() {
        let run: RunSummary = serde_json::from_value(serde_json::json!({
            "id": "ddp-1", "name": "ddp", "program": "ddp", "state": "running", "attempt": 1, "nodes": [],
            "world_size": 2, "submitted_ms": 0, "labels": {"team": "vision", "stage": "pretrain"},
        }))
        .expect("a run");
        for (labels, expected) in [
            (vec![], true),
            (vec![("team", "vision")], true),
            (vec![("team", "vision"), ("stage", "pretrain")], true),
            (vec![("team", "vision"), ("stage", "finetune")], false),
            (vec![("owner", "vision")], false),
        ] {
            let labels = labels
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()));
            let list = List {
                labels: labels.collect(),
            };
            assert_eq!(list.takes(&run), expected, "{:?}", list.labels);
        }
    }
}
