//! The collector is killed in the middle of a run: the training goes on, and nothing that was is forgotten.

use anyhow::Result;

use crate::fault::{Fault, Right, SetUp};
use crate::scene::Scene;

/// How far the training goes while no collector lives.
const ALONE_TO: u64 = 16;

/// The agents keep what they see until there is one again.
pub(crate) const KILLED: Fault = Fault {
    name: "collector-sigkill",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        apart: false,
        small_disk: false,
    },
    inflict: killed,
    right: Right::UNDISTURBED,
};

fn killed(scene: &mut Scene) -> Result<()> {
    scene.held()?;
    scene.fleet.kill_collector()?;
    scene.done_now();
    scene.let_train_to(ALONE_TO)?;
    scene.fleet.start_collector()?;
    scene.heard_up_to(ALONE_TO)?;
    scene.go_on()
}
