//! What a preparation is told beside the run's spec: of the attempt, and of the node.

use std::path::{Path, PathBuf};

use domain::run::spec::Spec;
use serde::{Deserialize, Serialize};

/// What was asked beside the spec; kept in the attempt's folder for an agent that takes up.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    /// This node's place among the attempt's nodes.
    pub node_rank: u32,
    /// How many there are.
    pub nnodes: u32,
    /// The checkpoint the attempt goes on from.
    pub resume_from: Option<String>,
    /// Names the attempt on this node, for files that others see.
    pub mark: String,
    /// The attempt's folder.
    pub folder: PathBuf,
}

/// Where to look, beside what the run says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// The agent's own Python setting: an interpreter or a virtual environment.
    pub python: Option<PathBuf>,
    /// The unpacked companions.
    pub companions: PathBuf,
    /// The collector's URL: the other nodes reach this one where the collector does.
    pub collector: Option<String>,
    /// The NVIDIA driver's version; empty without one.
    pub driver: String,
    /// Whether it has GPUs that can be used: simulated ones cannot.
    pub has_gpus: bool,
    /// Where the host's files hang.
    pub root: PathBuf,
}

/// Where the run saves, when that is told apart from its own folder.
pub(in crate::launch) fn checkpoint_folder(spec: &Spec) -> Option<PathBuf> {
    let folder = Path::new(spec.checkpoint_dir.as_deref()?);
    match &spec.workdir {
        _ if folder.is_absolute() => Some(folder.to_owned()),
        Some(workdir) => Some(Path::new(workdir).join(folder)),
        None => None,
    }
}

/// The file that the other nodes look for.
pub(in crate::launch) fn token_of(spec: &Spec, asked: &Asked) -> Option<PathBuf> {
    Some(checkpoint_folder(spec)?.join(format!(".lockstep-{}", asked.mark)))
}
