//! The first message of a simulated node's streams.

use domain::noise::mix;
use domain::topology::Inventory;
use wire::proto::Hello;
use wire::version::{PROTOCOL_MAX, PROTOCOL_MIN};

/// Returns a value that differs for each start of each node's agent.
pub(crate) fn instance(node: u32) -> String {
    let start = mix(crate::fleet::now_ms() as u64 ^ u64::from(std::process::id()) << 48);
    format!("{:016x}", mix(u64::from(node) ^ start))
}

/// Returns the hello of the agent of a node.
pub(crate) fn hello(inventory: &Inventory, instance: &str) -> Hello {
    Hello {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        node: inventory.hostname.clone(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: instance.to_owned(),
        now_ms: crate::fleet::now_ms(),
        inventory_json: serde_json::to_string(inventory).expect("an inventory is plain data"),
        lock: String::new(),
    }
}
