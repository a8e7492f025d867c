//! Faults of the agent alone: it is killed, or replaced by another version. The training continues meanwhile, and the new agent takes it
//! over.

use anyhow::Result;

use crate::fault::{Expected, Fault, SetUp, VICTIMS_NODE};
use crate::fault_run::FaultRun;

const SET_UP: SetUp = SetUp {
    script: &[],
    restarts: 3,
    separate_machine: false,
    small_disk: false,
};
/// The step that the training reaches while no agent runs.
const ALONE_TO: u64 = 16;

/// As if killed by the kernel for lack of memory, or ended by a bug of its own.
pub(crate) const KILLED: Fault = Fault {
    name: "agent-sigkill",
    set_up: SET_UP,
    inflict: killed,
    expected: Expected::UNDISTURBED,
};

/// The new version is at another path, and the file of the old one is deleted, as package managers do.
pub(crate) const UPGRADED: Fault = Fault {
    name: "agent-upgrade",
    set_up: SET_UP,
    inflict: upgraded,
    expected: Expected::UNDISTURBED,
};

fn killed(fault_run: &mut FaultRun) -> Result<()> {
    fault_run.wait_until_held()?;
    fault_run.fleet.agent(VICTIMS_NODE)?.kill()?;
    fault_run.mark_done();
    fault_run.train_up_to(ALONE_TO)?;
    fault_run.fleet.start_agent(VICTIMS_NODE)?;
    fault_run.wait_until_stored(ALONE_TO)?;
    fault_run.let_finish()
}

fn upgraded(fault_run: &mut FaultRun) -> Result<()> {
    fault_run.wait_until_held()?;
    fault_run.fleet.agent(VICTIMS_NODE)?.end()?;
    fault_run.mark_done();
    fault_run.train_up_to(ALONE_TO)?;
    fault_run.fleet.replace_program(VICTIMS_NODE)?;
    fault_run.fleet.start_agent(VICTIMS_NODE)?;
    fault_run.wait_until_stored(ALONE_TO)?;
    fault_run.let_finish()
}
