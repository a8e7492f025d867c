//! Runs query tests in Prometheus' test language: Lockstep's own files, and Prometheus' files if they are beside the checkout.
//!
//! Evaluations of Prometheus' files that fail are listed in `promqltest.known-failures`, one `file:line` per line. The list may only
//! shrink: a new failure fails the test, and so does a listed evaluation that passes.
//! `LOCKSTEP_PROMQLTEST` names another folder; `LOCKSTEP_PROMQLTEST_UPDATE=1` rewrites the list.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "the pass rate is what this test is read for")]

mod dsl;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use dsl::source::Storage;
use dsl::{Command, Eval, Script, check};

/// Files of features that are behind a flag in Prometheus.
const EXPERIMENTAL_FILES: [&str; 7] = [
    "duration_expression.test",
    "extended_vectors.test",
    "fill-modifier.test",
    "info.test",
    "limit.test",
    "native_histograms.test",
    "start_timestamps.test",
];
/// First lines of the list of known failures.
const LIST_HEADER: &str = "\
# Evaluations of Prometheus' test files that this engine gets wrong, by file and line. The list may only shrink.
# Nearly all need native histograms, or syntax and functions that are behind a flag in Prometheus.
";
/// Functions and aggregations that are behind a flag in Prometheus. This engine supports most of them; they do not count as stable.
const EXPERIMENTAL_CALLS: [&str; 15] = [
    "double_exponential_smoothing",
    "histogram_quantiles",
    "info",
    "limit_ratio",
    "limitk",
    "mad_over_time",
    "max_of",
    "min_of",
    "sort_by_label",
    "sort_by_label_desc",
    "start_timestamp",
    "ts_of_first_over_time",
    "ts_of_last_over_time",
    "ts_of_max_over_time",
    "ts_of_min_over_time",
];
/// Functions that only native histograms have.
const HISTOGRAM_CALLS: [&str; 5] = [
    "histogram_avg",
    "histogram_count",
    "histogram_stddev",
    "histogram_stdvar",
    "histogram_sum",
];

struct Outcome {
    file: String,
    line: usize,
    query: String,
    error: Option<String>,
    /// True if the evaluation uses only stable features of Prometheus: no native histograms, and no function or syntax behind a flag.
    is_stable: bool,
}

#[test]
fn our_own_files_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../domain/testdata/query");
    let outcomes = run_folder(&folder);
    assert!(
        outcomes.len() >= 30,
        "only {} evaluations in {}",
        outcomes.len(),
        folder.display()
    );
    let failures: Vec<String> = outcomes
        .iter()
        .filter(|outcome| outcome.error.is_some())
        .map(told)
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn prometheus_files_pass_except_for_the_known_failures() {
    let Some(folder) = prometheus_folder() else {
        println!(
            "skipped: no folder shared/promqltest beside the checkout, and LOCKSTEP_PROMQLTEST is not set"
        );
        return;
    };
    let outcomes = run_folder(&folder);
    print_rates(&outcomes);
    let failing: BTreeSet<String> = outcomes
        .iter()
        .filter(|outcome| outcome.error.is_some())
        .map(key)
        .collect();
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/promqltest.known-failures");
    if std::env::var_os("LOCKSTEP_PROMQLTEST_UPDATE").is_some() {
        fs::write(
            &list,
            LIST_HEADER.to_owned() + &failing.iter().map(|key| format!("{key}\n")).collect::<String>(),
        )
        .unwrap();
    }
    let known: BTreeSet<String> = fs::read_to_string(&list)
        .unwrap_or_default()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    let new: Vec<String> = outcomes
        .iter()
        .filter(|o| o.error.is_some() && !known.contains(&key(o)))
        .map(told)
        .collect();
    let mended: Vec<&String> = known.difference(&failing).collect();
    assert!(
        new.is_empty(),
        "{} evaluations fail that are not known to:\n{}",
        new.len(),
        new.join("\n")
    );
    assert!(
        mended.is_empty(),
        "these pass now; take them off {}:\n{mended:#?}",
        list.display()
    );
}

/// Returns the folder named by the environment variable, or the one beside the checkout or one of its parents.
fn prometheus_folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("LOCKSTEP_PROMQLTEST") {
        return Some(PathBuf::from(folder));
    }
    let ancestors = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    ancestors
        .map(|folder| folder.join("shared/promqltest"))
        .find(|folder| folder.is_dir())
}

fn run_folder(folder: &Path) -> Vec<Outcome> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "test"));
    files.sort();
    files
        .iter()
        .flat_map(|file| {
            let name = file.file_name().unwrap().to_string_lossy();
            run_script(&dsl::read(&name, &fs::read_to_string(file).unwrap()))
        })
        .collect()
}

fn run_script(script: &Script) -> Vec<Outcome> {
    let mut storage = Storage::default();
    let mut outcomes = Vec::new();
    for command in &script.commands {
        let (line, query, error, is_stable) = match command {
            Command::Clear => {
                storage = Storage::default();
                continue;
            }
            Command::Load {
                step_ms,
                lines,
                with_nhcb,
            } => {
                storage.load(*step_ms, lines, *with_nhcb);
                continue;
            }
            Command::Unknown { line, text } => (
                *line,
                text,
                Some("not a command this runner knows".to_owned()),
                true,
            ),
            Command::Eval(eval) => (
                eval.line,
                &eval.query,
                check::check(&storage, eval).err(),
                is_stable(script, eval, &storage),
            ),
        };
        outcomes.push(Outcome {
            file: script.name.clone(),
            line,
            query: query.clone(),
            error,
            is_stable,
        });
    }
    outcomes
}

fn is_stable(script: &Script, eval: &Eval, storage: &Storage) -> bool {
    let calls = EXPERIMENTAL_CALLS.iter().chain(&HISTOGRAM_CALLS);
    let reads_histograms =
        || query::parse(&eval.query).is_ok_and(|query| storage.reads_histograms(&query, &eval.params));
    !EXPERIMENTAL_FILES.contains(&script.name.as_str())
        && !calls.into_iter().any(|name| calls_function(&eval.query, name))
        && !reads_histograms()
}

/// Returns true if the query contains the name as a whole word.
fn calls_function(query: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    query
        .match_indices(name)
        .any(|(at, _)| !query[..at].ends_with(is_word) && !query[at + name.len()..].starts_with(is_word))
}

fn key(outcome: &Outcome) -> String {
    format!("{}:{:04}", outcome.file, outcome.line)
}

fn told(outcome: &Outcome) -> String {
    format!(
        "{} {}{}\n    {}",
        key(outcome),
        if outcome.is_stable { "(stable) " } else { "" },
        outcome.query,
        outcome.error.as_deref().unwrap_or("passes")
    )
}

fn print_rates(outcomes: &[Outcome]) {
    let files: BTreeSet<&str> = outcomes.iter().map(|outcome| outcome.file.as_str()).collect();
    let rate = |name: &str, is_in: &dyn Fn(&Outcome) -> bool| {
        let all = outcomes.iter().filter(|outcome| is_in(outcome));
        let (passed, total) = (
            all.clone().filter(|outcome| outcome.error.is_none()).count(),
            all.count(),
        );
        println!(
            "{name:<28} {passed:>4} of {total:>4}  {:.1} %",
            100.0 * passed as f64 / total.max(1) as f64
        );
    };
    files
        .iter()
        .for_each(|file| rate(file, &|outcome| outcome.file == *file));
    rate("stable evaluations", &|outcome| outcome.is_stable);
    rate("all evaluations", &|_| true);
}
