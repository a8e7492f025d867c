//! A fault: how its run is set up, what is done to it, and what must be true after it.

use anyhow::Result;

use crate::scene::Scene;

/// Steps of a whole run. Few enough that the agent keeps each as a sample of its own.
pub(crate) const STEPS: u64 = 24;
/// A checkpoint is saved behind every so many steps.
pub(crate) const SAVE_EVERY: u64 = 4;
/// Faults from outside come when this step is done and the next not begun.
pub(crate) const HOLD_AT: u64 = 10;
/// The newest checkpoint then.
pub(crate) const SAVED_AT: u64 = 8;
/// Faults are done to this rank: not the first, which is special to torchrun, and not on the first node.
pub(crate) const VICTIM: u64 = 3;
/// Its node.
pub(crate) const VICTIMS_NODE: &str = "b";

/// One row of the matrix.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    /// What a person types after `--only`, and the row's name.
    pub(crate) name: &'static str,
    /// How the run is made.
    pub(crate) set_up: SetUp,
    /// Does it, from when the run is submitted; comes back when nothing is left to be done but to wait for the end.
    pub(crate) inflict: fn(&mut Scene) -> Result<()>,
    /// What must be true when all is over.
    pub(crate) right: Right,
}

/// How a fault's run is made.
#[derive(Clone, Copy, Default)]
pub(crate) struct SetUp {
    /// What the script itself is to do wrong.
    pub(crate) script: &'static [&'static str],
    /// How often the run may be restarted.
    pub(crate) restarts: u32,
    /// A third node stands by, and the second is a machine of its own: behind a link that can go down.
    pub(crate) apart: bool,
    /// Checkpoints lie on a small file system of their own.
    pub(crate) small_disk: bool,
}

/// What must be true after a fault.
#[derive(Clone, Copy)]
pub(crate) struct Right {
    /// The run's last state.
    pub(crate) state: &'static str,
    /// Attempts in all.
    pub(crate) attempts: usize,
    /// What the first attempt's end is put down to; none when it ends well.
    pub(crate) cause: Option<Cause>,
    /// The step of the checkpoint from which the second attempt goes on.
    pub(crate) resumed_at: Option<u64>,
    /// What the run's last word must contain, in lower case.
    pub(crate) last_word: &'static str,
}

/// A root cause, by its word and its culprit.
#[derive(Clone, Copy)]
pub(crate) struct Cause {
    /// Any of these words is right.
    pub(crate) words: &'static [&'static str],
    /// The node it must name.
    pub(crate) node: Option<&'static str>,
    /// The rank it must name.
    pub(crate) rank: Option<u64>,
    /// What its message must contain, in lower case.
    pub(crate) says: &'static str,
}

impl Right {
    /// Nothing was disturbed: one attempt, by the same processes from its beginning to its end.
    pub(crate) const UNDISTURBED: Self = Self {
        state: "succeeded",
        attempts: 1,
        cause: None,
        resumed_at: None,
        last_word: "",
    };

    /// The first attempt ended by this cause; the second went on from the newest checkpoint and came to the end.
    pub(crate) const fn resumed(cause: Cause) -> Self {
        Self {
            state: "succeeded",
            attempts: 2,
            cause: Some(cause),
            resumed_at: Some(SAVED_AT),
            last_word: "",
        }
    }
}

impl Cause {
    /// A cause with the victim as its culprit.
    pub(crate) const fn victims(word: &'static [&'static str]) -> Self {
        Self {
            words: word,
            node: Some(VICTIMS_NODE),
            rank: Some(VICTIM),
            says: "",
        }
    }
}
