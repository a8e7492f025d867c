//! all-smi, another NVML client, built from crates.io into the cache folder.
//!
//! ```text
//! all-smi-0.22.0/bin/all-smi      as its authors publish it: release profile, locked versions
//!               /bin/nvidia-smi   one line of shell: all-smi calls it to check for an NVIDIA GPU before it tries NVML,
//!                                 so this folder must be first on PATH of a process that starts all-smi
//! apt/all-smi-build/              Debian's protoc and libdrm, unpacked, if the machine lacks them
//! ```
//!
//! The build takes minutes (one code unit, link-time optimisation), so it runs only on request: [`found`] is for tests that use it if it
//! exists, [`ensure`] for those that need it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::child::{self, Child};
use crate::layout::Layout;
use crate::lock;
use crate::measure::folder;
use crate::progress;
use crate::toolchain::apt;

/// The release in the published comparison.
const VERSION: &str = "0.22.0";
/// Six minutes on two idle cores; a busy or slow machine needs longer.
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);
const STEP: &str = "all-smi";
const PACKAGES: &str = "all-smi-build";

/// Returns the program, if it was built before.
pub(crate) fn found(layout: &Layout) -> Option<PathBuf> {
    let program = program(layout);
    program.is_file().then_some(program)
}

/// Returns the program; builds it if needed. Its folder must be first on PATH of the process that starts it.
pub(crate) fn ensure(layout: &Layout) -> Result<PathBuf> {
    let _lock = lock::hold(&layout.cache, STEP)?;
    if let Some(program) = found(layout) {
        return Ok(program);
    }
    let packages = if builds_with_what_is_here() {
        None
    } else {
        Some(Packages::ensure(layout)?)
    };
    build(layout, packages.as_ref())?;
    found(layout).context("all-smi was built, but its program is not where cargo installs programs")
}

fn home(layout: &Layout) -> PathBuf {
    layout.cache.join(format!("all-smi-{VERSION}"))
}

fn program(layout: &Layout) -> PathBuf {
    home(layout).join("bin/all-smi")
}

/// Returns true if the machine has what the build needs: a protocol compiler and libdrm.
fn builds_with_what_is_here() -> bool {
    let libdrm = Command::new("pkg-config")
        .args(["--exists", "libdrm_amdgpu"])
        .status();
    child::on_path("protoc").is_some() && libdrm.is_ok_and(|status| status.success())
}

fn build(layout: &Layout, packages: Option<&Packages>) -> Result<()> {
    progress::say(
        STEP,
        &format!("building version {VERSION} from crates.io, once; that takes minutes"),
    );
    let unfinished = layout.cache.join(format!("{STEP}.unfinished"));
    folder::empty(&unfinished)?;
    // Not in the checkout, because its cargo settings are not for this build.
    let mut cargo = Child::new(layout, STEP, "cargo", BUILD_LIMIT)
        .folder(&unfinished)
        .args(["install", "all-smi", "--locked", "--bin", "all-smi"])
        .args(["--version", &format!("={VERSION}"), "--root"])
        .args([&unfinished])
        .env("CARGO_TARGET_DIR", unfinished.join("target"));
    if let Some(packages) = packages {
        cargo = packages.configure(cargo)?;
    }
    cargo.succeed()?;
    fs::remove_dir_all(unfinished.join("target")).context("cannot remove what all-smi's build left")?;
    write_nvidia_smi(&unfinished.join("bin"))?;
    let home = home(layout);
    fs::rename(&unfinished, &home).with_context(|| format!("cannot put {} in place", home.display()))
}

/// Writes the program that all-smi calls to check for a GPU.
fn write_nvidia_smi(folder: &Path) -> Result<()> {
    let path = folder.join("nvidia-smi");
    fs::write(&path, "#!/bin/sh\necho 'GPU 0: simulated'\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} a program", path.display()))
}

// === What its build needs, from Debian ===

/// The folder of unpacked packages.
struct Packages(PathBuf);

impl Packages {
    fn ensure(layout: &Layout) -> Result<Packages> {
        let folder = layout.cache.join("apt").join(PACKAGES);
        if folder.join("usr/bin/protoc").is_file() {
            return Ok(Packages(folder));
        }
        if !apt::is_debian() {
            bail!(
                "all-smi's build needs protoc and libdrm's headers on this machine (on Debian they are fetched by themselves: protobuf-compiler, libdrm-dev)"
            );
        }
        if !apt::offers("protobuf-compiler") {
            apt::update(layout)?;
        }
        progress::say(STEP, "fetching Debian's protoc and libdrm for its build");
        let unfinished = apt::unpack(layout, PACKAGES, &names()?)?;
        fs::create_dir_all(layout.cache.join("apt"))
            .context("cannot make the folder of unpacked packages")?;
        fs::rename(&unfinished, &folder)
            .with_context(|| format!("cannot put {} in place", folder.display()))?;
        Ok(Packages(folder))
    }

    /// Makes a build use them. The program contains the library's path, so it also runs if libdrm is not installed.
    fn configure(&self, cargo: Child) -> Result<Child> {
        let libraries = libraries(&self.0.join("usr/lib"))?;
        let folder = libraries.display();
        let flags = format!("-Lnative={folder}\x1f-Clink-arg=-Wl,-rpath,{folder}");
        Ok(cargo
            .env("PROTOC", self.0.join("usr/bin/protoc"))
            .env("LD_LIBRARY_PATH", &libraries)
            .env("CARGO_ENCODED_RUSTFLAGS", flags))
    }
}

/// Returns the packages, with the libraries of their programs in this Debian.
fn names() -> Result<Vec<String>> {
    let protoc = apt::dependency("protobuf-compiler", "libprotoc")?;
    let protobuf = apt::dependency(&protoc, "libprotobuf")?;
    let plain = [
        "protobuf-compiler",
        "libprotobuf-dev",
        "libdrm-dev",
        "libdrm2",
        "libdrm-amdgpu1",
    ];
    Ok(plain
        .into_iter()
        .map(str::to_owned)
        .chain([protoc, protobuf])
        .collect())
}

/// Returns the folder of Debian's libraries, which is named after the architecture.
fn libraries(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.join("libdrm.so").exists())
        .with_context(|| format!("no libdrm.so below {}", folder.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn it_is_found_only_when_it_is_whole_and_its_gate_answers() {
        let folder = std::env::temp_dir().join(format!("xtask-all-smi-{}", std::process::id()));
        let layout = Layout {
            root: folder.clone(),
            cache: folder.join("cache"),
        };
        assert_eq!(found(&layout), None);
        let bin = home(&layout).join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("all-smi"), "").unwrap();
        assert_eq!(found(&layout), Some(bin.join("all-smi")));

        write_nvidia_smi(&bin).unwrap();
        let answer = child::output(Command::new(bin.join("nvidia-smi")).arg("-L")).unwrap();
        assert!(answer.starts_with("GPU 0:"), "{answer}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn libraries_are_found_under_any_machine_s_name() {
        let folder = std::env::temp_dir().join(format!("xtask-all-smi-lib-{}", std::process::id()));
        let machine = folder.join("riscv64-linux-gnu");
        fs::create_dir_all(folder.join("other")).unwrap();
        fs::create_dir_all(&machine).unwrap();
        assert!(libraries(&folder).is_err());
        fs::write(machine.join("libdrm.so"), "").unwrap();
        assert_eq!(libraries(&folder).unwrap(), machine);
        fs::remove_dir_all(folder).unwrap();
    }
}
