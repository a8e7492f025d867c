//! Nothing: the control. Its losses are what every resumed run must repeat.

use crate::fault::{Fault, Right, SetUp};
use crate::scene::Scene;

/// A run that nobody disturbs.
pub(crate) const HEALTHY: Fault = Fault {
    name: "healthy",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        apart: false,
        small_disk: false,
    },
    inflict: Scene::go_on,
    right: Right::UNDISTURBED,
};
