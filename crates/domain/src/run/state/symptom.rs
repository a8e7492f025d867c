//! What a change repairs: the reason for which the attempt before it failed or diverged.

use crate::run::knob::{Change, Symptom};
use crate::run::state::Cause;
use crate::run::state::attempt::Attempt;
use crate::run::state::machine::Machine;

impl Machine {
    /// Returns what a change of the current attempt repairs. Excluding a node repairs neither memory nor learning.
    pub(super) fn repaired_by(&self, change: &Change) -> Option<Symptom> {
        if !change.without.is_empty() || change.reverts.is_some() {
            return None;
        }
        self.divergence().or_else(|| self.out_of_memory())
    }

    fn divergence(&self) -> Option<Symptom> {
        let divergence = self.current().progress.divergence.as_ref()?;
        Some(Symptom::Divergence {
            last_good_step: divergence.last_good_step,
            bad_step: divergence.bad_step,
            good_below: divergence.good_below,
            worst_loss: divergence.worst_loss,
        })
    }

    /// Looks at the last attempts that failed. The current one does not count if it was only stopped for the change.
    fn out_of_memory(&self) -> Option<Symptom> {
        let was_stopped = self.current().has_cause(&Cause::Stopped);
        let failed = self.attempts.iter().rev().skip(usize::from(was_stopped));
        let failed = failed.take_while(|attempt| attempt.has_cause(&Cause::OutOfMemory));
        let last_step = failed.map(|attempt| attempt.last_step().unwrap_or(0)).max()?;
        let has_passed = was_stopped && self.current().last_step() > Some(last_step);
        (!has_passed).then_some(Symptom::OutOfMemory { last_step })
    }
}

impl Attempt {
    fn has_cause(&self, cause: &Cause) -> bool {
        self.outcome
            .as_ref()
            .is_some_and(|outcome| outcome.cause == *cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::{Rank, RunId};
    use crate::run::spec::Spec;
    use crate::run::state::{Divergence, Outcome};

    /// A run with attempts that ended for these causes after these steps.
    fn run(ended: &[(Cause, u64)]) -> Machine {
        let (mut run, _) = Machine::submit(RunId::new("r").expect("an id"), Spec::default(), 0);
        let first = run.attempts[0].clone();
        let attempt = |(cause, step): &(Cause, u64)| {
            let mut attempt = first.clone();
            attempt.progress.highest_step = Some(*step);
            attempt.outcome = Some(Outcome::new(cause.clone(), "words"));
            attempt
        };
        run.attempts = ended.iter().map(attempt).collect();
        run
    }

    #[test]
    fn a_change_after_out_of_memory_repairs_that_until_the_step_was_passed() {
        use Cause::{Exception, OutOfMemory, Stopped};
        for (ended, expected) in [
            (&[(OutOfMemory, 12)][..], Some(12)),
            (&[(OutOfMemory, 14), (OutOfMemory, 12)], Some(14)),
            (&[(OutOfMemory, 12), (Stopped, 11)], Some(12)),
            (&[(OutOfMemory, 12), (Stopped, 20)], None),
            (&[(OutOfMemory, 12), (Exception, 3)], None),
            (&[(Exception, 12)], None),
            (&[(Stopped, 12)], None),
        ] {
            let expected = expected.map(|last_step| Symptom::OutOfMemory { last_step });
            assert_eq!(run(ended).repaired_by(&Change::default()), expected, "{ended:?}");
        }
    }

    #[test]
    fn a_divergence_is_repaired_by_other_knobs_and_not_by_another_node() {
        let mut run = run(&[(Cause::Stopped, 60)]);
        run.attempts[0].progress.divergence = Some(Divergence {
            rank: Rank(0),
            last_good_step: 50,
            last_good_ms: 1,
            bad_step: 52,
            good_below: 1.5,
            worst_loss: Some(80.0),
        });
        let expected = Symptom::Divergence {
            last_good_step: 50,
            bad_step: 52,
            good_below: 1.5,
            worst_loss: Some(80.0),
        };
        assert_eq!(run.repaired_by(&Change::default()), Some(expected));
        let without = Change {
            without: vec!["n1".to_owned()],
            ..Change::default()
        };
        assert_eq!(run.repaired_by(&without), None);
    }
}
