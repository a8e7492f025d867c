//! Cleans up after a shim that ended without an end report: it was killed, or the machine was restarted.
//!
//! Nothing that the shim owned may continue without an owner, so all of it is ended. Then the end is reported as accurately as possible. If
//! the shim recorded a rank's exit, or torchrun's log contains it, that exit is used. If all exits are known, they determine the end of the
//! attempt. Otherwise the cause is the death of the shim.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use domain::ident::{NodeName, Rank};
use domain::run::state::{EndCause, NodeEnd, NodeReport, RankExit};
use domain::run::torchrun::Launch;
use shim::{Entry, Folder, LeftoverProcesses, end_by_log, files};

use crate::launch::container;
use crate::launch::supervise::Attempt;
use crate::uplink::link::now_ms;

/// Interval between checks for remaining processes.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Processes that SIGKILL has not ended by then hang in the kernel.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Ends the remaining processes of an attempt and reports its end.
pub(super) async fn clean_up(attempt: &Attempt, node: &NodeName) {
    if attempt.folder().is_watched() {
        let message = "lockstep exec was killed; the command may continue unwatched".to_owned();
        let end = NodeEnd {
            cause: EndCause::ShimDied,
            message,
            ..NodeEnd::default()
        };
        return attempt.report(NodeReport::Ended(end)).await;
    }
    let marks = vec![
        format!("LOCKSTEP_RUN={}", attempt.run()),
        format!("LOCKSTEP_ATTEMPT={}", attempt.number()),
        format!("LOCKSTEP_NODE={node}"),
    ];
    tracing::error!(run = %attempt.run(), attempt = %attempt.number(), "a shim died; its remaining processes are ended");
    let leftovers = LeftoverProcesses::of(attempt.folder(), marks);
    let deadline = Instant::now() + ENDS_WITHIN;
    while leftovers.kill() && Instant::now() < deadline {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    let launch = attempt.folder().read::<Launch>(files::LAUNCH).ok();
    // After the processes: the runtime also finds those that cannot be found otherwise.
    let stays = match launch.and_then(|launch| launch.container) {
        Some(contained) => container::remove(contained.runtime, &contained.name)
            .await
            .map(|why| format!("container {} could not be removed: {why}. ", contained.name)),
        None => None,
    };
    let left: Vec<i32> = leftovers.find().into_iter().map(|process| process.pid).collect();
    leftovers.close();

    let entries = attempt.entries();
    let log = std::fs::read(attempt.folder().file(files::LAUNCHER_STDERR)).unwrap_or_default();
    let late = exits_by_log(&entries, &String::from_utf8_lossy(&log));
    for exit in &late {
        attempt.report(NodeReport::RankExited(exit.clone())).await;
    }
    let mut end = final_report(attempt.folder(), &entries, &late, leftovers.are_of_another_boot());
    if !left.is_empty() {
        end.message = format!(
            "processes {left:?} hang in the kernel and cannot be ended; check the node. {}",
            end.message
        );
    }
    if let Some(stays) = stays {
        end.message = format!("{stays}{}", end.message);
    }
    attempt.report(NodeReport::Ended(end)).await;
}

/// Returns the exits that the shim did not record before it died.
fn exits_by_log(entries: &[Entry], log: &str) -> Vec<RankExit> {
    let known = exits(entries);
    let started = entries.iter().filter_map(|entry| match &entry.report {
        NodeReport::RankStarted { rank, pid, .. } => Some((*rank, *pid)),
        _ => None,
    });
    let unknown = started.filter(|(rank, _)| !known.contains_key(rank));
    let exits = unknown.filter_map(|(rank, pid)| {
        let end = end_by_log(log, i32::try_from(pid).ok()?)?;
        // Later than all that the shim recorded. SIGTERM comes from torchrun, after another rank failed.
        let cascade = i64::from(end.signal == Some(libc::SIGTERM));
        Some(RankExit {
            rank,
            code: end.code,
            signal: end.signal,
            at_ns: now_ms() * 1_000_000 + cascade,
            ..RankExit::default()
        })
    });
    exits.collect()
}

fn exits(entries: &[Entry]) -> BTreeMap<Rank, &RankExit> {
    let exits = entries.iter().filter_map(|entry| match &entry.report {
        NodeReport::RankExited(exit) => Some((exit.rank, exit)),
        _ => None,
    });
    exits.collect()
}

fn final_report(folder: &Folder, entries: &[Entry], late: &[RankExit], other_boot: bool) -> NodeEnd {
    let mut known = exits(entries);
    known.extend(late.iter().map(|exit| (exit.rank, exit)));
    let expected = folder
        .read::<Launch>(files::LAUNCH)
        .map_or(0, |launch| launch.nproc);
    if expected > 0 && known.len() >= expected as usize {
        let well = known.values().all(|exit| !exit.failed());
        let cause = if folder.has(files::STOP) {
            EndCause::Stopped
        } else {
            EndCause::Finished
        };
        return NodeEnd {
            code: well.then_some(0),
            cause,
            message: "the shim was killed after all ranks had ended".into(),
            ..NodeEnd::default()
        };
    }
    let log = std::fs::read_to_string(folder.file(files::SHIM_LOG)).unwrap_or_default();
    let message = match log.lines().last() {
        _ if other_boot => "the machine was restarted".into(),
        Some(last) => last.to_owned(),
        None => {
            "the shim was killed; its processes were ended, so the exit codes of its ranks are unknown".into()
        }
    };
    NodeEnd {
        cause: EndCause::ShimDied,
        message,
        ..NodeEnd::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn entries(reports: Vec<NodeReport>) -> Vec<Entry> {
        let numbered = (1..).zip(reports);
        numbered
            .map(|(id, report)| Entry { id, at_ms: 0, report })
            .collect()
    }

    fn started(rank: u32, pid: u32) -> NodeReport {
        let (rank, local_rank) = (Rank(rank), rank);
        NodeReport::RankStarted {
            rank,
            local_rank,
            pid,
        }
    }

    fn exited(rank: u32, code: i32) -> NodeReport {
        NodeReport::RankExited(RankExit {
            rank: Rank(rank),
            code: Some(code),
            ..RankExit::default()
        })
    }

    #[test]
    fn the_end_is_reported_as_accurately_as_possible() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        let launch = Launch {
            nproc: 2,
            ..Launch::default()
        };
        folder.write_json(files::LAUNCH, &launch).unwrap();
        let end_of = |reports: Vec<NodeReport>, log: &str, other_boot| {
            let entries = entries(reports);
            let end = final_report(&folder, &entries, &exits_by_log(&entries, log), other_boot);
            (end.cause, end.code)
        };
        let both = || vec![started(0, 10), started(1, 11)];
        let with = |more: Vec<NodeReport>| [both(), more].concat();
        assert_eq!(end_of(both(), "", false), (EndCause::ShimDied, None));
        assert_eq!(
            end_of(with(vec![exited(0, 0)]), "", true),
            (EndCause::ShimDied, None)
        );
        let well = with(vec![exited(0, 0), exited(1, 0)]);
        assert_eq!(end_of(well.clone(), "", false), (EndCause::Finished, Some(0)));
        let log = "failed (exitcode: -9) local_rank: 1 (pid: 11) of binary: python\n";
        assert_eq!(
            end_of(with(vec![exited(0, 0)]), log, false),
            (EndCause::Finished, None)
        );
        let by_log = exits_by_log(&entries(both()), log);
        assert_eq!(
            (by_log.len(), by_log[0].rank, by_log[0].signal),
            (1, Rank(1), Some(9))
        );
        folder.write(files::STOP, b"0").unwrap();
        assert_eq!(end_of(well, "", false), (EndCause::Stopped, Some(0)));
    }
}
