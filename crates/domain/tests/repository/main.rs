//! Files in the repository that belong to the tables of this crate: `docs/metrics.md` and `grafana/*.json`, which are generated from the
//! metric catalogue, and the recipes; and the translations of the dashboard. `cargo xtask generate` writes the generated files. Otherwise
//! these tests compare them with the tables.

#![expect(clippy::disallowed_methods, reason = "these tests are about files")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod dashboards;
mod diagnoses;
mod metrics;
mod recipes;
mod schema;
mod texts;

use std::fs;
use std::path::PathBuf;

/// Environment variable that `cargo xtask generate` sets: write the files instead of comparing them.
const GENERATE: &str = "LOCKSTEP_GENERATE";

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_default()
}

/// Writes the file, or checks that its contents are up to date.
fn keep(file: &str, text: &str) {
    if std::env::var_os(GENERATE).is_some() {
        fs::write(path(file), text).unwrap();
    }
    assert!(
        read(file) == text,
        "{file} is not what the catalogue says: run `cargo xtask generate`"
    );
}
