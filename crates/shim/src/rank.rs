//! One rank as the shim sees it. The shim finds it among torchrun's children, watches it by a pidfd, and reads its exit status before
//! torchrun reaps it.
//!
//! torchrun is the parent of the ranks, so only torchrun can reap the exit statuses. But `/proc` shows a dead process until its parent
//! reaps it, and torchrun checks only twice per second, while the pidfd wakes the shim at once. If the status is gone anyway, torchrun's
//! log contains it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use domain::ident::Rank;
use domain::run::state::{Memory, RankExit};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Deserializer};

use crate::tree::{self, Stat};

/// A rank that is alive, or whose end is known.
#[derive(Debug)]
pub struct RankProcess {
    /// The rank's number in the attempt.
    pub rank: u32,
    /// The process id on this machine.
    pub pid: i32,
    /// Readable once the process has ended.
    pub pidfd: OwnedFd,
    /// How the rank ended, if known.
    pub exit: Option<RankExit>,
    /// The process ended and torchrun reaped its status before the shim read it.
    pub gone: bool,
    /// How the process ended, if the shim reaped it because torchrun had died before.
    pub(crate) taken: Option<End>,
}

/// The error record that a rank's probe sent when an exception ended the rank.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ErrorRecord {
    /// The sender's rank number.
    pub rank: u32,
    #[serde(default)]
    pub(crate) wall_ns: i64,
    #[serde(default, rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) traceback: String,
    #[serde(default, deserialize_with = "memory_if_it_is_some")]
    pub(crate) memory: Option<Box<Memory>>,
}

/// Ignores invalid memory details from a newer or broken probe, so that the rest of the record is kept.
fn memory_if_it_is_some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<Memory>>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// How a process ended: exit code or signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// The exit code.
    pub code: Option<i32>,
    /// The number of the signal that ended it.
    pub signal: Option<i32>,
}

impl End {
    /// Converts a status in the format of wait(2).
    pub(crate) fn from_wait_status(status: i32) -> Self {
        let signal = status & 0x7f;
        Self {
            code: (signal == 0).then_some((status >> 8) & 0xff),
            signal: (signal != 0).then_some(signal),
        }
    }

    /// Converts an exit code in Python's format: negative for signals.
    pub fn from_python(number: i32) -> Self {
        Self {
            code: (number >= 0).then_some(number),
            signal: (number < 0).then(|| -number),
        }
    }
}

/// Finds the ranks that have ended since the last call. `describe` makes the exit of each, which is stored with the rank and returned.
pub fn newly_ended(
    ranks: &mut BTreeMap<u32, RankProcess>,
    mut describe: impl FnMut(&RankProcess, End) -> RankExit,
) -> Vec<RankExit> {
    let mut exits = Vec::new();
    for rank in ranks.values_mut().filter(|rank| rank.lives()) {
        let Some(end) = rank.end() else {
            rank.gone = rank.is_gone();
            continue;
        };
        let exit = describe(rank, end);
        rank.exit = Some(exit.clone());
        exits.push(exit);
    }
    exits
}

impl RankProcess {
    /// Recognises a child of torchrun as a rank by its environment. Returns `(local rank, process)`.
    pub fn recognise(pid: i32) -> Option<(u32, Self)> {
        let environment = tree::environment(pid);
        let number = |name: &str| -> Option<u32> {
            let value = environment
                .iter()
                .find_map(|variable| variable.strip_prefix(name.as_bytes()))?;
            std::str::from_utf8(value).ok()?.parse().ok()
        };
        let (rank, local_rank) = (number("RANK=")?, number("LOCAL_RANK=")?);
        Some((local_rank, Self::hold(pid, rank)?))
    }

    /// Opens the process of a rank. Returns `None` if it does not exist any more.
    pub fn hold(pid: i32, rank: u32) -> Option<Self> {
        let pidfd = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        Some(Self {
            rank,
            pid,
            pidfd,
            exit: None,
            gone: false,
            taken: None,
        })
    }

    /// Returns true while the end of the rank has not been seen.
    pub fn lives(&self) -> bool {
        self.exit.is_none() && !self.gone
    }

    /// Returns true if the process has ended and has been reaped.
    pub fn is_gone(&self) -> bool {
        self.has_ended() && Stat::read(self.pid).is_none_or(|stat| !stat.is_zombie())
    }

    /// Returns true if the process has ended, according to its pidfd.
    pub(crate) fn has_ended(&self) -> bool {
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut ended, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Sends SIGTERM, then SIGCONT: a stopped process handles the SIGTERM only when it continues.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Signals by pidfd, so the signal never reaches another process that got the same id.
    pub(crate) fn signal(&self, signal: Signal) {
        let _gone = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }

    /// Returns how the process ended, if its status can still be read.
    pub fn end(&self) -> Option<End> {
        if self.taken.is_some() {
            return self.taken;
        }
        let stat = Stat::read(self.pid).filter(|stat| stat.is_zombie())?;
        Some(End::from_wait_status(stat.wait_status))
    }

    /// Builds the rank's exit from all known facts.
    pub fn describe(
        &self,
        end: End,
        error: Option<&ErrorRecord>,
        seen_ns: i64,
        out_of_memory: bool,
        last_step: Option<u64>,
    ) -> RankExit {
        let error = error.filter(|_| end.code != Some(0));
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        RankExit {
            rank: Rank(self.rank),
            code: end.code,
            signal: end.signal,
            out_of_memory: out_of_memory && end.signal == Some(9),
            error_type: error.and_then(|error| text(&error.kind)),
            message: error.and_then(|error| text(&error.message)),
            traceback: error.and_then(|error| text(&error.traceback)),
            memory: error.and_then(|error| error.memory.clone()),
            last_step,
            // The time of the exception, not of the exit: the rank that raised first is the cause, however long its teardown took.
            at_ns: error
                .map(|error| error.wall_ns)
                .filter(|at| *at > 0)
                .unwrap_or(seen_ns)
                .min(seen_ns),
        }
    }
}

/// Finds the exit code of a process in torchrun's log: `… failed (exitcode: -9) local_rank: 1 (pid: 42) of binary …`.
pub fn end_by_log(log: &str, pid: i32) -> Option<End> {
    let line = log
        .lines()
        .find(|line| line.contains("exitcode:") && line.contains(&format!("(pid: {pid})")))?;
    let number = line.split("exitcode:").nth(1)?.trim_start();
    let length = number
        .bytes()
        .take_while(|b| b.is_ascii_digit() || *b == b'-')
        .count();
    number[..length].parse().ok().map(End::from_python)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_as_the_kernel_and_python_write_them() {
        assert_eq!(
            End::from_wait_status(0x0100),
            End {
                code: Some(1),
                signal: None
            }
        );
        assert_eq!(
            End::from_wait_status(9),
            End {
                code: None,
                signal: Some(9)
            }
        );
        assert_eq!(
            End::from_wait_status(0x8b),
            End {
                code: None,
                signal: Some(11)
            }
        );
        let log = "E0101 api.py:1] failed (exitcode: -9) local_rank: 1 (pid: 42) of binary: python\nx";
        assert_eq!(
            end_by_log(log, 42),
            Some(End {
                code: None,
                signal: Some(9)
            })
        );
        assert_eq!(end_by_log(log, 4), None);
        assert_eq!(
            end_by_log("failed (exitcode: 3) local_rank: 0 (pid: 7)", 7).and_then(|end| end.code),
            Some(3)
        );
    }
}
