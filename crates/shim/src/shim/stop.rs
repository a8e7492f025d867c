//! Ends the processes that the shim owns, within a bounded time, whatever they do.
//!
//! ```text
//!  begin ──SIGTERM, SIGCONT to each rank──▶ grace period; when the first rank has ended: SIGSTOP to torchrun
//!     ──SIGKILL to all but torchrun, repeatedly──▶ ranks ended, or 5 s
//!     ──SIGCONT to torchrun, which writes its last output──▶ 10 s ──SIGKILL──▶ torchrun ended, or 10 s
//!     ──sweep: all others get SIGTERM, after 2 s the whole group SIGKILL──▶ none left, or 30 s: they hang in the kernel
//! ```
//! A stopped rank cannot handle its SIGTERM, so it also gets SIGCONT. A rank that hangs in the kernel handles no signal at all: the shim
//! gives up on it and reports it, and the owner of the node must repair the node.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use domain::run::state::{EndCause, NodeEnd, NodeReport};
use rustix::process::Signal;

use crate::cgroup::Group;
use crate::files;
use crate::orders::StopOrder;
use crate::rank::{self, End, RankProcess};
use crate::shim::contained::ContainerProcesses;
use crate::shim::{
    FAILURE_GRACE, GRACE_DEFAULT, RANK_SEARCH_INTERVAL, STOP_CHECK_INTERVAL, Shim, ShimError, launcher,
    reap_one,
};
use crate::time::{now_ns, wait_for};
use crate::tree::{self, Process, SIGKILL};

/// How long the shim waits for space on a full disk to write its last reports after all processes have ended.
const LAST_REPORTS_TIMEOUT: Duration = Duration::from_secs(600);

/// A stop in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    /// A person or the collector requested the stop. Otherwise a rank failed.
    requested: bool,
    /// The ranks have received SIGTERM.
    signalled: bool,
    /// When SIGKILL follows.
    kill_at: Instant,
    killed: bool,
}

// === stopping ===

impl Shim {
    pub(super) fn check_for_stop(&mut self) {
        let mut drain = [0_u8; 16];
        let signalled = io::Read::read(&mut self.wakes, &mut drain).is_ok_and(|n| n > 0);
        let requested = match std::fs::read_to_string(self.folder.file(files::STOP)) {
            Ok(text) => Some(text.trim().parse().map_or(GRACE_DEFAULT, Duration::from_millis)),
            Err(_) => signalled.then_some(GRACE_DEFAULT),
        };
        let Some(grace) = requested else { return };
        match &mut self.stop {
            None => {
                self.begin_stop(true, grace);
                self.write_status("stopping");
            }
            Some(stop) if !stop.signalled => self.begin_stop(true, grace),
            // A later request can only shorten the grace period.
            Some(stop) => stop.kill_at = stop.kill_at.min(Instant::now() + grace),
        }
    }

    pub(super) fn begin_stop(&mut self, requested: bool, grace: Duration) {
        self.stop = Some(Stop {
            requested,
            signalled: true,
            kill_at: Instant::now() + grace,
            killed: false,
        });
        if self.ranks.is_empty() {
            self.launcher.signal(Signal::TERM);
            return;
        }
        self.suspend_torchrun();
        self.ranks
            .values()
            .filter(|rank| rank.lives())
            .for_each(RankProcess::terminate);
    }

    /// Suspends torchrun once a rank has ended. Otherwise torchrun would reap the statuses of the other ranks and end the ranks on its own
    /// schedule. It is not suspended earlier: ranks agree on the stop point and meet for the save through the store inside torchrun.
    fn suspend_torchrun(&self) {
        let killed = self.stop.is_some_and(|stop| stop.killed);
        if killed || self.ranks.values().any(|rank| !rank.lives()) {
            self.launcher.signal(Signal::STOP);
        }
    }

    /// Starts a stop after a rank failed. If a rank has reached the stop point, the others get their grace period. Before it, they have
    /// nothing left to wait for.
    pub(super) fn begin_stop_after_failure(&mut self) {
        match self.stop_order().filter(|_| self.reached_stop_point) {
            Some(order) => self.let_ranks_exit(Duration::from_millis(order.grace_ms)),
            None => self.begin_stop(false, FAILURE_GRACE),
        }
    }

    /// Lets the ranks exit by themselves after the stop point. A rank that still saves gets time for it, and no signal that would look like
    /// a second stop request. torchrun is suspended, because it would end the ranks on its own schedule.
    fn let_ranks_exit(&mut self, grace: Duration) {
        self.stop = Some(Stop {
            requested: true,
            signalled: false,
            kill_at: Instant::now() + grace,
            killed: false,
        });
        self.launcher.signal(Signal::STOP);
    }

    fn stop_order(&self) -> Option<StopOrder> {
        self.folder.read(files::STOP_AFTER).ok()
    }

    /// Continues a stop. Returns false once the shim gives up waiting for torchrun.
    pub(super) fn continue_stop(&mut self) -> bool {
        let due = |stop: &Stop| !stop.signalled && Instant::now() >= stop.kill_at;
        if self.stop.as_ref().is_some_and(due) {
            self.begin_stop(true, GRACE_DEFAULT);
        }
        let Some(stop) = &mut self.stop else { return true };
        let (now, timeouts) = (Instant::now(), self.setting.timeouts);
        stop.killed |= now >= stop.kill_at;
        let (killed, killed_at) = (stop.killed, stop.kill_at);
        let ranks_live = self.ranks.values().any(RankProcess::lives);
        if ranks_live {
            self.suspend_torchrun();
        }
        if killed && (ranks_live || self.ranks.is_empty()) {
            // The list is read each time, so that it also contains processes that were started between two checks.
            self.all_but_torchrun()
                .into_iter()
                .for_each(|process| process.signal(SIGKILL));
        }
        let given_up = killed && now >= killed_at + timeouts.killed;
        if (ranks_live && !given_up) || (self.ranks.is_empty() && !killed) {
            return true;
        }
        // The ranks' statuses are known. Now torchrun may reap them, write its last output and exit.
        self.launcher.signal(Signal::CONT);
        let exit_deadline = *self.launcher.exit_deadline.get_or_insert(now + timeouts.launcher);
        if now >= exit_deadline {
            self.launcher.signal(SIGKILL);
        }
        now < exit_deadline + timeouts.launcher
    }

    /// The processes that SIGKILL ends while torchrun is suspended. A container's runtime is left out too: it must report the end.
    fn all_but_torchrun(&mut self) -> BTreeSet<Process> {
        let torchrun = self.launcher.torchrun();
        let all = match &mut self.launcher.container {
            Some(container) => container.find(),
            None => self.owned(),
        };
        all.into_iter()
            .filter(|process| Some(process.pid) != torchrun)
            .collect()
    }

    /// All living processes that exist because of this shim.
    fn owned(&mut self) -> BTreeSet<Process> {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let grouped = self.group.iter().flat_map(Group::processes);
        let contained = self.launcher.container.iter_mut();
        let contained = contained.flat_map(ContainerProcesses::find);
        let all = grouped.chain(tree::descendants(own)).chain(contained);
        all.filter(|process| process.pid != own).collect()
    }
}

// === ending ===

impl Shim {
    pub(super) fn finish(mut self) -> Result<(), ShimError> {
        self.take_datagrams()?;
        let stays = self.remove_container()?;
        let left = self.sweep()?;
        self.note_exits_by_log();
        let end = self.launcher.end.unwrap_or_default();
        let requested = self.stop.is_some_and(|stop| stop.requested);
        let mut message = if end.code == Some(0) || requested {
            String::new()
        } else {
            launcher::last_output(&self.folder)
        };
        if !left.is_empty() {
            let pids: Vec<i32> = left.iter().map(|process| process.pid).collect();
            message = format!(
                "processes {pids:?} hang in the kernel and cannot be ended; check the node. {message}"
            );
        }
        if let Some(stays) = stays {
            message = format!("{stays}. {message}");
        }
        let cause = if requested {
            EndCause::Stopped
        } else {
            EndCause::Finished
        };
        let ended = NodeReport::Ended(NodeEnd {
            code: end.code,
            signal: end.signal,
            cause,
            message,
        });
        if let Some(group) = &self.group {
            group.remove();
        }
        self.write_status("ended");
        self.write_report(ended);
        let _gone = self.folder.remove(files::PROBE_SOCKET);
        let deadline = Instant::now() + LAST_REPORTS_TIMEOUT;
        while !self.pending_reports.is_empty() && Instant::now() < deadline {
            std::thread::sleep(STOP_CHECK_INTERVAL);
            self.write_pending_reports();
        }
        Ok(())
    }

    /// Reports the ranks whose status torchrun reaped before the shim read it, and the ranks that cannot be ended.
    fn note_exits_by_log(&mut self) {
        let log = std::fs::read(self.folder.file(files::LAUNCHER_STDERR)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let launcher_succeeded = self.launcher.end.is_some_and(|end| end.code == Some(0));
        let mut exits = Vec::new();
        for rank in self.ranks.values_mut().filter(|rank| rank.exit.is_none()) {
            let by_log = rank::end_by_log(&log, rank.pid);
            let end = by_log.unwrap_or(End {
                code: launcher_succeeded.then_some(0),
                signal: None,
            });
            let last_step = self.progress.last_step(rank.rank);
            let mut exit = rank.describe(end, self.errors.get(&rank.rank), now_ns(), false, last_step);
            if !rank.has_ended() {
                exit.message = Some(format!(
                    "process {} hangs in the kernel and does not handle signals",
                    rank.pid
                ));
            }
            rank.exit = Some(exit.clone());
            exits.push(exit);
        }
        exits
            .into_iter()
            .for_each(|exit| self.write_report(NodeReport::RankExited(exit)));
    }

    /// Ends everything that is left below the shim. Returns the processes that cannot be ended.
    fn sweep(&mut self) -> Result<BTreeSet<Process>, ShimError> {
        let (began, timeouts) = (Instant::now(), self.setting.timeouts);
        let mut terminated: BTreeSet<Process> = BTreeSet::new();
        loop {
            self.take_datagrams()?;
            self.reap();
            self.note_exits()?;
            let left = self.owned();
            if left.is_empty() || began.elapsed() > timeouts.sweep {
                // A process that died since the last check is not alive, but may not be reaped yet.
                self.reap();
                self.note_exits()?;
                return Ok(left);
            }
            if began.elapsed() > timeouts.sweep_before_kill || self.stop.is_some_and(|stop| stop.killed) {
                self.group.iter().for_each(Group::kill);
                left.iter().for_each(|process| process.signal(SIGKILL));
            } else {
                for process in left {
                    if terminated.insert(process) {
                        process.signal(Signal::TERM);
                        process.signal(Signal::CONT);
                    }
                }
            }
            let _interrupted = wait_for(std::iter::empty(), RANK_SEARCH_INTERVAL);
        }
    }

    /// Reaps all ended children, including orphans that the kernel gave to the shim. Records the end of torchrun, and of ranks that were
    /// reparented to the shim.
    pub(super) fn reap(&mut self) {
        while let Some((pid, end)) = reap_one() {
            if pid == self.launcher.pid {
                self.launcher.end = Some(end);
            } else if let Some(rank) = self
                .ranks
                .values_mut()
                .find(|rank| rank.pid == pid && rank.lives())
            {
                rank.taken = Some(end);
            }
        }
    }
}
