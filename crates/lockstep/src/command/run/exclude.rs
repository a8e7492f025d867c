//! `lockstep run exclude RUN NODE`: ends the current attempt and continues the run on other nodes.

use clap::Args;
use domain::api::runs::{ChangePreview, ExcludeNode, PreviewChange, RunView};
use domain::ident::AttemptNo;
use domain::run::knob::Change;

use super::{apply, follow, run_path};
use crate::client::Client;
use crate::failure::Failure;
use crate::table::printable;

/// Arguments of `exclude`.
#[derive(Args)]
#[command(
    after_help = "The current attempt ends, and the next one continues on other nodes from the last complete checkpoint. The command shows the \
cost, asks for confirmation, and then excludes the node. It refuses if no other node is free.

The node is excluded from this run only: other runs can use it. To undo the exclusion, stop and resume the run.

Examples:
  lockstep run show RUN                            the nodes of each attempt
  lockstep run exclude RUN node-b --dry-run        what would happen
  lockstep run exclude RUN node-b --yes --wait"
)]
pub(super) struct Exclude {
    /// ID of the run.
    run: String,
    /// Name of a node of the current attempt.
    node: String,
    /// Exclude the node only if this attempt is the current one. Default: the attempt for which the cost is shown.
    #[arg(long, value_name = "ATTEMPT")]
    expected: Option<u32>,
    /// Only show what would happen.
    #[arg(long, conflicts_with_all = ["yes", "wait"])]
    dry_run: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Wait until the next attempt runs. Exit code 1 if the run ends before.
    #[arg(long)]
    wait: bool,
}

impl Exclude {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let path = run_path(&self.run)?;
        let before: RunView = client.get(&path, &[]).await?;
        let asked = ExcludeNode {
            node: self.node.clone(),
            expected: Some(self.expected.map_or(before.summary.attempt, AttemptNo)),
        };
        let wanted = PreviewChange::Exclude(asked.clone());
        let preview: ChangePreview = client.post(&format!("{path}/preview"), &wanted).await?;
        if preview.change.is_none() {
            self.in_progress(&before)?;
            return self.wait_if_requested(client, &before).await;
        }
        for line in preview_lines(&self.run, &self.node, &preview) {
            say!("{}", printable(&line));
        }
        if self.dry_run {
            return Ok(());
        }
        if !self.yes && !confirmed()? {
            return Err(Failure::Failed(anyhow::anyhow!("nothing was changed")));
        }
        let view: RunView = client.post(&format!("{path}/exclude"), &asked).await?;
        match result_line(&self.node, &view) {
            Some(line) => eprintln!("{}", printable(&line)),
            None => self.in_progress(&view)?,
        }
        self.wait_if_requested(client, &view).await
    }

    /// Returns the result of a request that changed nothing: a change already waits for the end of the attempt.
    fn in_progress(&self, view: &RunView) -> Result<(), Failure> {
        let Self { run, node, .. } = self;
        if view.pending.as_ref().is_some_and(|change| excludes(change, node)) {
            eprintln!("{run}: the exclusion of {node} is already in progress; nothing was changed");
            return Ok(());
        }
        Err(Failure::Failed(anyhow::anyhow!(
            "{node} was not excluded, because another change of {run} is in progress; wait until its next attempt runs, then try again"
        )))
    }

    /// With `--wait`, waits until the attempt without the node runs.
    async fn wait_if_requested(&self, client: &Client, view: &RunView) -> Result<(), Failure> {
        let (run, attempt) = (&self.run, apply::next_attempt(view));
        if !self.wait || follow::until_attempt_runs(client, run, attempt).await? {
            return Ok(());
        }
        Err(Failure::Failed(anyhow::anyhow!(
            "{run} ended before attempt {attempt} started; `lockstep run show {run}` shows how it ended"
        )))
    }
}

fn confirmed() -> Result<bool, Failure> {
    crate::say::confirmed(
        "\nExclude this node? [y/N] ",
        "nothing was changed, because stdin is not a terminal; add --yes to skip the confirmation",
    )
}

fn excludes(change: &Change, node: &str) -> bool {
    change.without.iter().any(|excluded| excluded == node)
}

fn preview_lines(run: &str, node: &str, preview: &ChangePreview) -> Vec<String> {
    let mut lines = vec![
        format!("Exclude {node} from {run}"),
        format!("  cost    {}", preview.cost),
        format!("  undo    {}", preview.undo),
    ];
    let warnings = preview.change.iter().flat_map(|change| &change.warnings);
    lines.extend(warnings.map(|warning| format!("  warning {warning}")));
    lines
}

/// Describes what happens next. Returns `None` if the node was not excluded.
fn result_line(node: &str, view: &RunView) -> Option<String> {
    let run = &view.summary.id;
    let attempt = apply::next_attempt(view);
    if let Some(change) = &view.pending {
        let when = apply::end_of_attempt(view);
        return excludes(change, node)
            .then(|| format!("{run} continues {when} as attempt {attempt}, without {node}"));
    }
    // The attempt had already ended, so the next one has begun.
    let mut excluded = view.attempts.last()?.excluded.iter();
    excluded
        .any(|excluded| excluded.node == node)
        .then(|| format!("{run} continues as attempt {attempt}, without {node}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(more: Value) -> RunView {
        let mut view = json!({
            "id": "ddp-1", "name": "ddp", "program": "ddp", "state": "running", "attempt": 1, "nodes": ["n1"],
            "world_size": 2, "submitted_ms": 0, "spec": {"recipe": "ddp"}, "attempts": [],
        });
        let fields = view.as_object_mut().expect("an object");
        fields.extend(more.as_object().cloned().unwrap_or_default());
        serde_json::from_value(view).expect("a run")
    }

    fn command(node: &str) -> Exclude {
        Exclude {
            run: "ddp-1".to_owned(),
            node: node.to_owned(),
            expected: None,
            dry_run: false,
            yes: true,
            wait: false,
        }
    }

    #[test]
    fn the_result_says_when_the_run_continues_without_the_node() {
        let pending = json!({"restart": true, "without": ["n1"]});
        let begun = json!({
            "attempt": 2, "cause": "node excluded by a person", "started_ms": 0, "nodes": [],
            "excluded": [{"node": "n1", "reason": "excluded by a person"}],
        });
        for (more, expected) in [
            (
                json!({"pending": pending, "stop": {"after_step": 40}}),
                Some("ddp-1 continues after step 40 as attempt 2, without n1"),
            ),
            (
                json!({"pending": pending}),
                Some("ddp-1 continues when its processes have ended as attempt 2, without n1"),
            ),
            (
                json!({"attempt": 2, "attempts": [begun]}),
                Some("ddp-1 continues as attempt 2, without n1"),
            ),
            (json!({"pending": {"restart": true, "without": ["n2"]}}), None),
            (json!({}), None),
        ] {
            assert_eq!(
                result_line("n1", &view(more.clone())).as_deref(),
                expected,
                "{more}"
            );
        }
    }

    #[test]
    fn a_request_that_changed_nothing_fails_unless_the_node_is_being_excluded() {
        let pending = view(json!({"pending": {"restart": true, "without": ["n1"]}}));
        assert!(command("n1").in_progress(&pending).is_ok());
        assert!(command("n2").in_progress(&pending).is_err());
        assert!(command("n1").in_progress(&view(json!({}))).is_err());
    }

    #[test]
    fn the_cost_and_the_undo_are_shown_before_the_question() {
        let preview = ChangePreview {
            change: Some(Change {
                warnings: vec!["few nodes are free".to_owned()],
                ..Change::default()
            }),
            cost: "Ends attempt 1.".to_owned(),
            undo: "Stop and resume the run.".to_owned(),
            ..ChangePreview::default()
        };
        assert_eq!(
            preview_lines("ddp-1", "n1", &preview),
            [
                "Exclude n1 from ddp-1",
                "  cost    Ends attempt 1.",
                "  undo    Stop and resume the run.",
                "  warning few nodes are free",
            ]
        );
    }
}
