//! Starts faults.

use domain::event::{Event, Severity};
use domain::ident::Rank;
use domain::run::state::{NodeReport, RankExit};
use domain::time::TimestampMs;

use super::{NodeOutput, World};
use crate::attempt::{Attempt, AttemptPhase, seconds};
use crate::fault::FaultKind;

impl World {
    /// Starts the faults of the attempt that are due. Only the first run of a workload has faults, and each happens once.
    pub(super) fn begin_faults(
        &mut self,
        attempt: &mut Attempt,
        now_ms: TimestampMs,
        outputs: &mut [NodeOutput],
    ) {
        let AttemptPhase::Training { since_ms, .. } = attempt.phase else {
            return;
        };
        let (run, done) = self
            .with_faults
            .entry(attempt.workload.name)
            .or_insert_with(|| (attempt.run.clone(), Default::default()));
        if *run != attempt.run || attempt.no != 1 {
            return;
        }
        let trained_s = seconds(now_ms - since_ms);
        let due = attempt.workload.faults.iter().enumerate();
        let due = due.filter(|(_, fault)| trained_s >= fault.after_s);
        let new: Vec<FaultKind> = due
            .filter(|(index, _)| done.insert(*index))
            .map(|(_, fault)| fault.kind)
            .collect();
        for fault in new {
            self.begin(fault, attempt, now_ms, outputs);
        }
    }

    fn begin(
        &mut self,
        fault: FaultKind,
        attempt: &mut Attempt,
        now_ms: TimestampMs,
        outputs: &mut [NodeOutput],
    ) {
        match fault {
            FaultKind::PowerBrake { rank } => {
                if let Some((node, gpu)) = attempt.place(rank) {
                    self.gpus[node][gpu as usize].is_braked = true;
                }
            }
            FaultKind::StopProcess { rank } => attempt.freeze(now_ms, Some(rank)),
            FaultKind::MemoryError { rank } => self.memory_error(rank, attempt, now_ms, outputs),
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
        self.gpus[node][gpu as usize].memory_errors += 1;
        let last_step = attempt.training().map(crate::training::Training::step);
        outputs[node].events.push(Event {
            at_ms: now_ms,
            severity: Severity::Critical,
            kind: "xid".to_owned(),
            node: None,
            gpu: Some(gpu),
            run: Some(attempt.run.clone()),
            message: format!("GPU {gpu} reports Xid 95: uncontained memory error; reset the GPU"),
        });
        let message = "CUDA error: uncorrectable ECC error encountered";
        let traceback = [
            "Traceback (most recent call last):",
            "  File \"/srv/train.py\", line 214, in <module>",
            "    loss.backward()",
        ];
        for line in traceback {
            outputs[node].line(attempt, rank, true, line.to_owned());
        }
        outputs[node].line(attempt, rank, true, format!("RuntimeError: {message}"));
        attempt.freeze(now_ms, None);
        outputs[node].report(
            attempt,
            NodeReport::RankExited(RankExit {
                rank: Rank(rank),
                code: Some(1),
                error_type: Some("RuntimeError".to_owned()),
                message: Some(message.to_owned()),
                traceback: Some(traceback.join("\n")),
                last_step,
                at_ns: now_ms * 1_000_000,
                ..RankExit::default()
            }),
        );
    }
}
