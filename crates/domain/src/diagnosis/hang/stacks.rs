//! Stacks of suspects, and what a suspect does by its stacks and its processor time.

use std::collections::{BTreeMap, BTreeSet};

use super::still::{Still, View};
use crate::diagnosis::exchange::{Question, STACK_SAMPLES, STACK_SECONDS};
use crate::diagnosis::finding::{Evidence, Source, Witness};
use crate::diagnosis::found::{WITNESSED_RANKS_MAX, witness};
use crate::diagnosis::input::{Phase, ProcessCondition, StackAnswer};
use crate::diagnosis::members::Members;
use crate::run::inspect::Frame;
use crate::time::TimestampMs;

/// How long answers are waited for.
const STACKS_WITHIN_MS: i64 = (STACK_SECONDS as i64) * 1_000 + 3_000;
/// A process that uses less of a processor does nothing; one that uses more computes.
const IDLE_SHARE_MAX: f64 = 0.02;
const BUSY_SHARE_MIN: f64 = 0.5;
/// A GPU that is used more works.
const GPU_BUSY_MIN: f64 = 0.1;

/// What was asked about stacks during one suspicion, and answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Stacks {
    asked: BTreeSet<usize>,
    asked_ms: Option<TimestampMs>,
    /// A rank that waits, asked beside the suspects: if it does not answer, stacks cannot be had.
    has_control: bool,
    samples: BTreeMap<usize, Vec<Vec<Frame>>>,
    /// Pipes that cannot bring anything, by the place of the rank that reads them.
    pipes: BTreeMap<usize, String>,
    answered: bool,
}

/// What a suspect does, as far as it can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// The answer is not there yet.
    Pending,
    /// Something: it will come.
    Work(AloneAt),
    /// Nothing that moves it on.
    Nothing,
    /// Its stack could not be read while others' could.
    HoldsInterpreter,
    /// Its main thread has ended, and Python waits for other threads.
    Ends,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AloneAt {
    Working,
    Saving,
    /// Code between steps, in which a script may wait for what it wants.
    HostCode,
}

impl Stacks {
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

    pub(super) fn ask(
        &mut self,
        view: &View<'_>,
        still: &Still,
        places: &[usize],
        questions: &mut Vec<Question>,
    ) {
        let mut asked: Vec<usize> = places
            .iter()
            .copied()
            .filter(|place| self.asked.insert(*place))
            .collect();
        if asked.is_empty() {
            return;
        }
        if !self.has_control {
            let control = still
                .waiters
                .iter()
                .copied()
                .find(|place| !places.contains(place));
            self.has_control = control.is_some();
            asked.extend(control);
        }
        self.asked_ms = Some(view.now_ms);
        self.answered = false;
        questions.push(Question::Stacks {
            ranks: view.rank_set(&asked),
        });
    }

    pub(super) fn doing(&self, view: &View<'_>, place: usize) -> Doing {
        let is_overdue = self
            .asked_ms
            .is_some_and(|asked| view.now_ms - asked >= STACKS_WITHIN_MS);
        if !self.answered && !is_overdue {
            return Doing::Pending;
        }
        let (seat, cpu) = (&view.seats[place], view.usage.cpu_share_since_move(place));
        let work = view.usage.work_share_since_move(place);
        let (is_idle, is_busy) = (
            cpu.is_some_and(|share| share < IDLE_SHARE_MAX),
            work.is_some_and(|share| share > BUSY_SHARE_MIN),
        );
        let samples = self.samples.get(&place).map_or(&[][..], Vec::as_slice);
        if samples.iter().any(|frames| is_shutting_down(frames)) {
            return Doing::Ends;
        }
        let is_gpu_busy = view.usage.gpu(place).and_then(|gpu| gpu.utilization_ratio);
        if different_stacks(samples) > 1 || is_gpu_busy.is_some_and(|busy| busy > GPU_BUSY_MIN) {
            return Doing::Work(AloneAt::Working);
        }
        let control_answered = self
            .samples
            .iter()
            .any(|(other, samples)| *other != place && !samples.is_empty());
        if samples.is_empty() && control_answered && work.is_none_or(|share| share > BUSY_SHARE_MIN) {
            return Doing::HoldsInterpreter;
        }
        if self.pipes.contains_key(&place) && is_idle {
            return Doing::Nothing;
        }
        let in_kernel = seat.condition == ProcessCondition::Uninterruptible;
        match seat.phase() {
            Some(Phase::Save) if in_kernel || !is_idle => Doing::Work(AloneAt::Saving),
            // It computes for ever, or it evaluates: a stack that does not change tells the two apart.
            Some(_) if seat.is_in_script() && (!is_busy || samples.is_empty()) => {
                Doing::Work(AloneAt::HostCode)
            }
            // Models are loaded and compiled before the first step: only a process that does nothing at all will never come.
            _ if seat.is_before_first_step() && !is_idle => Doing::Work(AloneAt::Working),
            _ => Doing::Nothing,
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

/// Whether the main thread has left the script and waits for other threads, in `threading._shutdown`.
fn is_shutting_down(frames: &[Frame]) -> bool {
    let outermost = frames.last();
    outermost.is_some_and(|frame| frame.function == "_shutdown" && frame.file.ends_with("threading.py"))
}

/// The innermost call that is not the probe's own, which surrounds waits.
fn innermost(frames: &[Frame]) -> Option<&Frame> {
    let of_script = frames
        .iter()
        .find(|frame| !frame.file.contains("/lockstep_probe/"));
    of_script.or_else(|| frames.first())
}

/// Stacks that are not the same. The line of the innermost call does not count: a loop that does nothing has several.
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
    fn a_wait_is_told_by_the_call_of_the_script() {
        let frame = |file: &str, line| Frame {
            file: file.to_owned(),
            line,
            function: "wait".to_owned(),
        };
        let probe = frame("/lib/inject/lockstep_probe/waits.py", 135);
        let script = frame("/home/me/train.py", 46);
        let told = |frames: &[Frame]| innermost(frames).map(|frame| frame.line);
        assert_eq!(told(&[probe.clone(), script]), Some(46));
        assert_eq!(told(&[probe]), Some(135));
        assert_eq!(told(&[]), None);
    }
}
