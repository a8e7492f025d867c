//! Ending what the shim owns, in bounded time whatever it does.
//!
//! ```text
//!  begin ──SIGTERM, SIGCONT to each rank──▶ grace; the first has ended: SIGSTOP to torchrun
//!     ──SIGKILL to all but torchrun, again and again──▶ ranks ended, or 5 s
//!     ──SIGCONT to torchrun: it says what it has to say──▶ 10 s ──SIGKILL──▶ torchrun ended, or 10 s
//!     ──sweep: what is left, SIGTERM, 2 s, then the whole group──▶ nothing left, or 30 s: then it hangs in the kernel
//! ```
//! A rank that was stopped cannot take its SIGTERM: it is continued. One that hangs in the kernel takes no signal at all: it
//! is given up, named, and left to the node's owner.

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
    FAILURE_GRACE, GRACE_DEFAULT, LOOK_AROUND, LOOK_FOR_RANKS, Shim, ShimError, launcher, reap_one,
};
use crate::time::{now_ns, wait_for};
use crate::tree::{self, Process, SIGKILL};

/// A disk that is full when everything has ended may get room again; until then the end waits to be told.
const TELL_WITHIN: Duration = Duration::from_secs(600);

/// A stop under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    /// A person or the collector asked; otherwise a rank failed.
    asked: bool,
    /// The ranks have had SIGTERM.
    told: bool,
    /// When SIGKILL follows.
    kill_at: Instant,
    killed: bool,
}

// === stopping ===

impl Shim {
    pub(super) fn look_for_stop(&mut self) {
        let mut drain = [0_u8; 16];
        let signalled = io::Read::read(&mut self.wakes, &mut drain).is_ok_and(|n| n > 0);
        let asked = match std::fs::read_to_string(self.folder.file(files::STOP)) {
            Ok(text) => Some(text.trim().parse().map_or(GRACE_DEFAULT, Duration::from_millis)),
            Err(_) => signalled.then_some(GRACE_DEFAULT),
        };
        let Some(grace) = asked else { return };
        match &mut self.stop {
            None => {
                self.begin_stop(true, grace);
                self.note_status("stopping");
            }
            Some(stop) if !stop.told => self.begin_stop(true, grace),
            // A stop can become more urgent, never less.
            Some(stop) => stop.kill_at = stop.kill_at.min(Instant::now() + grace),
        }
    }

    pub(super) fn begin_stop(&mut self, asked: bool, grace: Duration) {
        self.stop = Some(Stop {
            asked,
            told: true,
            kill_at: Instant::now() + grace,
            killed: false,
        });
        if self.ranks.is_empty() {
            self.launcher.signal(Signal::TERM);
            return;
        }
        self.hold_torchrun();
        self.ranks
            .values()
            .filter(|rank| rank.lives())
            .for_each(RankProcess::ask_to_end);
    }

    /// From the first rank's end on torchrun is held: it would take the statuses of the others, and end them by its own ideas of time.
    /// Not before: the store in it is where ranks agree on the step to stop after, or meet for the save.
    fn hold_torchrun(&self) {
        let killed = self.stop.is_some_and(|stop| stop.killed);
        if killed || self.ranks.values().any(|rank| !rank.lives()) {
            self.launcher.signal(Signal::STOP);
        }
    }

    /// A rank has failed. Behind the step that all were told to end after, the others have their time; before it they have nothing
    /// left to wait for.
    pub(super) fn begin_stop_after_failure(&mut self) {
        match self.stop_order().filter(|_| self.came_to_stop_step) {
            Some(order) => self.let_end(Duration::from_millis(order.grace_ms)),
            None => self.begin_stop(false, FAILURE_GRACE),
        }
    }

    /// The ranks end by themselves, behind the step they were told: whoever still saves has time to, without a signal that would
    /// look like a second wish. torchrun is held, or it would end them by its own ideas.
    fn let_end(&mut self, grace: Duration) {
        self.stop = Some(Stop {
            asked: true,
            told: false,
            kill_at: Instant::now() + grace,
            killed: false,
        });
        self.launcher.signal(Signal::STOP);
    }

    fn stop_order(&self) -> Option<StopOrder> {
        self.folder.read(files::STOP_AFTER).ok()
    }

    /// Takes a stop further; whether torchrun is to be waited for any longer.
    pub(super) fn pursue_stop(&mut self) -> bool {
        let untold = |stop: &Stop| !stop.told && Instant::now() >= stop.kill_at;
        if self.stop.as_ref().is_some_and(untold) {
            self.begin_stop(true, GRACE_DEFAULT);
        }
        let Some(stop) = &mut self.stop else { return true };
        let (now, patience) = (Instant::now(), self.setting.patience);
        stop.killed |= now >= stop.kill_at;
        let (killed, killed_at) = (stop.killed, stop.kill_at);
        let ranks_live = self.ranks.values().any(RankProcess::lives);
        if ranks_live {
            self.hold_torchrun();
        }
        if killed && (ranks_live || self.ranks.is_empty()) {
            // Each time anew: what was started between two looks is among those of the next.
            self.all_but_torchrun()
                .into_iter()
                .for_each(|process| process.signal(SIGKILL));
        }
        let given_up = killed && now >= killed_at + patience.killed;
        if (ranks_live && !given_up) || (self.ranks.is_empty() && !killed) {
            return true;
        }
        // The ranks' statuses are known: now torchrun may see them, say what it has to say, and go.
        self.launcher.signal(Signal::CONT);
        let go_by = *self.launcher.go_by.get_or_insert(now + patience.launcher);
        if now >= go_by {
            self.launcher.signal(SIGKILL);
        }
        now < go_by + patience.launcher
    }

    /// What SIGKILL ends while torchrun is to see its ranks end. A container's runtime is left to tell the end as well.
    fn all_but_torchrun(&self) -> BTreeSet<Process> {
        let torchrun = self.launcher.torchrun();
        let all = match &self.launcher.container {
            Some(container) => container.find(),
            None => self.owned(),
        };
        all.into_iter()
            .filter(|process| Some(process.pid) != torchrun)
            .collect()
    }

    /// Everything alive that is there because of this shim.
    fn owned(&self) -> BTreeSet<Process> {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let grouped = self.group.iter().flat_map(Group::processes);
        let contained = self.launcher.container.iter().flat_map(ContainerProcesses::find);
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
        let asked = self.stop.is_some_and(|stop| stop.asked);
        let mut message = if end.code == Some(0) || asked {
            String::new()
        } else {
            launcher::last_output(&self.folder)
        };
        if !left.is_empty() {
            let pids: Vec<i32> = left.iter().map(|process| process.pid).collect();
            message = format!(
                "processes {pids:?} hang in the kernel and cannot be ended; the node needs a look. {message}"
            );
        }
        if let Some(stays) = stays {
            message = format!("{stays}. {message}");
        }
        let cause = if asked {
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
        self.note_status("ended");
        self.say(ended);
        let _gone = self.folder.remove(files::PROBE_SOCKET);
        let told_by = Instant::now() + TELL_WITHIN;
        while !self.unsaid.is_empty() && Instant::now() < told_by {
            std::thread::sleep(LOOK_AROUND);
            self.say_the_rest();
        }
        Ok(())
    }

    /// Ranks whose status torchrun took before we saw it, and those that cannot be ended.
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
            let mut exit = rank.describe(end, self.words.get(&rank.rank), now_ns(), false, last_step);
            if !rank.has_ended() {
                exit.message = Some(format!(
                    "process {} hangs in the kernel, where no signal reaches it",
                    rank.pid
                ));
            }
            rank.exit = Some(exit.clone());
            exits.push(exit);
        }
        exits
            .into_iter()
            .for_each(|exit| self.say(NodeReport::RankExited(exit)));
    }

    /// Ends everything that is left below the shim; what it returns cannot be ended.
    fn sweep(&mut self) -> Result<BTreeSet<Process>, ShimError> {
        let (began, patience) = (Instant::now(), self.setting.patience);
        let mut asked_nicely: BTreeSet<Process> = BTreeSet::new();
        loop {
            self.take_datagrams()?;
            self.reap();
            self.note_exits()?;
            let left = self.owned();
            if left.is_empty() || began.elapsed() > patience.sweep {
                // Who died since the last look lives no more, but has not been taken yet.
                self.reap();
                self.note_exits()?;
                return Ok(left);
            }
            if began.elapsed() > patience.sweep_nicely || self.stop.is_some_and(|stop| stop.killed) {
                self.group.iter().for_each(Group::kill);
                left.iter().for_each(|process| process.signal(SIGKILL));
            } else {
                for process in left {
                    if asked_nicely.insert(process) {
                        process.signal(Signal::TERM);
                        process.signal(Signal::CONT);
                    }
                }
            }
            let _interrupted = wait_for(std::iter::empty(), LOOK_FOR_RANKS);
        }
    }

    /// Takes all ended children, orphans handed to us among them; notes torchrun's end, and that of ranks whose parent it was.
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
