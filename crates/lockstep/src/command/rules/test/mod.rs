//! `lockstep rules test`: runs files for `promtool test rules` without a collector and without Prometheus.

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

/// Options of the command.
pub(super) struct Options {
    /// Run only tests whose name matches.
    pub(super) run: Option<Regex>,
    pub(super) debug: bool,
}

/// Runs all tests of all files. Fails at the end if a test failed.
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
        1 => Err(Failure::Failed(anyhow!("1 rule test failed"))),
        failed => Err(Failure::Failed(anyhow!("{failed} rule tests failed"))),
    }
}

/// Runs the tests of a file. Returns how many failed.
fn tests(path: &Path, options: &Options) -> Result<usize> {
    let file = TestFile::read(path)?;
    let groups = groups(&file, path)?;
    let settings = Settings {
        interval_ms: file.interval_ms,
        fuzzy: file.fuzzy,
        debug: options.debug,
    };
    let (mut passed, mut failed, mut left_out) = (0, 0, 0);
    let mut report = Vec::new();
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
        report.push(format!("  test {n}{} failed:", quoted(&test.name)));
        report.extend(
            failures
                .iter()
                .map(|failure| format!("    {}", failure.replace('\n', "\n    "))),
        );
    }
    let left_out = if left_out > 0 {
        format!(", {left_out} skipped")
    } else {
        String::new()
    };
    say!("{}: {passed} passed, {failed} failed{left_out}", path.display());
    for line in report {
        say!("{line}");
    }
    Ok(failed)
}

/// Returns the groups of all rule files in the order of `group_eval_order`. Groups that it does not name come last, in the order of their
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::path::PathBuf;

    use super::*;

    /// The tests of the shipped rules. `cargo xtask test` runs this command with each of them, and here those that are wrong on purpose.
    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../domain/rules/tests");

    fn files(pattern: &str) -> Vec<PathBuf> {
        let files = collector::diagnose::files::matching(&format!("{FOLDER}/{pattern}")).unwrap();
        assert!(!files.is_empty(), "{pattern}");
        files
    }

    fn options(run: Option<&str>) -> Options {
        Options {
            run: run.map(|text| Regex::new(text).unwrap()),
            debug: false,
        }
    }

    #[test]
    fn tests_that_are_wrong_fail() {
        for path in files("wrong/*.test.yaml") {
            let failed = tests(&path, &options(None)).unwrap_or(1);
            assert_eq!(failed, 1, "{}", path.display());
            assert!(all(&[&path], &options(None)).is_err());
        }
    }

    #[test]
    fn tests_are_chosen_by_name() {
        let wrong = files("wrong/labels.test.yaml");
        assert_eq!(tests(&wrong[0], &options(Some("no such name"))).unwrap(), 0);
    }

    #[test]
    fn times_groups_and_rules_are_as_promtool_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        file(
            "a.yaml",
            "groups: [{ name: b, rules: [{ record: y, expr: x }] }, { name: a, rules: [{ record: z, expr: y * 2 }] }]",
        );
        let test = |extra: &str, case: &str| {
            file(
                "t.yaml",
                &format!(
                    "{{ rule_files: ['*.yam[l]'], evaluation_interval: 5m, {extra} tests: [{{ interval: 1m, start_timestamp: 3600,
                       input_series: [{{ series: x, values: '0+1x20' }}], promql_expr_test: [{case}] }}] }}"
                ),
            )
        };
        // The pattern also matches the test file, which is not a rule file.
        let path = test("", "{ expr: x, eval_time: 0m }");
        assert!(tests(&path, &options(None)).is_err());
        std::fs::rename(folder.path().join("a.yaml"), folder.path().join("a.rules")).unwrap();
        let rerun = |extra: &str, case: &str| {
            let text = std::fs::read_to_string(test(extra, case)).unwrap();
            tests(
                &file("t.yaml", &text.replace("*.yam[l]", "*.rules")),
                &options(None),
            )
            .unwrap()
        };
        for (extra, case, failed) in [
            // Samples are added only at evaluations: at 7m, the newest sample is the one from 5m.
            (
                "",
                "{ expr: x, eval_time: 7m, exp_samples: [{ labels: x, value: 5 }] }",
                0,
            ),
            (
                "",
                "{ expr: time(), eval_time: 0m, exp_samples: [{ value: 3600 }] }",
                0,
            ),
            (
                "",
                "{ expr: z, eval_time: 5m, exp_samples: [{ labels: z, value: 10 }] }",
                0,
            ),
            (
                "group_eval_order: [a, b],",
                "{ expr: z, eval_time: 5m, exp_samples: [{ labels: z, value: 10 }] }",
                1,
            ),
        ] {
            assert_eq!(rerun(extra, case), failed, "{extra} {case}");
        }
    }
}
