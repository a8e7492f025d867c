//! How each part is run and counted.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::child::{self, Child, Ended};
use crate::fingerprint;
use crate::lab::hardware::{self, Binaries};
use crate::layout::Layout;
use crate::measure::machine;
use crate::progress::{block, say};
use crate::test::setup::{Need, Setup};
use crate::test::slowest::{self, TestTime};
use crate::test::table::Count;
use crate::test::{Part, count, examples, lanes, rules};
use crate::toolchain::{npm, venv};
use crate::web;

// Limits against hangs: three times the duration on two ordinary cores, because some machines are slow or shared.
const SHORT: Duration = Duration::from_secs(3 * 60);
const MEDIUM: Duration = Duration::from_secs(15 * 60);
const CLIPPY: Duration = Duration::from_secs(20 * 60);
const PYTHON: Duration = Duration::from_secs(30 * 60);
const RUST: Duration = Duration::from_secs(50 * 60);
/// Most tests of the agent wait for a sample, not for a core.
const TESTS_PER_CORE: usize = 3;
/// The end of the names of the files with browser tests.
const BROWSER_TEST: &str = ".test.mjs";
/// The browser test that measures how soon a diagnosis is shown.
const MEASURES_IN_BROWSER: &str = "explosion.test.mjs";

/// Runs one part. An error means that the part could not run; failed tests are counted and are not errors.
pub(crate) fn run(layout: &Layout, part: Part, setup: &Setup, filter: Option<&str>) -> Result<Count> {
    match part {
        Part::Fmt => {
            let args = "fmt --all --check -- --color=never".split(' ');
            check(Child::new(layout, "fmt", "cargo", SHORT).args(args))
        }
        Part::Clippy => clippy(layout),
        Part::Deny => deny(layout),
        Part::Web => web::build(layout, &web::Options::default()).map(|()| Count::one_passed()),
        Part::Rust => rust(layout, setup, filter),
        Part::Doc => doc(layout, setup),
        Part::Python => python(layout, setup, filter),
        Part::NvmlClients => nvml_clients(layout, setup),
        Part::Hardware => hardware(layout, setup),
        Part::Rules => rules::run(layout, setup),
        Part::Browser => browser(layout, setup, filter),
    }
}

fn clippy(layout: &Layout) -> Result<Count> {
    let args = "clippy --locked --workspace --all-targets -- --deny warnings".split(' ');
    check(Child::new(layout, "clippy", "cargo", CLIPPY).args(args))
}

/// The only part with an optional tool: its settings are checked where the tool is installed.
fn deny(layout: &Layout) -> Result<Count> {
    if child::on_path("cargo-deny").is_none() {
        let note = "cargo-deny is not installed: licences, bans and sources were not checked (`cargo install cargo-deny`)";
        return Ok(Count {
            skipped: 1,
            note: note.to_owned(),
            ..Count::default()
        });
    }
    let args = "deny --offline check licenses bans sources".split(' ');
    check(Child::new(layout, "deny", "cargo", MEDIUM).args(args))
}

fn rust(layout: &Layout, setup: &Setup, filter: Option<&str>) -> Result<Count> {
    setup.native.path().context("the tests could not be compiled")?;
    let missing = [
        &setup.venv,
        &setup.promtool,
        &setup.prometheus,
        &setup.alertmanager,
        &setup.chromium,
    ];
    let missing = missing
        .into_iter()
        .filter_map(|need| need.path().err())
        .fold(Count::default(), |sum, why| {
            sum.plus(Count::failed(format!("{why:#}")))
        });
    let nextest = child::on_path("cargo-nextest").is_some();
    let child = Child::new(layout, "rust", "cargo", RUST).envs(&setup.variables());
    let child = if nextest {
        child
            .args("nextest run --locked --workspace --no-fail-fast --no-tests pass".split(' '))
            // .config/nextest.toml says which tests may share a core.
            .args([format!("--test-threads={}", TESTS_PER_CORE * machine::cores())])
    } else {
        say("rust", "cargo-nextest is not installed; using cargo test");
        child.args(["test", "--locked", "--workspace", "--tests", "--no-fail-fast"])
    };
    let ended = child.args(filter).end()?;
    let count = if nextest {
        counted(&ended, count::nextest, slowest::nextest)
    } else {
        counted(&ended, count::libtest, |_| Vec::new())
    };
    count.map(|count| count.plus(missing))
}

/// Skips rustdoc if there are no examples, because rustdoc builds every crate once more to find none.
fn doc(layout: &Layout, setup: &Setup) -> Result<Count> {
    if !examples::any_below(&layout.root.join("crates"))? {
        return Ok(Count {
            note: "no doc comment holds an example".to_owned(),
            ..Count::default()
        });
    }
    setup.native.path().context("the crates could not be compiled")?;
    let ended = Child::new(layout, "doc", "cargo", MEDIUM)
        .args(["test", "--locked", "--doc", "--no-fail-fast"])
        .end()?;
    counted(&ended, count::libtest, |_| Vec::new())
}

/// One worker per core; each takes the next file. The order is that of tests/conftest.py.
fn python(layout: &Layout, setup: &Setup, filter: Option<&str>) -> Result<Count> {
    let ended = Child::new(layout, "python", venv::python(setup.venv.path()?), PYTHON)
        .args("-m pytest -v --tb=short --durations=0 --color=no -p no:cacheprovider".split(' '))
        .args(["--dist=loadfile", "--no-loadscope-reorder"])
        .args([format!("--numprocesses={}", machine::cores())])
        .args(["crates/torch-probe/tests"])
        .args(filter.into_iter().flat_map(|filter| ["-k", filter]))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(&setup.variables())
        .end()?;
    counted(&ended, count::pytest, slowest::pytest)
}

/// The clients load `libnvidia-ml.so.1`, so the simulator gets that name in its own folder.
fn nvml_clients(layout: &Layout, setup: &Setup) -> Result<Count> {
    let simulator = setup
        .native
        .path()
        .context("the simulator could not be compiled")?
        .join("libsim_nvml.so");
    let folder = layout.logs().join("nvml");
    let link = folder.join("libnvidia-ml.so.1");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::remove_file(&link).ok();
    symlink(&simulator, &link).with_context(|| format!("cannot link {}", link.display()))?;
    let ended = Child::new(layout, "nvml-clients", venv::python(setup.venv.path()?), MEDIUM)
        .args(["crates/sim-nvml/tests/clients"])
        .env("LD_LIBRARY_PATH", &folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(&setup.variables())
        .end()?;
    let all_smi = match &setup.all_smi {
        Need::Here(_) => Count::default(),
        Need::Missing(why) => Count::failed(why.clone()),
        Need::NotAsked => Count {
            note: "without all-smi, which `--only nvml-clients` builds".to_owned(),
            ..Count::default()
        },
    };
    Ok(counted(&ended, count::nvml_clients, |_| Vec::new())?.plus(all_smi))
}

/// The folder that `cargo xtask lab hardware` builds, with the binaries of the tests: every step must run to its end, whatever its rows
/// say.
fn hardware(layout: &Layout, setup: &Setup) -> Result<Count> {
    let native = setup.native.path().context("the binary could not be compiled")?;
    let venv = setup.venv.path()?;
    let folder = layout.logs().join("hardware");
    hardware::assemble(layout, &folder, native, Binaries::Linked)?;
    let ended = Child::new(layout, "hardware", folder.join("confirm"), MEDIUM)
        .args(["all", "--quick", "--simulate", "h200x1", "--out"])
        .args([folder.join("results")])
        .env("PYTHON", venv::python(venv))
        .end()?;
    let steps = counted(&ended, count::confirm, |_| Vec::new())?;
    let tests = Child::new(layout, "hardware-tests", venv::python(venv), SHORT)
        .args("-m pytest -p no:cacheprovider -q crates/xtask/hardware/tests".split(' '))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .end()?;
    Ok(steps.plus(counted(&tests, count::pytest, |_| Vec::new())?))
}

/// In two lanes, because pages and runs wait most of the time. The test that measures comes after them, alone.
fn browser(layout: &Layout, setup: &Setup, filter: Option<&str>) -> Result<Count> {
    let native = setup.native.path().context("the binary could not be compiled")?;
    for need in [&setup.chromium, &setup.node_modules, &setup.venv] {
        need.path()?;
    }
    let folder = layout.root.join("e2e");
    let tests = fingerprint::files(&folder, &[folder.join("node_modules")])?;
    let (measuring, mut waiting): (Vec<_>, Vec<_>) = tests
        .into_iter()
        .filter(|file| file.to_string_lossy().ends_with(BROWSER_TEST))
        .partition(|file| file.ends_with(MEASURES_IN_BROWSER));
    let [measuring] = &measuring[..] else {
        bail!("there is no {MEASURES_IN_BROWSER} in {}", folder.display());
    };
    if waiting.is_empty() {
        bail!("there are no other tests in {}", folder.display());
    }
    waiting.sort_by_key(|file| Reverse(fs::metadata(file).map_or(0, |about| about.len())));
    let node = npm::node()?;
    let run = |file: &Path| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let step = format!("browser-{}", name.trim_end_matches(BROWSER_TEST));
        let ended = Child::new(layout, &step, &node, MEDIUM)
            .args(["--test", "--test-reporter=tap"])
            .args(
                filter
                    .into_iter()
                    .flat_map(|filter| ["--test-name-pattern", filter]),
            )
            .args([file])
            .env("LOCKSTEP_TEST_BINARY", native.join("lockstep"))
            .envs(&setup.variables())
            .end()?;
        counted(&ended, count::node, slowest::node)
    };
    let count = lanes::run(&in_turn(waiting), |_, file| run(file))?;
    Ok(count.plus(run(measuring)?))
}

/// Returns the first, the last, the second, the last but one, and so on. Large files with browser tests compute, and the small ones wait
/// for the faults of a demo: so in most cases one of each runs at the same time.
fn in_turn(files: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut rest = VecDeque::from(files);
    let mut ordered = Vec::new();
    while let Some(first) = rest.pop_front() {
        ordered.push(first);
        ordered.extend(rest.pop_back());
    }
    ordered
}

/// Runs a child that counts as one test.
fn check(child: Child) -> Result<Count> {
    child.succeed().map(|_| Count::one_passed())
}

/// Reads counts and times from the log. Shows the end of the log after a failure.
fn counted(
    ended: &Ended,
    read: impl Fn(&str) -> Option<Count>,
    times: impl Fn(&str) -> Vec<TestTime>,
) -> Result<Count> {
    let log = fs::read(&ended.log).with_context(|| format!("cannot read {}", ended.log.display()))?;
    let log = String::from_utf8_lossy(&log);
    let mut count = read(&log).unwrap_or_default().with_exit(ended.status.success());
    count.times = times(&log);
    if count.failed > 0 {
        block(
            &format!("the end of {}", ended.log.display()),
            &child::tail(&ended.log)?,
        );
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_and_small_files_come_in_turn() {
        let files = |names: &str| names.split(' ').map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(in_turn(files("a b c d e")), files("a e b d c"));
    }
}
