//! The parts of a preparation request that are not in the run's spec: about the attempt and the node.

use std::path::{Path, PathBuf};

use domain::run::spec::Spec;
use serde::{Deserialize, Serialize};

/// The request's parts that are not in the spec. They are stored in the attempt's folder, for an agent that continues the preparation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PrepareRequest {
    /// This node's index among the attempt's nodes.
    pub node_rank: u32,
    /// Number of nodes of the attempt.
    pub nnodes: u32,
    /// The checkpoint from which the attempt resumes.
    pub resume_from: Option<String>,
    /// A name for the attempt on this node, for files that other nodes see.
    pub mark: String,
    /// The attempt's folder.
    pub folder: PathBuf,
}

/// What a preparation needs to know about the node, in addition to the run's spec.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeContext {
    /// The agent's own Python setting: an interpreter or a virtual environment.
    pub python: Option<PathBuf>,
    /// The unpacked companions.
    pub companions: PathBuf,
    /// The collector's URL. The other nodes reach this node at the address on the route to the collector.
    pub collector: Option<String>,
    /// The NVIDIA driver's version; empty if there is none.
    pub driver: String,
    /// Whether the node has usable GPUs. Simulated GPUs do not count.
    pub has_gpus: bool,
    /// The folder where the host's root is mounted.
    pub root: PathBuf,
}

/// Returns the folder to which the run saves. `None` if the spec names none, or a relative one without a `workdir`.
pub(in crate::launch) fn checkpoint_folder(spec: &Spec) -> Option<PathBuf> {
    let folder = Path::new(spec.checkpoint_dir.as_deref()?);
    match &spec.workdir {
        _ if folder.is_absolute() => Some(folder.to_owned()),
        Some(workdir) => Some(Path::new(workdir).join(folder)),
        None => None,
    }
}

/// Returns the path of the file that the other nodes search for.
pub(in crate::launch) fn token_of(spec: &Spec, request: &PrepareRequest) -> Option<PathBuf> {
    Some(checkpoint_folder(spec)?.join(format!(".lockstep-{}", request.mark)))
}
