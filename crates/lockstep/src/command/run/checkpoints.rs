//! `lockstep run checkpoints …`: lists, pins and prunes the checkpoints of a run.

use std::io::IsTerminal;

use clap::{Args, Subcommand};
use domain::api::checkpoints::{
    CheckpointList, CheckpointView, PinCheckpoint, PruneAnswer, PruneCheckpoints, PruneLine,
};

use super::{run_path, show};
use crate::client::Client;
use crate::failure::Failure;
use crate::table::{self, printable};

/// Lists the checkpoints, unless a subcommand is given.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Checkpoints {
    /// ID of the run.
    #[arg(required = true)]
    run: Option<String>,
    /// Print the API's response as JSON.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Keep a checkpoint, whatever the retention rules say.
    Pin {
        /// ID of the run.
        run: String,
        /// Path of the checkpoint, as shown by the list.
        path: String,
        /// Remove the pin instead.
        #[arg(long)]
        off: bool,
    },
    /// Remove the checkpoints that no rule keeps. Only checkpoints that this run provably wrote are removed, and its last complete one is
    /// always kept.
    Prune {
        /// ID of the run.
        run: String,
        /// Number of newest checkpoints to keep, instead of the number in the run's specification.
        #[arg(long)]
        keep_last: Option<u32>,
        /// Only list what would be removed and what would be kept, with reasons.
        #[arg(long)]
        dry_run: bool,
        /// Do not ask. Without a terminal, the command never asks.
        #[arg(long)]
        yes: bool,
    },
}

impl Checkpoints {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        match self.action {
            Some(Action::Pin { run, path, off }) => pin(client, &run, path, !off).await,
            Some(Action::Prune {
                run,
                keep_last,
                dry_run,
                yes,
            }) => prune(client, &run, keep_last, dry_run, yes).await,
            None => list(client, &self.run.unwrap_or_default(), self.json).await,
        }
    }
}

async fn list(client: &Client, run: &str, json: bool) -> Result<(), Failure> {
    let path = format!("{}/checkpoints", run_path(run)?);
    let list: CheckpointList = client.get(&path, &[]).await?;
    if json {
        return crate::say::json(&list);
    }
    if let Some(folder) = &list.folder {
        let free = list
            .free_bytes
            .map_or(String::new(), |free| format!(", {} free", bytes(free)));
        say!("{}{free}", printable(folder));
    }
    if let Some(problem) = &list.problem {
        say!("{}", printable(problem));
    }
    let rows: Vec<_> = list
        .checkpoints
        .iter()
        .map(|checkpoint| row(checkpoint, &list.retention))
        .collect();
    table::print(
        &[
            "STEP", "SIZE", "OWN", "FINISHED", "BEHIND", "STATE", "PATH", "PRUNE",
        ],
        &rows,
    );
    Ok(())
}

fn row(checkpoint: &CheckpointView, retention: &PruneAnswer) -> Vec<String> {
    let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
    vec![
        number(checkpoint.step),
        bytes(checkpoint.bytes),
        bytes(checkpoint.own_bytes),
        checkpoint.finished_ms.map_or("-".to_owned(), show::time),
        number(checkpoint.age_steps),
        state(checkpoint),
        checkpoint.path.clone(),
        on_prune(&checkpoint.path, retention),
    ]
}

/// Returns what a prune by the run's own rules would do with a checkpoint; `-` if the collector does not report it.
fn on_prune(path: &str, retention: &PruneAnswer) -> String {
    let find = |lines: &[PruneLine]| {
        lines
            .iter()
            .find(|line| line.path == path)
            .map(|line| line.reason.clone())
    };
    let removed = find(&retention.removed).map(|reason| format!("remove: {reason}"));
    let kept = || find(&retention.kept).map(|reason| format!("keep: {reason}"));
    removed.or_else(kept).unwrap_or_else(|| "-".to_owned())
}

fn state(checkpoint: &CheckpointView) -> String {
    let mut words = Vec::new();
    match (&checkpoint.problem, checkpoint.complete, checkpoint.writing) {
        (_, true, _) => words.push(checkpoint.content.clone()),
        (_, false, true) => words.push("being written".into()),
        (Some(problem), ..) => words.push(problem.clone()),
        (None, ..) => words.push("incomplete".into()),
    }
    for (is, word) in [
        (checkpoint.pinned, "pinned"),
        (checkpoint.best, "best"),
        (checkpoint.in_use, "in use"),
        (checkpoint.foreign, "from before the run"),
    ] {
        if is {
            words.push(word.into());
        }
    }
    if let Some(reason) = &checkpoint.not_removed {
        words.push(format!("not removed: {reason}"));
    }
    words.join(", ")
}

async fn pin(client: &Client, run: &str, path: String, pinned: bool) -> Result<(), Failure> {
    let at = format!("{}/checkpoints/pin", run_path(run)?);
    let _list: CheckpointList = client.post(&at, &PinCheckpoint { path, pinned }).await?;
    Ok(())
}

async fn prune(
    client: &Client,
    run: &str,
    keep_last: Option<u32>,
    dry_run: bool,
    yes: bool,
) -> Result<(), Failure> {
    let at = format!("{}/checkpoints/prune", run_path(run)?);
    let mut request = PruneCheckpoints {
        dry_run: true,
        keep_last,
        ..PruneCheckpoints::default()
    };
    let answer: PruneAnswer = client.post(&at, &request).await?;
    print_retention(&answer, dry_run);
    if dry_run || answer.removed.is_empty() {
        return Ok(());
    }
    // A script has no one to ask.
    let asks = !yes && std::io::stdin().is_terminal();
    if asks && !crate::say::confirmed("\nRemove these checkpoints? [y/N] ", "")? {
        return Err(Failure::Failed(anyhow::anyhow!("nothing was removed")));
    }
    // The collector removes exactly what it has listed.
    request.dry_run = false;
    request.removes = PruneLine::paths(&answer.removed);
    let _same: PruneAnswer = client.post(&at, &request).await?;
    Ok(())
}

/// Prints what is removed and what is kept, with reasons.
fn print_retention(answer: &PruneAnswer, dry_run: bool) {
    let verb = if dry_run { "would remove" } else { "remove" };
    let line = |verb: &str, line: &PruneLine| {
        vec![
            verb.to_owned(),
            bytes(line.own_bytes),
            line.path.clone(),
            line.reason.clone(),
        ]
    };
    let going = answer.removed.iter().map(|one| line(verb, one));
    let staying = answer.kept.iter().map(|one| line("keep", one));
    let rows: Vec<_> = going.chain(staying).collect();
    table::print(&["", "OWN", "PATH", "REASON"], &rows);
    let freed = answer.removed.iter().map(|one| one.own_bytes).sum();
    say!(
        "{} of {} checkpoints, {}",
        answer.removed.len(),
        rows.len(),
        bytes(freed)
    );
}

/// Formats a size, for example `3.4 GiB`.
fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1_024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10).min(5);
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit behind the point")]
    let value = bytes as f64 / f64::from(1_u32 << 10).powi(power.cast_signed());
    format!("{value:.1} {}", UNITS[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_states_in_words() {
        let sizes = [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_536, "1.5 KiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ];
        for (size, text) in sizes {
            assert_eq!(bytes(size), text);
        }
        let torn = CheckpointView {
            problem: Some(".metadata is missing".into()),
            pinned: true,
            ..CheckpointView::default()
        };
        assert_eq!(state(&torn), ".metadata is missing, pinned");
        let whole = CheckpointView {
            complete: true,
            content: "full".into(),
            in_use: true,
            not_removed: Some("pinned (on n1)".into()),
            ..CheckpointView::default()
        };
        assert_eq!(state(&whole), "full, in use, not removed: pinned (on n1)");
        let line = |path: &str, reason: &str| PruneLine {
            path: path.into(),
            reason: reason.into(),
            ..PruneLine::default()
        };
        let retention = PruneAnswer {
            removed: vec![line("/c/1", "older than the last 1")],
            kept: vec![line("/c/2", "not proven to be this run's: notes.txt")],
        };
        for (path, expected) in [
            ("/c/1", "remove: older than the last 1"),
            ("/c/2", "keep: not proven to be this run's: notes.txt"),
            ("/c/3", "-"),
        ] {
            assert_eq!(on_prune(path, &retention), expected);
        }
    }
}
