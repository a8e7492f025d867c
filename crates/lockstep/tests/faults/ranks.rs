//! Faults of one rank: it is killed, is stopped, raises an exception, exits early, or crashes at the same step again.

use anyhow::Result;

use crate::fault::{Cause, Expected, Fault, SetUp, VICTIM};
use crate::fault_run::FaultRun;

const RESTARTED: SetUp = SetUp {
    script: &[],
    restarts: 3,
    separate_machine: false,
    small_disk: false,
};

/// As by the kernel's out-of-memory killer, or by a user's mistake.
pub(crate) const KILLED: Fault = Fault {
    name: "rank-sigkill",
    set_up: RESTARTED,
    inflict: |fault_run| signalled(fault_run, "KILL"),
    expected: Expected::resumed(Cause::victims(&["signal"])),
};

/// The process is alive but does not answer, and every other rank waits for it in a collective.
pub(crate) const STOPPED: Fault = Fault {
    name: "rank-sigstop",
    set_up: RESTARTED,
    inflict: |fault_run| signalled(fault_run, "STOP"),
    expected: Expected::resumed(Cause::victims(&["stuck"])),
};

/// The other ranks fail too, within milliseconds, because connections are closed. They are not the cause.
pub(crate) const RAISED: Fault = Fault {
    name: "rank-exception",
    set_up: SetUp {
        script: &[
            "--fail-at-step",
            "11",
            "--fail-rank",
            "3",
            "--fail-how",
            "exception",
        ],
        ..RESTARTED
    },
    inflict: by_itself,
    expected: Expected::resumed(Cause {
        says: "sample 4711",
        ..Cause::victims(&["exception"])
    }),
};

/// Exit code 0 is not a success while the other ranks still have work.
pub(crate) const LEFT_EARLY: Fault = Fault {
    name: "rank-exit-0-early",
    set_up: SetUp {
        script: &["--fail-at-step", "11", "--fail-rank", "3", "--fail-how", "exit0"],
        ..RESTARTED
    },
    inflict: by_itself,
    expected: Expected::resumed(Cause::victims(&["exited_early"])),
};

/// Restarts do not help: the run ends after the second crash at the same step, and says so.
pub(crate) const CRASHED_AGAIN: Fault = Fault {
    name: "same-crash-again",
    set_up: SetUp {
        script: &[
            "--fail-at-step",
            "11",
            "--fail-rank",
            "3",
            "--fail-how",
            "exception",
            "--fail-attempts",
            "1000",
        ],
        restarts: 10,
        ..RESTARTED
    },
    inflict: by_itself,
    expected: Expected {
        state: "failed",
        attempts: 2,
        final_message: "same step, 10",
        ..Expected::resumed(Cause {
            says: "sample 4711",
            ..Cause::victims(&["exception"])
        })
    },
};

fn signalled(fault_run: &mut FaultRun, signal: &str) -> Result<()> {
    fault_run.wait_until_held()?;
    fault_run.signal_rank(VICTIM, signal)?;
    fault_run.let_finish()
}

fn by_itself(fault_run: &mut FaultRun) -> Result<()> {
    fault_run.let_finish()?;
    fault_run.wait_for_script_fault()
}
