//! The workspace as cargo sees it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// Returns the root of the checkout.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_path_buf()
}

/// Returns the names of our crates.
pub(crate) fn own_crates() -> Vec<String> {
    packages().iter().map(|package| text(&package["name"])).collect()
}

/// Returns what a crate links in its product, without the dependencies of its tests and its build script.
pub(crate) fn dependencies(name: &str) -> Vec<String> {
    let package = packages().iter().find(|package| package["name"] == name).unwrap();
    let linked = package["dependencies"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|dependency| dependency["kind"].is_null());
    linked.map(|dependency| text(&dependency["name"])).collect()
}

/// Returns every version of a crate in Cargo.lock.
pub(crate) fn locked_versions(name: &str) -> Vec<String> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let head = format!("[[package]]\nname = \"{name}\"\nversion = \"");
    lock.match_indices(&head)
        .map(|(at, _)| lock[at + head.len()..].split('"').next().unwrap().to_owned())
        .collect()
}

/// Returns all direct and indirect dependencies of a crate in Cargo.lock, including those of its tests.
pub(crate) fn locked_dependencies(name: &str) -> BTreeSet<String> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let (mut found, mut todo) = (BTreeSet::new(), vec![name.to_owned()]);
    while let Some(name) = todo.pop() {
        for (at, head) in lock.match_indices(&format!("[[package]]\nname = \"{name}\"\n")) {
            let package = lock[at + head.len()..].split("[[package]]").next().unwrap();
            // ` "NAME",` or, for several versions, ` "NAME VERSION",`.
            let used = package.lines().filter_map(|line| line.strip_prefix(" \""));
            let used = used.filter_map(|line| line.split(['"', ' ']).next());
            todo.extend(
                used.filter(|used| found.insert((*used).to_owned()))
                    .map(str::to_owned),
            );
        }
    }
    found
}

/// Returns the Rust files below a crate's `src`, with their text.
pub(crate) fn sources(name: &str) -> Vec<(String, String)> {
    let mut folders = vec![root().join("crates").join(name).join("src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push((
                    path.display().to_string(),
                    std::fs::read_to_string(&path).unwrap(),
                ));
            }
        }
    }
    found
}

fn packages() -> &'static [Value] {
    static METADATA: OnceLock<Value> = OnceLock::new();
    METADATA.get_or_init(metadata)["packages"].as_array().unwrap()
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
