//! Faults of whole machines: one that is cut off, and all of them at once.

use anyhow::Result;

use crate::fault::{Cause, Fault, Right, SetUp, VICTIMS_NODE};
use crate::scene::Scene;

/// The machine's link goes down: neither its agent nor its ranks answer, and no connection is closed. A spare takes its place; when
/// the link is up again, what was left on the machine ends.
pub(crate) const GONE: Fault = Fault {
    name: "machine-gone",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        apart: true,
        small_disk: false,
    },
    inflict: gone,
    right: Right::resumed(Cause {
        words: &["node_lost"],
        node: Some(VICTIMS_NODE),
        rank: None,
        says: "",
    }),
};

/// A power cut: agents, shims, torchrun and ranks of both nodes die in the same moment; only the agents come back by themselves.
pub(crate) const ALL_AT_ONCE: Fault = Fault {
    name: "both-nodes-at-once",
    set_up: SetUp {
        script: &[],
        restarts: 3,
        apart: false,
        small_disk: false,
    },
    inflict: all_at_once,
    right: Right::resumed(Cause {
        // Which of the two depends on how soon the nodes are back, and both are true.
        words: &["shim_died", "node_lost"],
        node: None,
        rank: None,
        says: "",
    }),
};

fn gone(scene: &mut Scene) -> Result<()> {
    scene.held()?;
    scene.fleet.cut_off()?;
    scene.done_now();
    scene.go_on()?;
    let ended = scene.ended();
    scene.fleet.reconnect()?;
    ended
}

fn all_at_once(scene: &mut Scene) -> Result<()> {
    scene.held()?;
    scene.fleet.kill_everything_on_nodes()?;
    scene.done_now();
    scene.fleet.start_agent("a")?;
    scene.fleet.start_agent("b")?;
    scene.go_on()
}
