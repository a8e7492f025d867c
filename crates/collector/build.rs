//! The dashboard is embedded from web/dist, which `cargo xtask web` fills. It need not be there to compile: then the folder is
//! made, empty, and the collector says how to build the dashboard.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/dist");
    std::fs::create_dir_all(&dist)?;
    println!("cargo::rerun-if-changed={}", dist.display());
    Ok(())
}
