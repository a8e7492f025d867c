//! The dashboard is embedded from web/dist, which `cargo xtask web` fills. The folder need not exist to compile: it is then
//! created, empty, and the collector says how to build the dashboard.
//!
//! A debug build reads the folder when it runs, so only a release build depends on what the folder holds. Were debug builds to
//! depend on it too, a dashboard that is built beside them would have the collector, and every test over it, compiled twice.

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
