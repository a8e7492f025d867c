//! Faults of whole machines: one that is cut off, and all of them at once.

use anyhow::Result;

use crate::fault::{Cause, Expected, Fault, SetUp, VICTIMS_NODE};
use crate::fault_run::FaultRun;

/// The machine's link goes down: neither its agent nor its ranks answer, and no connection is closed. The spare node takes its place. When
/// the link is up again, the processes left on the machine end.
pub(crate) const GONE: Fault = Fault {
    name: "machine-gone",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        separate_machine: true,
        small_disk: false,
    },
    inflict: gone,
    expected: Expected::resumed(Cause {
        words: &["node_lost"],
        node: Some(VICTIMS_NODE),
        rank: None,
        says: "",
    }),
};

/// A power cut: agents, shims, torchrun and ranks of both nodes die at the same moment. Only the agents are started again.
pub(crate) const ALL_AT_ONCE: Fault = Fault {
    name: "both-nodes-at-once",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        separate_machine: false,
        small_disk: false,
    },
    inflict: all_at_once,
    expected: Expected::resumed(Cause {
        // The cause depends on how soon the nodes are back. Both are true.
        words: &["shim_died", "node_lost"],
        node: None,
        rank: None,
        says: "",
    }),
};

fn gone(fault_run: &mut FaultRun) -> Result<()> {
    fault_run.wait_until_held()?;
    fault_run.fleet.cut_off()?;
    fault_run.mark_done();
    fault_run.let_finish()?;
    let ended = fault_run.wait_for_end();
    fault_run.fleet.reconnect()?;
    ended
}

fn all_at_once(fault_run: &mut FaultRun) -> Result<()> {
    fault_run.wait_until_held()?;
    fault_run.fleet.kill_everything_on_nodes()?;
    fault_run.mark_done();
    fault_run.fleet.start_agent("a")?;
    fault_run.fleet.start_agent("b")?;
    fault_run.let_finish()
}
