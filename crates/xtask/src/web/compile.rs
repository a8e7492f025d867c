//! Rust to WebAssembly.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::child::Child;
use crate::layout::Layout;
use crate::toolchain::wasm::{TARGET, Toolchain};

/// Two loaded cores need about four minutes, including the standard library.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Compiles the package `web` and returns the program.
pub(crate) fn run(layout: &Layout, toolchain: &Toolchain, fast: bool) -> Result<PathBuf> {
    let profile = if fast { "wasm-fast" } else { "wasm" };
    // A separate folder within cargo's target folder: two compilers in one folder would rebuild each other's work, and two checkouts with
    // one folder would use each other's crates.
    let target = layout.target().join("wasm");
    let cargo = Child::new(layout, "wasm", "cargo", LIMIT)
        .args(["build", "--locked", "--package", "web"])
        .args(["--target", TARGET, "--profile", profile])
        .env("CARGO_TARGET_DIR", &target);
    with_toolchain(cargo, toolchain).succeed()?;
    Ok(target.join(TARGET).join(profile).join("web.wasm"))
}

fn with_toolchain(cargo: Child, toolchain: &Toolchain) -> Child {
    match toolchain {
        Toolchain::Installed => cargo,
        Toolchain::WithSource { rustc, linker } => cargo
            .args(["-Zbuild-std=std,panic_abort"])
            .env("RUSTC", rustc)
            // Debian's compiler is a stable one; building the library from source needs this.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker),
    }
}
