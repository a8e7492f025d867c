//! `lockstep rules test`: files for `promtool test rules`, run without a collector and without Prometheus.

mod file;
mod series;

mod group;
mod run;
mod storage;

mod compare;

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use domain::rule::Group;
use regex::Regex;

use crate::failure::Failure;
use file::{TestFile, quoted};
use run::Settings;

/// How tests are run.
pub(super) struct Options {
    /// Only tests whose name matches.
    pub(super) run: Option<Regex>,
    pub(super) debug: bool,
}

/// Runs all tests of all files before it fails.
pub(super) fn all<P: AsRef<Path>>(files: &[P], options: &Options) -> Result<(), Failure> {
    let mut failed = 0_usize;
    for path in files {
        let path = path.as_ref();
        match tests(path, options) {
            Ok(bad) => failed += bad,
            Err(error) => {
                failed += 1;
                say!("{}: {error:#}", path.display());
            }
        }
    }
    match failed {
        0 => Ok(()),
        1 => Err(Failure::Failed(anyhow!("a rule test failed"))),
        failed => Err(Failure::Failed(anyhow!("{failed} rule tests failed"))),
    }
}

/// How many tests of a file failed.
fn tests(path: &Path, options: &Options) -> Result<usize> {
    let file = TestFile::read(path)?;
    let groups = groups(&file, path)?;
    let settings = Settings {
        interval_ms: file.interval_ms,
        fuzzy: file.fuzzy,
        debug: options.debug,
    };
    let (mut passed, mut failed, mut left_out) = (0, 0, 0);
    let mut said = Vec::new();
    for (n, test) in (1..).zip(&file.tests) {
        if options
            .run
            .as_ref()
            .is_some_and(|only| !only.is_match(&test.name))
        {
            left_out += 1;
            continue;
        }
        if options.debug {
            eprintln!("  test {n}{}", quoted(&test.name));
        }
        let failures = run::run(test, &groups, &settings);
        if failures.is_empty() {
            passed += 1;
            continue;
        }
        failed += 1;
        said.push(format!("  test {n}{} failed:", quoted(&test.name)));
        said.extend(
            failures
                .iter()
                .map(|failure| format!("    {}", failure.replace('\n', "\n    "))),
        );
    }
    let left_out = if left_out > 0 {
        format!(", {left_out} left out")
    } else {
        String::new()
    };
    say!("{}: {passed} passed, {failed} failed{left_out}", path.display());
    for line in said {
        say!("{line}");
    }
    Ok(failed)
}

/// The groups of all rule files, in the order of `group_eval_order`; those it does not name come last, as they are in their
/// files.
fn groups(file: &TestFile, path: &Path) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for path in file.rule_paths(path)? {
        let read = collector::diagnose::files::read(&path);
        let read = read.map_err(|mistakes| anyhow!(mistakes.join("\n")));
        groups.extend(read.with_context(|| path.display().to_string())?.groups);
    }
    let place = |group: &Group| file.group_order.iter().position(|name| *name == group.name);
    groups.sort_by_key(|group| place(group).unwrap_or(usize::MAX));
    Ok(groups)
}
