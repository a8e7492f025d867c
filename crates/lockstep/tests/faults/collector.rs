//! The collector is killed during a run: the training continues, and no stored data is lost.

use anyhow::Result;

use crate::fault::{Expected, Fault, SetUp};
use crate::fault_run::FaultRun;

/// The step that the training reaches while no collector runs.
const ALONE_TO: u64 = 16;

/// The agents keep their data until a collector runs again.
pub(crate) const KILLED: Fault = Fault {
    name: "collector-sigkill",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        separate_machine: false,
        small_disk: false,
    },
    inflict: killed,
    expected: Expected::UNDISTURBED,
};

fn killed(fault_run: &mut FaultRun) -> Result<()> {
    fault_run.wait_until_held()?;
    fault_run.fleet.kill_collector()?;
    fault_run.mark_done();
    fault_run.train_up_to(ALONE_TO)?;
    fault_run.fleet.start_collector()?;
    fault_run.wait_until_stored(ALONE_TO)?;
    fault_run.let_finish()
}
