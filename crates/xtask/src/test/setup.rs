//! Sets up everything that the chosen parts need, in three lanes at once.

use std::fmt::Display;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::child::Child;
use crate::layout::Layout;
use crate::progress::say;
use crate::test::table::Row;
use crate::test::{Part, run_part};
use crate::toolchain::{all_smi, apt, container, npm, venv};

/// A cold build of all targets with their tests, on two cores that also build the dashboard.
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);

/// The result of the set-up per need, or the reason why it failed. What no part needs is not set up.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) venv: Need,
    pub(crate) prometheus: Need,
    pub(crate) promtool: Need,
    pub(crate) alertmanager: Need,
    pub(crate) victoria_metrics: Need,
    pub(crate) chromium: Need,
    /// A root file system for Podman. If it cannot be created, tests of containers say so and are skipped.
    pub(crate) container_root: Need,
    pub(crate) node_modules: Need,
    /// Used if it exists; built only if its part is requested by name.
    pub(crate) all_smi: Need,
    /// Whether all native code, including tests, is compiled.
    pub(crate) native: Need,
}

/// One thing that a part may need.
#[derive(Clone, Default)]
pub(crate) enum Need {
    #[default]
    NotAsked,
    Here(PathBuf),
    Missing(String),
}

impl Need {
    /// Returns its path, or the reason why the part that needs it fails.
    pub(crate) fn path(&self) -> Result<&PathBuf> {
        match self {
            Self::Here(path) => Ok(path),
            Self::Missing(why) => Err(anyhow!("{why}")),
            Self::NotAsked => Err(anyhow!("is needed but was not set up")),
        }
    }

    fn of(what: &str, result: Result<PathBuf>) -> Self {
        match result {
            Ok(path) => Self::Here(path),
            Err(error) => Self::missing(what, format!("{error:#}")),
        }
    }

    fn missing(what: &str, why: impl Display) -> Self {
        say(what, &format!("MISSING: {why}"));
        Self::Missing(format!("{what}: {why}"))
    }
}

impl Setup {
    /// Returns the variables with which tests find what was set up.
    pub(crate) fn variables(&self) -> Vec<(&'static str, PathBuf)> {
        let named = [
            ("LOCKSTEP_TEST_VENV", &self.venv),
            ("LOCKSTEP_TEST_PROMETHEUS", &self.prometheus),
            ("LOCKSTEP_TEST_PROMTOOL", &self.promtool),
            ("LOCKSTEP_TEST_ALERTMANAGER", &self.alertmanager),
            ("LOCKSTEP_TEST_VICTORIA_METRICS", &self.victoria_metrics),
            ("LOCKSTEP_TEST_CHROMIUM", &self.chromium),
            ("LOCKSTEP_TEST_CONTAINER_ROOT", &self.container_root),
            ("LOCKSTEP_TEST_NODE_MODULES", &self.node_modules),
            ("LOCKSTEP_TEST_ALL_SMI", &self.all_smi),
        ];
        named
            .into_iter()
            .filter_map(|(name, need)| Some((name, need.path().ok()?.clone())))
            .collect()
    }
}

/// Returns true for checks that need no set-up and run during the set-up of the others.
pub(crate) fn is_done_in_setup(part: Part) -> bool {
    matches!(part, Part::Fmt | Part::Clippy | Part::Deny | Part::Web)
}

/// Runs the three lanes. Returns the parts that ran in them.
pub(crate) fn run(layout: &Layout, parts: &[Part]) -> (Vec<Row>, Setup) {
    thread::scope(|scope| {
        let fetched = scope.spawn(|| fetch(layout, parts));
        let dashboard = scope.spawn(|| checks(layout, parts, &[Part::Web]));
        let mut rows = checks(layout, parts, &[Part::Fmt, Part::Deny, Part::Clippy]);
        let native = build(layout, parts);
        // A panic in a lane is a bug of this program and must be visible.
        rows.extend(dashboard.join().expect("the lane of the dashboard ends"));
        let setup = Setup {
            native,
            ..fetched.join().expect("the lane of downloads ends")
        };
        (rows, setup)
    })
}

fn checks(layout: &Layout, parts: &[Part], lane: &[Part]) -> Vec<Row> {
    let mine = lane.iter().filter(|part| parts.contains(part));
    mine.map(|part| run_part(layout, *part, &Setup::default(), None))
        .collect()
}

fn fetch(layout: &Layout, parts: &[Part]) -> Setup {
    let needed = |by: &[Part]| by.iter().any(|part| parts.contains(part));
    let mut setup = Setup::default();
    if needed(&[Part::Rust, Part::Rules]) {
        setup.promtool = Need::of("promtool", apt::unpacked(layout, &apt::PROMTOOL));
    }
    if needed(&[Part::Rust]) {
        setup.prometheus = Need::of("prometheus", apt::unpacked(layout, &apt::PROMETHEUS));
        setup.alertmanager = Need::of("alertmanager", apt::unpacked(layout, &apt::ALERTMANAGER));
        setup.victoria_metrics = Need::of("victoria-metrics", apt::unpacked(layout, &apt::VICTORIA_METRICS));
        setup.container_root = Need::of("container-root", container::ensure(layout));
    }
    if needed(&[Part::Rust, Part::Browser]) {
        setup.chromium = Need::of("chromium", apt::installed(layout, &apt::CHROMIUM));
        setup.node_modules = Need::of("playwright", npm::ensure(layout, "e2e"));
    }
    if needed(&[
        Part::Rust,
        Part::Python,
        Part::NvmlClients,
        Part::Hardware,
        Part::Browser,
    ]) {
        setup.venv = Need::of("venv", venv::ensure(layout));
    }
    if parts == [Part::NvmlClients] {
        setup.all_smi = Need::of("all-smi", all_smi::ensure(layout));
    } else if let Some(program) = all_smi::found(layout) {
        setup.all_smi = Need::Here(program);
    }
    setup
}

/// Everything except what no part runs: the dashboard as a native program, and the benchmarks. Clippy checks both.
const TARGETS: &str = "--lib --tests --examples --bin loadgen --bin lockstep --bin xtask";

/// Compiles all native code with its tests in one step, so that features are unified once and nothing is built twice.
fn build(layout: &Layout, parts: &[Part]) -> Need {
    if !parts.iter().any(|part| {
        matches!(
            part,
            Part::Rust | Part::Doc | Part::NvmlClients | Part::Hardware | Part::Rules | Part::Browser
        )
    }) {
        return Need::NotAsked;
    }
    say("build", "compiling all native code and tests");
    let built = Child::new(layout, "build", "cargo", BUILD_LIMIT)
        .args(["build", "--locked", "--workspace"])
        .args(TARGETS.split(' '))
        .succeed();
    Need::of("build", built.map(|_| layout.target().join("debug")))
}
