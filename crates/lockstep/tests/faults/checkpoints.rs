//! Faults of checkpoints: no room to save one, and one that a crash tore.

use anyhow::Result;

use crate::fault::{Cause, Fault, Right, SAVE_EVERY, SAVED_AT, SetUp, VICTIM};
use crate::scene::Scene;

/// The disk is full when the next checkpoint is saved; what is there of it is no checkpoint. With room again, all goes on.
pub(crate) const DISK_FULL: Fault = Fault {
    name: "disk-full-in-checkpoint",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        apart: false,
        small_disk: true,
    },
    inflict: disk_full,
    right: Right::resumed(Cause {
        words: &["checkpoint_failed"],
        node: None,
        rank: None,
        says: "no space left",
    }),
};

/// The newest checkpoint has all its files, but one of them is cut short: the one before it is whole.
pub(crate) const TORN: Fault = Fault {
    name: "checkpoint-torn",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        apart: false,
        small_disk: false,
    },
    inflict: torn,
    right: Right {
        resumed_at: Some(SAVED_AT - SAVE_EVERY),
        ..Right::resumed(Cause::victims(&["signal"]))
    },
};

fn disk_full(scene: &mut Scene) -> Result<()> {
    scene.held()?;
    scene.fill_disk()?;
    scene.done_now();
    scene.go_on()?;
    let noticed = scene.noticed();
    scene.empty_disk()?;
    noticed
}

fn torn(scene: &mut Scene) -> Result<()> {
    scene.held()?;
    scene.tear_checkpoint(SAVED_AT)?;
    scene.signal_rank(VICTIM, "KILL")?;
    scene.go_on()
}
