//! `lockstep.json`: what the script, by our helper, says of a checkpoint; in its folder, or behind a file's name.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::archive::read_small;

/// In a checkpoint's folder.
pub(super) const NAME: &str = "lockstep.json";
/// Behind the name of a checkpoint that is one file.
pub(super) const ENDING: &str = ".lockstep.json";
/// Thousands of files fit.
const BYTES_MAX: u64 = 4 << 20;

/// Each field is taken if it is there.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Sidecar {
    pub(super) step: Option<u64>,
    /// `full` or `model`.
    pub(super) content: Option<String>,
    pub(super) val_loss: Option<f64>,
    pub(super) seconds: Option<f64>,
    /// Bytes of each file, by its name in the folder.
    pub(super) files: BTreeMap<String, u64>,
}

/// `None` where there is none; what is wrong with one that cannot be read.
pub(super) fn read(path: &Path) -> Result<Option<Sidecar>, String> {
    match read_small(path, BYTES_MAX) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("lockstep.json cannot be read: {error}")),
        Ok(None) => Err("lockstep.json is too large".into()),
        Ok(Some(bytes)) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|_| "lockstep.json cannot be read: it is not whole".into()),
    }
}
