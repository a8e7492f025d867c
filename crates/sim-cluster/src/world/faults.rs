//! Starts faults.

use std::collections::BTreeSet;

use domain::diagnosis::input::Phase;
use domain::event::{Event, Severity};
use domain::ident::Rank;
use domain::run::state::{NodeReport, RankExit};
use domain::time::TimestampMs;

use super::{FaultBegun, NodeOutput, World};
use crate::attempt::{Attempt, AttemptPhase, Held};
use crate::fault::{Exit, FaultKind, Hold};
use crate::slowdown::BegunFault;

const SIGKILL: i32 = 9;

impl World {
    /// Returns the faults of the attempt that are due, in order of time. Only the first run of a scenario has faults, and each
    /// happens once.
    pub(super) fn due_faults(&mut self, attempt: &Attempt, now_ms: TimestampMs) -> Vec<BegunFault> {
        let AttemptPhase::Training { since_ms, training } = &attempt.phase else {
            return Vec::new();
        };
        let scenario = &attempt.scenario;
        let (run, done) = self
            .with_faults
            .entry(scenario.name.clone())
            .or_insert_with(|| (attempt.run.clone(), BTreeSet::new()));
        if *run != attempt.run || attempt.no != 1 {
            return Vec::new();
        }
        #[expect(clippy::cast_possible_truncation, reason = "minutes in milliseconds")]
        let begins_ms = |after_s: f64| since_ms + (after_s * 1e3) as TimestampMs;
        let due = scenario.faults.iter().enumerate();
        let mut due: Vec<BegunFault> = due
            .filter(|(index, fault)| begins_ms(fault.after_s) <= now_ms && done.insert(*index))
            .map(|(_, fault)| BegunFault {
                at_ms: begins_ms(fault.after_s),
                step: training.step() + 1,
                kind: fault.kind,
            })
            .collect();
        due.sort_by_key(|fault| fault.at_ms);
        due
    }

    /// Starts a fault of an attempt that has trained until then.
    pub(super) fn begin(&mut self, fault: BegunFault, attempt: &mut Attempt, outputs: &mut [NodeOutput]) {
        let at_ms = fault.at_ms;
        let step = attempt
            .training()
            .map_or(fault.step, |training| training.step() + 1);
        attempt.begun.push(BegunFault { step, ..fault });
        self.begun.push(FaultBegun {
            scenario: attempt.scenario.name.clone(),
            at_ms,
        });
        let mut hold = |rank, phase, hold| attempt.freeze(at_ms, Some(Held { rank, phase, hold }));
        match fault.kind {
            FaultKind::StopProcess { rank } => hold(rank, Phase::Backward, Hold::Stopped),
            FaultKind::Hold {
                rank,
                phase,
                hold: how,
            } => hold(rank, phase, how),
            FaultKind::PowerBrake { rank } => {
                let place = attempt.place(rank);
                if let Some(gpu) = place.and_then(|(node, gpu)| self.gpus[node].get_mut(gpu as usize)) {
                    gpu.is_braked = true;
                }
            }
            FaultKind::MemoryError { rank } => self.memory_error(rank, attempt, at_ms, outputs),
            FaultKind::Exit { rank, exit } => end(rank, exit, attempt, at_ms, outputs),
            FaultKind::LoseNode { rank } => {
                attempt.freeze(at_ms, None);
                self.lost.extend(attempt.place(rank).map(|(node, _)| node));
            }
            FaultKind::Slow { .. }
            | FaultKind::Stall { .. }
            | FaultKind::LargerBatch { .. }
            | FaultKind::BusyProcessor { .. }
            | FaultKind::LearningRate { .. }
            | FaultKind::NotFinite { .. }
            | FaultKind::FailSaves { .. } => {}
        }
    }

    fn memory_error(
        &mut self,
        rank: u32,
        attempt: &mut Attempt,
        now_ms: TimestampMs,
        outputs: &mut [NodeOutput],
    ) {
        let Some((node, gpu)) = attempt.place(rank) else {
            return;
        };
        if let Some(state) = self.gpus[node].get_mut(gpu as usize) {
            state.memory_errors += 1;
        }
        let message = format!("GPU {gpu} reports Xid 95: uncontained memory error; reset the GPU");
        outputs[node].events.push(Event {
            gpu: Some(gpu),
            run: Some(attempt.run.clone()),
            ..Event::new(now_ms, Severity::Critical, "xid", message)
        });
        raise(
            rank,
            "CUDA error: uncorrectable ECC error encountered",
            attempt,
            now_ms,
            outputs,
        );
    }
}

fn end(rank: u32, exit: Exit, attempt: &mut Attempt, now_ms: TimestampMs, outputs: &mut [NodeOutput]) {
    match exit {
        Exit::Exception => raise(rank, "sample 4711 has no label", attempt, now_ms, outputs),
        Exit::Killed => {
            let killed = RankExit {
                signal: Some(SIGKILL),
                ..RankExit::default()
            };
            leave(rank, killed, attempt, now_ms, outputs);
        }
    }
}

/// Ends a rank by an exception.
fn raise(rank: u32, message: &str, attempt: &mut Attempt, now_ms: TimestampMs, outputs: &mut [NodeOutput]) {
    let Some((node, _)) = attempt.place(rank) else {
        return;
    };
    let traceback = [
        "Traceback (most recent call last):",
        "  File \"/srv/train.py\", line 214, in <module>",
        "    loss.backward()",
    ];
    for line in traceback {
        outputs[node].line(attempt, rank, true, line.to_owned());
    }
    outputs[node].line(attempt, rank, true, format!("RuntimeError: {message}"));
    let raised = RankExit {
        code: Some(1),
        error_type: Some("RuntimeError".to_owned()),
        message: Some(message.to_owned()),
        traceback: Some(traceback.join("\n")),
        ..RankExit::default()
    };
    leave(rank, raised, attempt, now_ms, outputs);
}

/// Reports the end of a rank. No other rank makes progress without it.
fn leave(rank: u32, exit: RankExit, attempt: &mut Attempt, now_ms: TimestampMs, outputs: &mut [NodeOutput]) {
    let Some((node, _)) = attempt.place(rank) else {
        return;
    };
    let last_step = attempt.training().map(crate::training::Training::step);
    attempt.freeze(now_ms, None);
    outputs[node].report(
        attempt,
        NodeReport::RankExited(RankExit {
            rank: Rank(rank),
            last_step,
            at_ns: now_ms * 1_000_000,
            ..exit
        }),
    );
}
