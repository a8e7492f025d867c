//! A file of finished trials, one JSON document per line, so that an interrupted command continues.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads the file. Returns nothing if it does not exist.
pub(crate) fn read<T: DeserializeOwned>(file: &Path) -> Vec<T> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Adds a trial.
pub(crate) fn add<T: Serialize>(file: &Path, trial: &T) {
    let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
    writeln!(file, "{}", serde_json::to_string(trial).unwrap()).unwrap();
}
