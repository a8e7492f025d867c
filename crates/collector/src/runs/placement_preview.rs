//! Where a run would be placed if it were submitted now. Nothing is reserved: another run may take the nodes.

use std::collections::BTreeMap;

use domain::api::runs::{NodePreview, PlacementPreview};
use domain::ident::NodeName;
use domain::run::spec::{Backend, Spec};
use domain::topology::Inventory;

use super::Runs;
use super::node_choice;
use crate::clock;
use crate::spec_draft::NPROC_WITHOUT_GPUS;

/// The variable with which a run chooses its GPUs itself.
const CHOSEN_GPUS: &str = "CUDA_VISIBLE_DEVICES";

impl Runs {
    /// Returns the nodes that a run would get now, or why it would wait.
    #[must_use]
    pub fn placement_preview(&self, spec: &Spec) -> PlacementPreview {
        let at_ms = clock::now_ms();
        match node_choice::choose(self.candidates_without(&[], at_ms), spec.node_count()) {
            Ok(nodes) => {
                let records = self.parts.live.records().into_iter();
                let gpus = records.map(|record| (record.name, real_gpus(&record.inventory)));
                PlacementPreview {
                    at_ms,
                    ..placed(spec, nodes, &gpus.collect())
                }
            }
            Err(not_enough) => PlacementPreview {
                at_ms,
                waits: Some(not_enough.reason),
                ..PlacementPreview::default()
            },
        }
    }
}

/// Returns the number of GPUs that training can use.
fn real_gpus(inventory: &Inventory) -> u32 {
    match inventory.simulated {
        Some(_) => 0,
        None => u32::try_from(inventory.gpus.len()).unwrap_or(u32::MAX),
    }
}

fn placed(spec: &Spec, nodes: Vec<NodeName>, gpus: &BTreeMap<NodeName, u32>) -> PlacementPreview {
    let of_node = |node: &NodeName| match spec.backend {
        Backend::Gloo => 0,
        Backend::Auto | Backend::Nccl => gpus.get(node).copied().unwrap_or_default(),
    };
    let chooses_gpus = spec.env.contains_key(CHOSEN_GPUS) || spec.secrets.contains_key(CHOSEN_GPUS);
    let default_of = |node: &NodeName| match of_node(node) {
        0 => NPROC_WITHOUT_GPUS,
        gpus => gpus,
    };
    // As `Attempt::nproc`: what the smallest node would start.
    let default = nodes.iter().map(default_of).min().filter(|_| !chooses_gpus);
    let processes = spec.nproc_per_node.or(default);
    // With more processes than GPUs, some have none: what they do is up to the program.
    let used = |node: &NodeName| {
        let processes = processes.unwrap_or_default();
        if processes <= of_node(node) { processes } else { 0 }
    };
    let preview = |node: NodeName| NodePreview {
        gpus: if chooses_gpus { 0 } else { used(&node) },
        node: node.to_string(),
    };
    PlacementPreview {
        nodes: nodes.into_iter().map(preview).collect(),
        processes_per_node: processes,
        ..PlacementPreview::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> NodeName {
        NodeName::new(format!("n{n}")).expect("a name")
    }

    /// Returns the processes per node, and the GPUs that they use on each node.
    fn preview(spec: &Spec, gpus: &[u32]) -> (Option<u32>, Vec<u32>) {
        let by_node = gpus.iter().enumerate().map(|(n, gpus)| (name(n), *gpus));
        let placed = placed(spec, (0..gpus.len()).map(name).collect(), &by_node.collect());
        let used = placed.nodes.iter().map(|node| node.gpus);
        (placed.processes_per_node, used.collect())
    }

    #[test]
    fn each_node_has_the_processes_of_the_smallest() {
        let usual = Spec::default();
        let with = |nproc| Spec {
            nproc_per_node: Some(nproc),
            ..Spec::default()
        };
        let on_cpus = Spec {
            backend: Backend::Gloo,
            ..Spec::default()
        };
        for (spec, gpus, expected) in [
            (&usual, &[8, 4][..], (Some(4), vec![4, 4])),
            (&usual, &[8, 0][..], (Some(2), vec![2, 0])),
            (&with(1), &[8][..], (Some(1), vec![1])),
            (&with(16), &[8][..], (Some(16), vec![0])),
            (&on_cpus, &[8][..], (Some(2), vec![0])),
        ] {
            assert_eq!(preview(spec, gpus), expected, "{gpus:?}");
        }
    }

    #[test]
    fn gpus_that_the_run_chooses_are_not_guessed() {
        let mut spec = Spec::default();
        spec.env.insert(CHOSEN_GPUS.to_owned(), "6,7".to_owned());
        assert_eq!(preview(&spec, &[8]), (None, vec![0]));
        spec.nproc_per_node = Some(2);
        assert_eq!(preview(&spec, &[8]), (Some(2), vec![0]));
    }
}
