//! The dashboard is embedded from web/dist, which `cargo xtask web` fills. If the folder does not exist, this script creates it, empty, so
//! that the collector compiles. The collector then shows how to build the dashboard.
//!
//! A debug build reads the folder at run time, so only a release build depends on its content. If debug builds depended on it too, each
//! build of the dashboard would compile the collector and all its tests again.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/dist");
    std::fs::create_dir_all(&dist)?;
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rerun-if-changed={}", dist.display());
    }
    Ok(())
}
