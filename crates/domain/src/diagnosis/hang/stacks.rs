//! Stacks of suspects, and what a suspect does according to its stacks and its processor time.

use std::collections::{BTreeMap, BTreeSet};

use super::inactivity::{Inactivity, View};
use crate::diagnosis::draft_finding::{WITNESSED_RANKS_MAX, witness};
use crate::diagnosis::finding::{Evidence, Source, Witness};
use crate::diagnosis::input::{Phase, ProcessCondition, StackAnswer};
use crate::diagnosis::members::{Members, seconds};
use crate::diagnosis::messages::{RankRequest, STACK_SAMPLES, STACK_SECONDS};
use crate::run::inspect::Frame;
use crate::time::TimestampMs;

/// How long to wait for answers.
const STACKS_WITHIN_MS: i64 = (STACK_SECONDS as i64) * 1_000 + 3_000;
/// Shares of a processor: a process below the first does nothing, a process above the second computes.
const IDLE_SHARE_MAX: f64 = 0.02;
const BUSY_SHARE_MIN: f64 = 0.5;
/// What threads use that wait for Python's lock: each wakes up every 5 ms to request it again.
const LOCK_WAIT_SHARE_MAX: f64 = 0.03;
/// A wait for data may take this many times the longest one before.
const LOADING_TIMES: f64 = 3.0;

/// Requests for stacks during one suspicion, and the answers.
#[derive(Debug, Clone, Default)]
pub(super) struct Stacks {
    /// When the suspicion began, by the collector's clock.
    suspected_ms: TimestampMs,
    requested: BTreeSet<usize>,
    requested_ms: Option<TimestampMs>,
    /// True if a waiting rank was included too. If it does not answer either, stacks are not available.
    has_control: bool,
    samples: BTreeMap<usize, Vec<Vec<Frame>>>,
    /// Pipes without a writer, by the place of the rank that reads them.
    pipes: BTreeMap<usize, String>,
    answered: bool,
}

/// What a suspect does, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SuspectActivity {
    /// The answer has not arrived yet.
    Pending,
    /// It works and will continue by itself.
    Work(AloneActivity),
    /// Nothing that makes progress.
    Nothing,
    /// Its stack could not be read, while the stacks of other ranks could.
    HoldsInterpreter,
    /// Its main thread has ended, and Python waits for other threads.
    Ends,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AloneActivity {
    Working,
    Saving,
    /// A batch. The workers of its loader start, read and fill their buffers, and the rank only waits for them.
    Loading,
    /// Code between steps, in which a script may wait for anything.
    HostCode,
}

impl Stacks {
    pub(super) fn new(suspected_ms: TimestampMs) -> Self {
        Self {
            suspected_ms,
            ..Self::default()
        }
    }

    pub(super) fn take(&mut self, members: &Members, answers: Vec<StackAnswer>) {
        self.answered = true;
        for answer in answers {
            if let Some(place) = members.place(answer.rank) {
                self.samples.insert(place, answer.samples);
                self.pipes
                    .extend(answer.pipe_without_writer.map(|pipe| (place, pipe)));
            }
        }
    }

    pub(super) fn request(
        &mut self,
        view: &View<'_>,
        inactivity: &Inactivity,
        places: &[usize],
        requests: &mut Vec<RankRequest>,
    ) {
        let mut requested: Vec<usize> = places
            .iter()
            .copied()
            .filter(|place| self.requested.insert(*place))
            .collect();
        if requested.is_empty() {
            return;
        }
        if !self.has_control {
            let control = inactivity
                .waiters
                .iter()
                .copied()
                .find(|place| !places.contains(place));
            self.has_control = control.is_some();
            requested.extend(control);
        }
        self.requested_ms = Some(view.now_ms);
        self.answered = false;
        requests.push(RankRequest::Stacks {
            suspected_ms: self.suspected_ms,
            ranks: view.rank_set(&requested),
        });
    }

    pub(super) fn activity(&self, view: &View<'_>, place: usize) -> SuspectActivity {
        let is_overdue = self
            .requested_ms
            .is_some_and(|requested_ms| view.now_ms - requested_ms >= STACKS_WITHIN_MS);
        if !self.answered && !is_overdue {
            return SuspectActivity::Pending;
        }
        let (status, cpu) = (&view.rank_statuses[place], view.usage.cpu_share_since_move(place));
        let work = view.usage.work_share_since_move(place);
        let samples = self.samples.get(&place).map_or(&[][..], Vec::as_slice);
        let control_answered = self
            .samples
            .iter()
            .any(|(other, samples)| *other != place && !samples.is_empty());
        let holds_lock = samples.is_empty() && control_answered;
        let in_kernel = status.condition == ProcessCondition::Uninterruptible;
        let idle_max = if holds_lock && !in_kernel && !status.is_before_first_step() {
            IDLE_SHARE_MAX + LOCK_WAIT_SHARE_MAX
        } else {
            IDLE_SHARE_MAX
        };
        let (is_idle, is_busy) = (
            cpu.is_some_and(|share| share < idle_max),
            work.is_some_and(|share| share > BUSY_SHARE_MIN),
        );
        if samples.iter().any(|frames| is_shutting_down(frames)) {
            return SuspectActivity::Ends;
        }
        // Whether its GPU is busy says nothing: a kernel of NCCL that waits for other ranks occupies the GPU.
        if different_stacks(samples) > 1 || samples.iter().any(|frames| is_compiling(frames)) {
            return SuspectActivity::Work(AloneActivity::Working);
        }
        if holds_lock && work.is_none_or(|share| share > BUSY_SHARE_MIN) {
            return SuspectActivity::HoldsInterpreter;
        }
        if self.pipes.contains_key(&place) && is_idle {
            return SuspectActivity::Nothing;
        }
        match status.phase() {
            Some(Phase::Save) if in_kernel || !is_idle => SuspectActivity::Work(AloneActivity::Saving),
            // Either an endless loop or an evaluation: it is a loop if the process is busy and its stack does not change.
            Some(_) if status.is_in_script() && (!is_busy || samples.is_empty()) => {
                SuspectActivity::Work(AloneActivity::HostCode)
            }
            Some(Phase::Data) if status.is_before_first_step() || may_load(view, place) => {
                SuspectActivity::Work(AloneActivity::Loading)
            }
            // Before the first step, models are loaded and compiled. Only a process that does nothing at all is stuck.
            _ if status.is_before_first_step() && !is_idle => SuspectActivity::Work(AloneActivity::Working),
            _ => SuspectActivity::Nothing,
        }
    }

    pub(super) fn witnesses(&self, view: &View<'_>, places: &[usize]) -> Vec<Witness> {
        let mut witnesses = Vec::new();
        for place in places.iter().take(WITNESSED_RANKS_MAX) {
            let source = Source::Rank {
                rank: view.members.rank(*place),
            };
            if let Some(samples) = self.samples.get(place).filter(|samples| !samples.is_empty()) {
                let innermost = samples.last().and_then(|frames| innermost(frames));
                let place =
                    innermost.map(|frame| format!("{} at {}:{}", frame.function, frame.file, frame.line));
                let different = different_stacks(samples) as f64;
                witnesses.push(
                    witness(source, Evidence::DifferentStacks, different)
                        .against(f64::from(STACK_SAMPLES))
                        .detail(place.unwrap_or_default()),
                );
            }
            let kernel = || Source::Kernel {
                node: view.members.node(*place).to_string(),
            };
            if let Some(pipe) = self.pipes.get(place) {
                let rank = view.members.rank(*place);
                let reads = witness(kernel(), Evidence::PipeWithoutWriter, 1.0);
                witnesses.push(reads.detail(format!("rank {rank}, {pipe}")));
            }
            if let Some(share) = view.usage.cpu_share_since_move(*place) {
                witnesses.push(
                    witness(kernel(), Evidence::CpuShare, share)
                        .in_ratio()
                        .detail(format!("rank {}", view.members.rank(*place))),
                );
            }
        }
        witnesses
    }
}

/// Returns true if the rank has not waited for data for much longer than any rank before, for example at the beginning of this epoch.
fn may_load(view: &View<'_>, place: usize) -> bool {
    let longest_s = view.rank_statuses.iter().map(|status| status.longest_data_s);
    let longest_s = longest_s.fold(0.0, f64::max);
    let since_ms = view.rank_statuses[place].phase_since_ms;
    let until_ms = view.members.complete_until_ms(place).unwrap_or(since_ms);
    seconds(until_ms - since_ms) < LOADING_TIMES * longest_s
}

/// Returns true if the main thread has left the script and waits for other threads, in `threading._shutdown`.
fn is_shutting_down(frames: &[Frame]) -> bool {
    let outermost = frames.last();
    outermost.is_some_and(|frame| frame.function == "_shutdown" && frame.file.ends_with("threading.py"))
}

/// Returns true if `torch.compile` compiles. Other processes do most of this work, so the rank itself may do nothing for a long time.
/// Neither of these files takes part when compiled code runs.
fn is_compiling(frames: &[Frame]) -> bool {
    const COMPILER: [&str; 2] = [
        "torch/_dynamo/convert_frame.py",
        "torch/_inductor/async_compile.py",
    ];
    let is_of_compiler = |frame: &Frame| COMPILER.iter().any(|file| frame.file.ends_with(file));
    frames.iter().any(is_of_compiler)
}

/// Returns the innermost call that is not part of the probe, because the probe wraps waits.
fn innermost(frames: &[Frame]) -> Option<&Frame> {
    let of_script = frames
        .iter()
        .find(|frame| !frame.file.contains("/lockstep_probe/"));
    of_script.or_else(|| frames.first())
}

/// Returns the number of different stacks. The line of the innermost call is ignored, because a loop that does nothing has several lines.
fn different_stacks(samples: &[Vec<Frame>]) -> usize {
    let seen: BTreeSet<Vec<(&str, &str, u32)>> = samples
        .iter()
        .map(|frames| {
            let calls = frames.iter().enumerate();
            calls
                .map(|(depth, frame)| {
                    let line = if depth == 0 { 0 } else { frame.line };
                    (frame.file.as_str(), frame.function.as_str(), line)
                })
                .collect()
        })
        .collect();
    seen.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_reported_at_the_call_of_the_script() {
        let frame = |file: &str, line| Frame {
            file: file.to_owned(),
            line,
            function: "wait".to_owned(),
        };
        let probe = frame("/lib/inject/lockstep_probe/waits.py", 135);
        let script = frame("/home/me/train.py", 46);
        let line = |frames: &[Frame]| innermost(frames).map(|frame| frame.line);
        assert_eq!(line(&[probe.clone(), script]), Some(46));
        assert_eq!(line(&[probe]), Some(135));
        assert_eq!(line(&[]), None);
    }
}
