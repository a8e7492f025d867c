//! Another process takes the port that was leased for the ranks' rendezvous, between the lease and its use.

use anyhow::Result;

use crate::fault::{Cause, Expected, Fault, SetUp};
use crate::fault_run::FaultRun;

/// Nothing was trained, so the second attempt starts at the first step, with another port.
pub(crate) const TAKEN: Fault = Fault {
    name: "port-taken",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        separate_machine: false,
        small_disk: false,
    },
    inflict: taken,
    expected: Expected {
        resumed_at: Some(0),
        ..Expected::resumed(Cause {
            words: &["port_in_use"],
            node: Some("a"),
            rank: None,
            says: "port",
        })
    },
};

fn taken(fault_run: &mut FaultRun) -> Result<()> {
    let held = fault_run.take_leased_port()?;
    fault_run.mark_done();
    fault_run.wait_for_attempts(2)?;
    drop(held);
    fault_run.let_finish()
}
