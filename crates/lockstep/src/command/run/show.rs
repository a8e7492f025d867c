//! Runs as text.

use domain::api::runs::{RankView, RunSummary, RunView};
use domain::run::state::RankExit;

use crate::table::{self, printable};

/// The list.
pub(super) fn list(runs: &[RunSummary]) {
    let rows: Vec<_> = runs
        .iter()
        .map(|run| {
            let why = run
                .outcome
                .as_ref()
                .map_or(String::new(), |outcome| outcome.message.clone());
            vec![
                run.id.clone(),
                run.state.as_str().to_owned(),
                run.program.clone(),
                run.nodes.join(","),
                run.world_size.to_string(),
                time(run.submitted_ms),
                why,
            ]
        })
        .collect();
    table::print(
        &["RUN", "STATE", "PROGRAM", "NODES", "RANKS", "SUBMITTED", "WHY"],
        &rows,
    );
}

/// One run.
pub(super) fn run(view: &RunView) {
    let summary = &view.summary;
    say!("{}  {}  {}", summary.id, summary.state.as_str(), summary.program);
    for attempt in &view.attempts {
        let outcome = attempt.outcome.as_ref().map_or("under way".to_owned(), |o| {
            format!("{}: {}", o.cause, printable(&o.message))
        });
        say!(
            "attempt {} ({}), begun {}: {outcome}",
            attempt.attempt,
            attempt.cause,
            time(attempt.started_ms)
        );
        for node in &attempt.nodes {
            say!("  {}: {}", node.node, printable(&node.command));
            let rows: Vec<_> = node.ranks.iter().map(rank_row).collect();
            table::print(&["  RANK", "PID", "STEP", "END"], &rows);
        }
    }
}

fn rank_row(rank: &RankView) -> Vec<String> {
    let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
    let end = rank.exit.as_ref().map_or("-".to_owned(), exit);
    vec![
        format!("  {}", rank.rank),
        number(rank.pid.map(u64::from)),
        number(rank.step),
        end,
    ]
}

/// How a rank ended, in a few words.
pub(super) fn exit(exit: &RankExit) -> String {
    if exit.out_of_memory {
        return "killed by the kernel: out of memory".to_owned();
    }
    match (&exit.error_type, exit.signal, exit.code) {
        (Some(kind), ..) => format!("{kind}: {}", exit.message.as_deref().unwrap_or("")),
        (None, Some(signal), _) => format!("signal {signal}"),
        (None, None, Some(code)) => format!("exit code {code}"),
        (None, None, None) => "ended".to_owned(),
    }
}

fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |t| t.to_string())
}
