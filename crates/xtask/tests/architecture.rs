//! Checks the structure of the workspace: which crate may depend on which, and what must never be linked.
//!
//! The table here is the one in `crates/README.md`. A new dependency is a visible one-line change in this file, with a reason.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "architecture/circles.rs"]
mod circles;
#[path = "architecture/repository.rs"]
mod repository;
#[path = "architecture/workspace.rs"]
mod workspace;

use circles::Imports;
use workspace::{dependencies, locked_dependencies, locked_versions, own_crates};

/// Each of our crates with the crates of ours that it may use. All others are forbidden, in particular: agent → store or collector, web →
/// collector, and any of our crates from `sim-nvml`, which must share no code with what it tests, and from `nccl-probe`, which is loaded
/// into users' processes.
const ALLOWED: [(&str, &[&str]); 15] = [
    ("domain", &[]),
    ("query", &["domain"]),
    ("store", &["domain"]),
    ("wire", &["domain"]),
    ("web", &["domain"]),
    ("listener", &[]),
    ("shim", &["domain"]),
    // `listener` for the agent's own `/metrics`; `shim` for the files that both read and write.
    ("agent", &["domain", "listener", "shim", "wire"]),
    ("collector", &["domain", "listener", "query", "store", "wire"]),
    // `query` for checking rule files and `--format` of a query on the command line.
    // `store` for `lockstep store` on the data folder of a collector that does not run.
    // `listener` for the limit of open files, which services raise and `doctor` shows.
    // `shim` for `lockstep shim`.
    // `sim-cluster` for `lockstep demo`.
    (
        "lockstep",
        &[
            "agent",
            "collector",
            "domain",
            "listener",
            "query",
            "shim",
            "sim-cluster",
            "store",
        ],
    ),
    // Uses the agents' protocol from outside, like an agent.
    ("sim-cluster", &["domain", "wire"]),
    ("sim-nvml", &[]),
    ("nccl-probe", &[]),
    // Measures the collector from outside: it shares the protocol with the agent, and no code.
    ("loadgen", &["domain", "wire"]),
    ("xtask", &[]),
];

/// Crates with which the pure crates could do I/O, wait, or read the clock.
const IMPURE: [&str; 18] = [
    "tokio",
    "tokio-stream",
    "tokio-util",
    "futures",
    "axum",
    "hyper",
    "tonic",
    "reqwest",
    "tower",
    "sqlx",
    "rustix",
    "libc",
    "jiff",
    "rand",
    "tracing",
    "dirs",
    "tempfile",
    "prometheus",
];

/// Crates with threads of their own: a shim has one thread, and lives as long as the training.
const RUNTIMES: [&str; 4] = ["tokio", "async-std", "smol", "rayon"];

/// Crates that only the listed crates of ours may use.
const RESERVED: [(&str, &[&str]); 7] = [
    ("sqlx", &["store"]),
    ("pco", &["store"]),
    ("nvml-wrapper", &["agent"]),
    ("nvml-wrapper-sys", &["agent"]),
    ("promql-parser", &["query"]),
    ("leptos", &["web"]),
    ("wasm-bindgen-cli-support", &["xtask"]),
];

#[test]
fn every_edge_between_our_crates_is_in_the_table() {
    for name in own_crates() {
        let (_, allowed) = ALLOWED
            .iter()
            .find(|(of, _)| *of == name)
            .unwrap_or_else(|| panic!("{name} is not in the table"));
        let own = own_crates();
        for used in dependencies(&name).into_iter().filter(|used| own.contains(used)) {
            assert!(
                allowed.contains(&used.as_str()),
                "{name} → {used} is not in the table"
            );
        }
    }
}

/// Maximum number of files of a crate that import each other in a circle.
const CIRCLE_MAX: usize = 6;

#[test]
fn files_that_import_each_other_in_a_circle_are_few() {
    let crates = std::fs::read_dir(workspace::root().join("crates")).unwrap();
    let crates = crates.map(|entry| format!("crates/{}", entry.unwrap().file_name().to_str().unwrap()));
    for folder in crates.chain(["web".to_owned()]) {
        let source = workspace::root().join(&folder).join("src");
        if !source.is_dir() {
            continue;
        }
        let circle = Imports::read(&source).largest_circle();
        assert!(
            circle.len() <= CIRCLE_MAX,
            "{folder}: {} files: {circle:?}",
            circle.len()
        );
    }
}

#[test]
fn the_table_names_no_crate_that_is_gone() {
    for (name, allowed) in ALLOWED {
        for name in allowed.iter().chain([&name]) {
            assert!(
                own_crates().iter().any(|own| own == name),
                "{name} does not exist"
            );
        }
    }
}

#[test]
fn domain_and_query_cannot_do_io() {
    for name in ["domain", "query"] {
        for used in dependencies(name) {
            assert!(
                !IMPURE.contains(&used.as_str()),
                "{name} uses {used}; time, randomness and bytes arrive as values"
            );
        }
    }
}

#[test]
fn the_shim_links_no_runtime() {
    let linked = locked_dependencies("shim");
    assert!(linked.contains("rustix"), "where is Cargo.lock?");
    for runtime in RUNTIMES {
        assert!(
            !linked.contains(runtime),
            "shim links {runtime}; find who brings it with `cargo tree --package shim --invert {runtime}`"
        );
    }
}

#[test]
fn domain_and_query_name_no_door_to_the_outside() {
    const DOORS: [&str; 7] = [
        "std::fs",
        "std::env",
        "std::net",
        "std::process",
        "std::thread",
        "SystemTime::now",
        "Instant::now",
    ];
    for name in ["domain", "query"] {
        for (path, text) in workspace::sources(name) {
            for door in DOORS {
                assert!(
                    !text.contains(door),
                    "{path} names {door}; what it would bring arrives as a value"
                );
            }
        }
    }
}

#[test]
fn no_decision_about_a_run_depends_on_the_text_of_a_message() {
    const READ_AS: [&str; 3] = ["", ".as_str()", ".to_string()"];
    const DECISIONS: [&str; 6] = [
        ".strip_prefix(",
        ".starts_with(",
        ".ends_with(",
        ".contains(",
        "==",
        "!=",
    ];
    let sources = workspace::sources("domain");
    let of_runs: Vec<_> = sources
        .iter()
        .filter(|(path, _)| path.contains("src/run/"))
        .collect();
    assert!(of_runs.len() > 50, "where are the sources of runs?");
    for (path, text) in of_runs.iter().filter(|(path, _)| !path.contains("tests")) {
        let production = text.split("#[cfg(test)]").next().unwrap_or_default();
        let dense: String = production.chars().filter(|c| !c.is_whitespace()).collect();
        for read in READ_AS {
            for decision in DECISIONS {
                let pattern = format!(".message{read}{decision}");
                assert!(
                    !dense.contains(&pattern),
                    "{path} has `{pattern}`: decide by `Outcome::cause` or another type"
                );
            }
        }
    }
}

#[test]
fn the_state_of_a_run_knows_neither_its_stored_form_nor_the_api() {
    let sources = workspace::sources("domain");
    let of_state = |path: &str| path.contains("src/run/state") && !path.contains("tests");
    let of_state: Vec<_> = sources.iter().filter(|(path, _)| of_state(path)).collect();
    assert!(of_state.len() > 15, "where are the sources of the state?");
    for (path, text) in of_state {
        let production = text.split("#[cfg(test)]").next().unwrap_or_default();
        for known in ["use crate::api", "use crate::run::stored"] {
            assert!(!production.contains(known), "{path} has `{known}`");
        }
    }
}

#[test]
fn domain_names_no_file_of_the_folder_that_agent_and_shim_share() {
    let files = std::fs::read_to_string(workspace::root().join("crates/shim/src/files.rs")).unwrap();
    let constants = files.lines().filter_map(|line| line.strip_prefix("pub const "));
    let names: Vec<&str> = constants.filter_map(|line| line.split('"').nth(1)).collect();
    assert!(names.len() > 30, "where are the names?");
    for (path, text) in workspace::sources("domain") {
        let production = text.split("#[cfg(test)]").next().unwrap_or_default();
        for name in &names {
            let below_a_folder = format!("}}/{name}\"");
            assert!(
                path.contains("tests") || !production.contains(&below_a_folder),
                "{path} names `{name}`: let the agent pass the path, made from `shim::files`"
            );
        }
    }
}

#[test]
fn what_one_crate_is_for_no_other_crate_uses() {
    for (reserved, owners) in RESERVED {
        for name in own_crates()
            .iter()
            .filter(|name| !owners.contains(&name.as_str()))
        {
            assert!(
                !dependencies(name).iter().any(|used| used == reserved),
                "only {owners:?} may use {reserved}, not {name}"
            );
        }
    }
}

#[test]
fn one_crypto_provider_and_one_recent_sqlite_are_linked() {
    for banned in ["aws-lc-rs", "aws-lc-sys", "openssl-sys", "native-tls"] {
        assert!(
            locked_versions(banned).is_empty(),
            "{banned} is in Cargo.lock; find who brings it with `cargo tree -i {banned}`"
        );
    }
    let sqlite = locked_versions("libsqlite3-sys");
    assert_eq!(sqlite.len(), 1, "one SQLite, not {sqlite:?}");
    let minor: u32 = sqlite[0].split('.').nth(1).unwrap().parse().unwrap();
    assert!(
        minor >= 37,
        "libsqlite3-sys {} carries a SQLite with the WAL-reset bug",
        sqlite[0]
    );
}

#[test]
fn wasm_bindgen_and_the_library_that_reads_its_output_have_one_version() {
    assert_eq!(
        locked_versions("wasm-bindgen"),
        locked_versions("wasm-bindgen-cli-support")
    );
}
