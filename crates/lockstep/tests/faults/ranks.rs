//! Faults of one rank: killed, stopped, an exception, an end before its time, and the same crash again and again.

use anyhow::Result;

use crate::fault::{Cause, Fault, Right, SetUp, VICTIM};
use crate::scene::Scene;

const RESTARTED: SetUp = SetUp {
    script: &[],
    restarts: 3,
    apart: false,
    small_disk: false,
};

/// As the kernel's out-of-memory killer or a careless person does it.
pub(crate) const KILLED: Fault = Fault {
    name: "rank-sigkill",
    set_up: RESTARTED,
    inflict: |scene| signalled(scene, "KILL"),
    right: Right::resumed(Cause::victims(&["signal"])),
};

/// It lives, answers nobody, and every other rank waits for it in a collective.
pub(crate) const STOPPED: Fault = Fault {
    name: "rank-sigstop",
    set_up: RESTARTED,
    inflict: |scene| signalled(scene, "STOP"),
    right: Right::resumed(Cause::victims(&["stuck"])),
};

/// The others fail too, within milliseconds, by closed connections: those are not the cause.
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
    right: Right::resumed(Cause {
        says: "sample 4711",
        ..Cause::victims(&["exception"])
    }),
};

/// Exit code 0 is no success while the others have work to do.
pub(crate) const LEFT_EARLY: Fault = Fault {
    name: "rank-exit-0-early",
    set_up: SetUp {
        script: &["--fail-at-step", "11", "--fail-rank", "3", "--fail-how", "exit0"],
        ..RESTARTED
    },
    inflict: by_itself,
    right: Right::resumed(Cause::victims(&["exited_early"])),
};

/// No number of restarts helps: the second crash at the same step is the last, and the run says so.
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
    right: Right {
        state: "failed",
        attempts: 2,
        last_word: "same step, 10",
        ..Right::resumed(Cause {
            says: "sample 4711",
            ..Cause::victims(&["exception"])
        })
    },
};

fn signalled(scene: &mut Scene, signal: &str) -> Result<()> {
    scene.held()?;
    scene.signal_rank(VICTIM, signal)?;
    scene.go_on()
}

fn by_itself(scene: &mut Scene) -> Result<()> {
    scene.go_on()?;
    scene.done_by_script()
}
