//! Decides whether nodes that can each run the attempt can run it together.
//!
//! A difference that breaks a run fails the attempt, with a table of the values. A difference that only may break it is a warning of the
//! attempt. The network between the nodes is measured if the run requests it ([`bandwidth`]).

mod bandwidth;
mod bandwidth_check;
mod network;

pub(super) use bandwidth::verdict;
pub use bandwidth_check::BandwidthCheck;

use crate::ident::NodeName;
use crate::run::spec::Spec;
use crate::run::state::attempt::Attempt;
use crate::run::state::node_task::Looked;
use crate::run::state::protocol::Prepared;

/// Free space for checkpoints below which a warning is given, in bytes: the smallest optimizer state of a model that is worth several
/// nodes.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// A node gets a warning if it has less free space than the largest of all nodes divided by this, and less than
/// [`FREE_BYTES_PLENTY`]: its full disk would end the run on all nodes.
const FREE_SHARE_MIN: u64 = 10;
/// Free space in bytes that is enough for a few checkpoints of a large model, whatever other nodes have.
const FREE_BYTES_PLENTY: u64 = 100 << 30;

/// A value that should be the same on all nodes.
struct Check {
    what: &'static str,
    breaks: bool,
    /// Returns true if the value may differ in a run like this.
    may_differ: fn(&Spec) -> bool,
    value: fn(&Prepared) -> String,
}

/// With different versions of PyTorch, CUDA or NCCL, ranks fail in the first collective or, worse, do not fail. Different scripts train
/// different models.
const CHECKS: [Check; 9] = [
    breaks("PyTorch", |found| found.torch_version.clone()),
    breaks("the CUDA version of PyTorch", |found| found.cuda.clone()),
    breaks("NCCL", |found| found.nccl.clone()),
    breaks("the script", |found| short(&found.script_sha256)),
    breaks("the git commit", |found| short(&found.commit)),
    warns("the NVIDIA driver", |found| found.driver.clone()),
    warns("Python", |found| found.python_version.clone()),
    warns("the container's image", |found| found.image.clone()),
    Check {
        may_differ: |spec| spec.nproc_per_node.is_some(),
        ..warns("the number of GPUs", |found| found.gpus.to_string())
    },
];

const fn breaks(what: &'static str, value: fn(&Prepared) -> String) -> Check {
    Check {
        breaks: true,
        ..warns(what, value)
    }
}

const fn warns(what: &'static str, value: fn(&Prepared) -> String) -> Check {
    Check {
        what,
        breaks: false,
        may_differ: |_| false,
        value,
    }
}

fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// The result of comparing what the nodes of an attempt found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Why the attempt cannot run.
    pub(super) refusal: Option<String>,
    /// Differences that may harm the attempt.
    pub(super) warnings: Vec<String>,
}

/// Compares nodes that are all prepared.
pub(super) fn compare(spec: &Spec, attempt: &Attempt) -> Comparison {
    let nodes: Vec<(&NodeName, &Prepared)> = attempt
        .nodes
        .iter()
        .filter_map(|task| Some((&task.node, task.prepared.as_ref()?)))
        .collect();
    let mut comparison = Comparison::default();
    let mut broken = Vec::new();
    for check in CHECKS.iter().filter(|check| differs(check, spec, &nodes)) {
        let text = format!("{} differs: {}", check.what, table(check, &nodes));
        if check.breaks {
            broken.push(text);
        } else {
            comparison.warnings.push(text);
        }
    }
    if !broken.is_empty() {
        comparison.refusal = Some(format!(
            "the nodes do not agree. {}. Make them the same, or exclude the node that is different",
            broken.join("; ")
        ));
    }
    comparison.warnings.extend(single_warnings(spec, &nodes));
    comparison.warnings.extend(uneven_disks(spec, &nodes));
    comparison.warnings.extend(network::warnings(&nodes));
    comparison
}

/// Returns a warning if the checkpoint folder is not the same on all nodes.
pub(super) fn unshared(spec: &Spec, attempt: &Attempt) -> Option<String> {
    let missing: Vec<&str> = attempt
        .nodes
        .iter()
        .filter(|task| task.sees_first == Some(Looked::Missing))
        .map(|task| task.node.as_str())
        .collect();
    let (first, folder) = (attempt.nodes.first()?, spec.checkpoint_dir.as_deref()?);
    (!missing.is_empty()).then(|| {
        format!(
            "{folder} is not shared: what node {} wrote there is missing on {}. A checkpoint with parts on several nodes \
             cannot be loaded; put checkpoint_dir on a file system that all nodes mount",
            first.node,
            missing.join(", ")
        )
    })
}

/// Returns true if the value differs between nodes. A node that does not report it (an older agent, no GPU) is ignored.
fn differs(check: &Check, spec: &Spec, nodes: &[(&NodeName, &Prepared)]) -> bool {
    let mut values = nodes
        .iter()
        .map(|(_, found)| (check.value)(found))
        .filter(|value| !value.is_empty());
    let first = values.next();
    !(check.may_differ)(spec) && values.any(|value| Some(&value) != first.as_ref())
}

fn table(check: &Check, nodes: &[(&NodeName, &Prepared)]) -> String {
    let cells: Vec<String> = nodes
        .iter()
        .map(|(node, found)| {
            let value = (check.value)(found);
            let value = if value.is_empty() {
                "unknown".to_owned()
            } else {
                value
            };
            format!("{node} → {value}")
        })
        .collect();
    cells.join(", ")
}

/// Returns a warning for each node whose disk is nearly full while another node's is not. A disk below [`FREE_BYTES_MIN`] has its own
/// warning.
fn uneven_disks(spec: &Spec, nodes: &[(&NodeName, &Prepared)]) -> Vec<String> {
    type Free = fn(&Prepared) -> Option<u64>;
    let folders: [(Option<&str>, Free); 2] = [
        (spec.checkpoint_dir.as_deref(), |found| {
            found.checkpoint_free_bytes
        }),
        (spec.workdir.as_deref(), |found| found.workdir_free_bytes),
    ];
    let mut warnings = Vec::new();
    for (folder, free) in folders {
        let most = nodes.iter().filter_map(|(_, found)| free(found)).max();
        let (Some(folder), Some(most)) = (folder, most) else {
            continue;
        };
        let little = FREE_BYTES_MIN..FREE_BYTES_PLENTY.min(most / FREE_SHARE_MIN);
        for (node, found) in nodes {
            if let Some(free) = free(found).filter(|free| little.contains(free)) {
                warnings.push(format!(
                    "{folder} on node {node} has {} GiB free, where another has {}",
                    free >> 30,
                    most >> 30
                ));
            }
        }
    }
    warnings
}

fn single_warnings(spec: &Spec, nodes: &[(&NodeName, &Prepared)]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (node, found) in nodes {
        if !found.doubtful_imports.is_empty() {
            warnings.push(format!(
                "the script imports {}, which node {node} does not find without the script's own changes of sys.path",
                found.doubtful_imports.join(", ")
            ));
        }
        let folders = [
            (spec.checkpoint_dir.as_deref(), found.checkpoint_free_bytes),
            (spec.workdir.as_deref(), found.workdir_free_bytes),
        ];
        for (folder, free) in folders {
            if let (Some(folder), Some(free)) = (folder, free)
                && free < FREE_BYTES_MIN
            {
                warnings.push(format!(
                    "{folder} on node {node} has only {} MiB free",
                    free >> 20
                ));
            }
        }
    }
    let loopback = |found: &Prepared| found.address.starts_with("127.") || found.address == "::1";
    if let Some((first, found)) = nodes.first()
        && loopback(found)
        && nodes
            .iter()
            .any(|(_, other)| !other.address.is_empty() && !loopback(other))
    {
        warnings.push(format!(
            "the other nodes would have to reach node {first} at {}, which is a loopback address; connect its agent to the collector \
             through another address",
            found.address
        ));
    }
    warnings
}
