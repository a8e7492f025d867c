//! Faults of the agent alone: killed, and replaced by another version. The training goes on meanwhile, and is taken up again.

use anyhow::Result;

use crate::fault::{Fault, Right, SetUp, VICTIMS_NODE};
use crate::scene::Scene;

const SET_UP: SetUp = SetUp {
    script: &[],
    restarts: 3,
    apart: false,
    small_disk: false,
};
/// How far the training goes while no agent lives.
const ALONE_TO: u64 = 16;

/// As by the kernel for memory, or by a bug of its own.
pub(crate) const KILLED: Fault = Fault {
    name: "agent-sigkill",
    set_up: SET_UP,
    inflict: killed,
    right: Right::UNDISTURBED,
};

/// The new version lies at another path, and the old one's file is gone, as package managers leave it.
pub(crate) const UPGRADED: Fault = Fault {
    name: "agent-upgrade",
    set_up: SET_UP,
    inflict: upgraded,
    right: Right::UNDISTURBED,
};

fn killed(scene: &mut Scene) -> Result<()> {
    scene.held()?;
    scene.fleet.agent(VICTIMS_NODE)?.kill()?;
    scene.done_now();
    scene.let_train_to(ALONE_TO)?;
    scene.fleet.start_agent(VICTIMS_NODE)?;
    scene.heard_up_to(ALONE_TO)?;
    scene.go_on()
}

fn upgraded(scene: &mut Scene) -> Result<()> {
    scene.held()?;
    scene.fleet.agent(VICTIMS_NODE)?.end()?;
    scene.done_now();
    scene.let_train_to(ALONE_TO)?;
    scene.fleet.replace_program(VICTIMS_NODE)?;
    scene.fleet.start_agent(VICTIMS_NODE)?;
    scene.heard_up_to(ALONE_TO)?;
    scene.go_on()
}
