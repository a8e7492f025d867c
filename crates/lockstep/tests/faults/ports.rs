//! The port that was leased for the ranks' rendezvous is taken by another process in the moment between lease and use.

use anyhow::Result;

use crate::fault::{Cause, Fault, Right, SetUp};
use crate::scene::Scene;

/// Nothing was trained, so the second attempt begins at the first step, with another port.
pub(crate) const TAKEN: Fault = Fault {
    name: "port-taken",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        apart: false,
        small_disk: false,
    },
    inflict: taken,
    right: Right {
        resumed_at: Some(0),
        ..Right::resumed(Cause {
            words: &["port_in_use"],
            node: Some("a"),
            rank: None,
            says: "port",
        })
    },
};

fn taken(scene: &mut Scene) -> Result<()> {
    let held = scene.take_leased_port()?;
    scene.done_now();
    scene.attempts_begun(2)?;
    drop(held);
    scene.go_on()
}
