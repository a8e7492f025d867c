//! One rank as the shim sees it: found among torchrun's children, watched by a pidfd, its end read before torchrun takes it.
//!
//! torchrun is the ranks' parent, so the kernel tells the exit status to torchrun alone. But a dead process stays readable
//! until its parent looks, which torchrun does twice a second; the pidfd wakes the shim at once. Where the status is gone
//! all the same, torchrun's own log names it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use domain::ident::Rank;
use domain::run::state::{Memory, RankExit};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Deserializer};

use crate::tree::{self, Stat};

/// A living rank, or one whose end is known.
#[derive(Debug)]
pub struct RankProcess {
    /// Its place in the world.
    pub rank: u32,
    /// Its number on this machine.
    pub pid: i32,
    /// Readable once the process has ended.
    pub pidfd: OwnedFd,
    /// How it ended, once that is known.
    pub exit: Option<RankExit>,
    /// It ended, and torchrun took its status before we saw it.
    pub gone: bool,
    /// How it ended, when its status came to us because torchrun was dead already.
    pub(crate) taken: Option<End>,
}

/// What a rank's probe said when an exception ended it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct LastWords {
    /// Which rank said them.
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

/// Last words are worth having whatever a newer or a broken probe wrote here.
fn memory_if_it_is_some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<Memory>>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// How a process ended: exit code or signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// The exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl End {
    /// From a status as wait(2) gives it.
    pub(crate) fn from_wait_status(status: i32) -> Self {
        match status & 0x7f {
            0 => Self {
                code: Some((status >> 8) & 0xff),
                signal: None,
            },
            signal => Self {
                code: None,
                signal: Some(signal),
            },
        }
    }

    /// From a number as Python writes it: negative for signals.
    pub fn from_python(number: i32) -> Self {
        if number < 0 {
            Self {
                code: None,
                signal: Some(-number),
            }
        } else {
            Self {
                code: Some(number),
                signal: None,
            }
        }
    }
}

/// The ends of ranks that nobody had seen before, each described by `describe` and kept with its rank.
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
    /// Takes a child of torchrun for a rank when its environment says so: `(local rank, process)`.
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

    /// Takes hold of a process that is a rank; `None` when it is gone.
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

    /// Whether its end has not been seen yet.
    pub fn lives(&self) -> bool {
        self.exit.is_none() && !self.gone
    }

    /// Whether not even its remains are there.
    pub fn is_gone(&self) -> bool {
        self.has_ended() && Stat::read(self.pid).is_none_or(|stat| !stat.is_zombie())
    }

    /// Whether the kernel says so.
    pub(crate) fn has_ended(&self) -> bool {
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut ended, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// One that is stopped takes the SIGTERM once it goes on.
    pub(crate) fn ask_to_end(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// By pidfd: never reaches another process that got the same number.
    pub(crate) fn signal(&self, signal: Signal) {
        let _gone = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }

    /// How it ended, while it has not been taken from us.
    pub fn end(&self) -> Option<End> {
        if self.taken.is_some() {
            return self.taken;
        }
        let stat = Stat::read(self.pid).filter(|stat| stat.is_zombie())?;
        Some(End::from_wait_status(stat.wait_status))
    }

    /// Its exit, from all that is known.
    pub fn describe(
        &self,
        end: End,
        words: Option<&LastWords>,
        seen_ns: i64,
        out_of_memory: bool,
        last_step: Option<u64>,
    ) -> RankExit {
        let words = words.filter(|_| end.code != Some(0));
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        RankExit {
            rank: Rank(self.rank),
            code: end.code,
            signal: end.signal,
            out_of_memory: out_of_memory && end.signal == Some(9),
            error_type: words.and_then(|words| text(&words.kind)),
            message: words.and_then(|words| text(&words.message)),
            traceback: words.and_then(|words| text(&words.traceback)),
            memory: words.and_then(|words| words.memory.clone()),
            last_step,
            // The exception came before the exit: the rank that raised first is the cause, however long its teardown took.
            at_ns: words
                .map(|words| words.wall_ns)
                .filter(|at| *at > 0)
                .unwrap_or(seen_ns)
                .min(seen_ns),
        }
    }
}

/// What torchrun's log says of a process: `… failed (exitcode: -9) local_rank: 1 (pid: 42) of binary …`.
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
