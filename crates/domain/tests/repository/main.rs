//! Files in the repository that go with this crate's tables: `docs/metrics.md` and `grafana/*.json`, which are made from the metric catalogue, and
//! the recipes. `cargo xtask generate` writes what is made; without it these tests compare it with what the tables say.

#![expect(clippy::disallowed_methods, reason = "these tests are about files")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod dashboards;
mod metrics;
mod recipes;
mod schema;

use std::fs;
use std::path::PathBuf;

/// Set by `cargo xtask generate`: write instead of compare.
const GENERATE: &str = "LOCKSTEP_GENERATE";

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_default()
}

/// Writes the file, or checks that it is as it would be written.
fn keep(file: &str, text: &str) {
    if std::env::var_os(GENERATE).is_some() {
        fs::write(path(file), text).unwrap();
    }
    assert!(
        read(file) == text,
        "{file} is not what the catalogue says: run `cargo xtask generate`"
    );
}
