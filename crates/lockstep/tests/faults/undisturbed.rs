//! The control: a run without a fault. Every resumed run must repeat its losses.

use crate::fault::{Expected, Fault, SetUp};
use crate::fault_run::FaultRun;

/// A run that is not disturbed.
pub(crate) const HEALTHY: Fault = Fault {
    name: "healthy",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        separate_machine: false,
        small_disk: false,
    },
    inflict: FaultRun::let_finish,
    expected: Expected::UNDISTURBED,
};
