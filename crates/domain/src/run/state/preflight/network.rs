//! Compares the network interfaces that a run's collectives use on each node, and names the ones that differ.
//!
//! ```text
//! no link             the node whose interface is down
//! speed               the nodes that are slower than the fastest
//! MTU                 the nodes that differ from the most common value: packets larger than the path allows are dropped silently
//! RDMA ports          a port that is down on one node and up on others; fewer ports; a slower port
//! ```

use std::collections::BTreeMap;

use crate::ident::NodeName;
use crate::run::state::protocol::{Nic, Prepared};

/// Returns all differences, as text.
pub(super) fn warnings(nodes: &[(&NodeName, &Prepared)]) -> Vec<String> {
    let mut warnings = Vec::new();
    let sockets: Vec<(&NodeName, &Nic)> = of_kind(nodes, false).collect();
    for (node, nic) in sockets.iter().filter(|(_, nic)| nic.up == Some(false)) {
        warnings.push(format!("{} on node {node} has no link", nic.name));
    }
    warnings.extend(slower(&sockets));
    warnings.extend(other_mtu(&sockets));
    let ports: Vec<(&NodeName, &Nic)> = of_kind(nodes, true).collect();
    warnings.extend(ports_down(&ports));
    warnings.extend(fewer_ports(nodes, &ports));
    let active: Vec<_> = ports
        .into_iter()
        .filter(|(_, nic)| nic.up == Some(true))
        .collect();
    warnings.extend(slower(&active));
    warnings
}

fn of_kind<'a>(
    nodes: &'a [(&'a NodeName, &'a Prepared)],
    rdma: bool,
) -> impl Iterator<Item = (&'a NodeName, &'a Nic)> {
    nodes
        .iter()
        .flat_map(|(node, found)| found.nics.iter().map(move |nic| (*node, nic)))
        .filter(move |(_, nic)| nic.rdma == rdma)
}

/// A link that negotiated less than it could is the most common network fault, and it only makes training slower.
fn slower(nics: &[(&NodeName, &Nic)]) -> Option<String> {
    let fastest = nics.iter().filter_map(|(_, nic)| nic.speed_mbit).max()?;
    let slow: Vec<String> = nics
        .iter()
        .filter_map(|(node, nic)| {
            let speed = nic.speed_mbit.filter(|speed| *speed < fastest)?;
            Some(format!("{} on node {node} runs at {}", nic.name, rate(speed)))
        })
        .collect();
    (!slow.is_empty()).then(|| format!("{}, where others run at {}", slow.join(", "), rate(fastest)))
}

fn other_mtu(nics: &[(&NodeName, &Nic)]) -> Option<String> {
    let mut counts = BTreeMap::<u32, usize>::new();
    for mtu in nics.iter().filter_map(|(_, nic)| nic.mtu) {
        *counts.entry(mtu).or_default() += 1;
    }
    let usual = *counts.iter().max_by_key(|(_, count)| **count)?.0;
    let other: Vec<String> = nics
        .iter()
        .filter_map(|(node, nic)| {
            let mtu = nic.mtu.filter(|mtu| *mtu != usual)?;
            Some(format!("{} on node {node} has an MTU of {mtu}", nic.name))
        })
        .collect();
    (!other.is_empty()).then(|| {
        format!(
            "{}, the others have {usual}: large packets between them may be dropped",
            other.join(", ")
        )
    })
}

/// A port that is down on all nodes has no cable on purpose.
fn ports_down(ports: &[(&NodeName, &Nic)]) -> Vec<String> {
    let up_elsewhere = |name: &str| {
        ports
            .iter()
            .any(|(_, nic)| nic.name == name && nic.up == Some(true))
    };
    ports
        .iter()
        .filter(|(_, nic)| nic.up == Some(false) && up_elsewhere(&nic.name))
        .map(|(node, nic)| format!("the RDMA port {} on node {node} is not active", nic.name))
        .collect()
}

/// Compares the number of ports, because their names may differ between nodes. A port that is down has been named already.
fn fewer_ports(nodes: &[(&NodeName, &Prepared)], ports: &[(&NodeName, &Nic)]) -> Option<String> {
    let count = |name: &NodeName| ports.iter().filter(|(node, _)| *node == name).count();
    // An older agent reports no interfaces at all.
    let telling = nodes.iter().filter(|(_, found)| !found.nics.is_empty());
    let counts: Vec<(&NodeName, usize)> = telling.map(|(node, _)| (*node, count(node))).collect();
    let most = counts.iter().map(|(_, count)| *count).max()?;
    let fewer: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count < most)
        .map(|(node, count)| format!("node {node} has {count}"))
        .collect();
    (!fewer.is_empty()).then(|| format!("{} RDMA port(s), where others have {most}", fewer.join(", ")))
}

fn rate(mbit: u64) -> String {
    match mbit {
        1_000.. if mbit.is_multiple_of(1_000) => format!("{} Gbit/s", mbit / 1_000),
        _ => format!("{mbit} Mbit/s"),
    }
}
