//! Faults of checkpoints: no disk space to save one, and one that a crash left incomplete.

use anyhow::Result;

use crate::fault::{Cause, Expected, Fault, SAVE_EVERY, SAVED_AT, SetUp, VICTIM};
use crate::fault_run::FaultRun;
use crate::ranks;

/// The disk is full when the next checkpoint is saved, so the files that were written are not a checkpoint. The run continues when there is
/// space again.
pub(crate) const DISK_FULL: Fault = Fault {
    name: "disk-full-in-checkpoint",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        separate_machine: false,
        small_disk: true,
    },
    inflict: disk_full,
    expected: Expected::resumed(Cause {
        words: &["checkpoint_failed"],
        node: None,
        rank: None,
        says: "no space left",
    }),
};

/// The newest checkpoint has all its files, but one of them is truncated. The checkpoint before it is complete.
pub(crate) const TORN: Fault = Fault {
    name: "checkpoint-torn",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        separate_machine: false,
        small_disk: false,
    },
    inflict: torn,
    expected: Expected {
        resumed_at: Some(SAVED_AT - SAVE_EVERY),
        ..Expected::resumed(Cause::victims(&["signal"]))
    },
};

/// The same torn checkpoint, and a rank that exits with code 0 while the others still have work.
pub(crate) const TORN_AND_LEFT: Fault = Fault {
    name: "checkpoint-torn-and-rank-exit-0",
    set_up: ranks::LEFT_EARLY.set_up,
    inflict: torn_and_left,
    expected: Expected {
        cause: ranks::LEFT_EARLY.expected.cause,
        ..TORN.expected
    },
};

fn disk_full(fault_run: &mut FaultRun) -> Result<()> {
    fault_run.wait_until_held()?;
    fault_run.fill_disk()?;
    fault_run.mark_done();
    fault_run.let_finish()?;
    let noticed = fault_run.wait_until_noticed();
    fault_run.empty_disk()?;
    noticed
}

fn torn(fault_run: &mut FaultRun) -> Result<()> {
    fault_run.wait_until_held()?;
    fault_run.tear_checkpoint(SAVED_AT)?;
    fault_run.signal_rank(VICTIM, "KILL")?;
    fault_run.let_finish()
}

fn torn_and_left(fault_run: &mut FaultRun) -> Result<()> {
    fault_run.wait_until_held()?;
    fault_run.tear_checkpoint(SAVED_AT)?;
    fault_run.let_finish()?;
    fault_run.wait_for_script_fault()
}
