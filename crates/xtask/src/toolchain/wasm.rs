//! A compiler that can build the dashboard to WebAssembly.
//!
//! Usually this is the installed toolchain with the target `wasm32-unknown-unknown`, which rustup adds. If rustup cannot download it (a
//! cluster without internet, but with a Debian mirror), Debian's `rustc-web` with its library source is used: its packages are unpacked
//! into the cache folder, nothing is installed, and cargo builds the standard library itself.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::child::{self, Child};
use crate::layout::Layout;
use crate::lock;
use crate::progress;
use crate::toolchain::apt;

/// The target of the dashboard.
pub(crate) const TARGET: &str = "wasm32-unknown-unknown";
/// rustup takes seconds if it reaches its server; otherwise it must not delay the rest for long.
const RUSTUP_LIMIT: Duration = Duration::from_secs(90);
const STEP: &str = "wasm-toolchain";

/// How the dashboard can be compiled on this machine.
#[derive(Debug)]
pub(crate) enum Toolchain {
    /// The current toolchain has the target.
    Installed,
    /// Another compiler with library source, and the linker of the installed toolchain.
    WithSource { rustc: PathBuf, linker: PathBuf },
}

impl Toolchain {
    /// Returns one word for the fingerprint and for users.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Installed => "the installed toolchain",
            Self::WithSource { .. } => "Debian's rustc-web, standard library from source",
        }
    }
}

/// Finds or creates a toolchain. `LOCKSTEP_WASM_TOOLCHAIN=debian` ignores the installed one; tests use this.
pub(crate) fn ensure(layout: &Layout) -> Result<Toolchain> {
    let debian_wanted = env::var_os("LOCKSTEP_WASM_TOOLCHAIN").is_some_and(|value| value == "debian");
    if !debian_wanted && target_is_installed() {
        return Ok(Toolchain::Installed);
    }
    let _lock = lock::hold(&layout.cache, STEP)?;
    let folder = layout.cache.join("wasm-toolchain");
    if folder.join("rustc").is_file() {
        return with_source(&folder);
    }
    if !debian_wanted && rustup_adds_target(layout) {
        return Ok(Toolchain::Installed);
    }
    unpack_debian(layout, &folder)?;
    with_source(&folder)
}

fn target_is_installed() -> bool {
    let printed = child::output(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]));
    printed.is_ok_and(|folder| Path::new(&folder).is_dir())
}

fn rustup_adds_target(layout: &Layout) -> bool {
    if child::on_path("rustup").is_none() {
        return false;
    }
    progress::say(STEP, &format!("rustup target add {TARGET}"));
    let added = Child::new(layout, "rustup", "rustup", RUSTUP_LIMIT)
        .args(["target", "add", TARGET])
        .end();
    let works = added.is_ok_and(|ended| ended.status.success()) && target_is_installed();
    if !works {
        progress::say(
            STEP,
            "rustup cannot bring the target here; trying Debian's packages",
        );
    }
    works
}

fn with_source(folder: &Path) -> Result<Toolchain> {
    Ok(Toolchain::WithSource {
        rustc: folder.join("rustc"),
        linker: linker()?,
    })
}

/// Returns the linker that every rustup toolchain contains for its host.
fn linker() -> Result<PathBuf> {
    let sysroot = child::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let host = child::output(Command::new("rustc").args(["--print", "host-tuple"]))?;
    let carried = Path::new(&sysroot)
        .join("lib/rustlib")
        .join(host)
        .join("bin/rust-lld");
    if carried.is_file() {
        return Ok(carried);
    }
    child::on_path("rust-lld").or_else(|| child::on_path("wasm-ld")).with_context(|| {
        format!("no WebAssembly linker: {} does not exist and neither rust-lld nor wasm-ld is on PATH (Debian: apt-get install lld)", carried.display())
    })
}

fn unpack_debian(layout: &Layout, folder: &Path) -> Result<()> {
    if !apt::is_debian() {
        bail!(
            "the dashboard needs Rust's target {TARGET}, which is not installed; get it with `rustup target add {TARGET}` \
             (the other way, Debian's rustc-web, needs Debian's apt-get)"
        );
    }
    let packages = packages(layout)?;
    progress::say(
        STEP,
        &format!("unpacking {} (about 0.8 GB, once)", packages.join(" ")),
    );
    let unfinished = apt::unpack(layout, STEP, &packages)?;
    write_wrapper(&unfinished, folder)?;
    fs::rename(&unfinished, folder).with_context(|| format!("cannot put {} in place", folder.display()))?;
    let version = child::output(Command::new(folder.join("rustc")).arg("--version")).inspect_err(|_| {
        fs::remove_file(folder.join("rustc")).ok();
    })?;
    progress::say(STEP, &format!("{version} is in {}", folder.display()));
    Ok(())
}

/// Returns the compiler, its library for this machine (build scripts, macros), the library's source, and the LLVM that they share.
fn packages(layout: &Layout) -> Result<Vec<String>> {
    let lacking = "the dashboard needs Rust's target wasm32-unknown-unknown: rustup could not add it, and apt offers no rustc-web \
                   (Debian 12 has it in its security archive)";
    if !apt::offers("rustc-web") {
        apt::update(layout)?;
    }
    let library = apt::dependency("libstd-rust-web-dev", "libstd-rust-web-").context(lacking)?;
    let llvm = apt::dependency(&library, "libllvm").context(lacking)?;
    let named = ["rustc-web", "libstd-rust-web-dev", "rust-web-src"].map(str::to_owned);
    Ok(named.into_iter().chain([library, llvm]).collect())
}

/// Writes a wrapper with the path of LLVM. Programs that the compiler starts inherit the path, which is harmless.
fn write_wrapper(unfinished: &Path, home: &Path) -> Result<()> {
    let path = unfinished.join("rustc");
    let home = home.display();
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH='{home}/usr/lib/{}-linux-gnu' exec '{home}/usr/bin/rustc' \"$@\"\n",
        env::consts::ARCH
    );
    fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
        .context("cannot make the wrapper executable")
}
