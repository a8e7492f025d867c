//! The duration of each test, read from the output of each test runner, and the table of the slowest.

use std::time::Duration;

/// Number of rows of the table.
const SHOWN: usize = 20;

/// One test and its wall-clock time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestTime {
    pub(crate) name: String,
    pub(crate) took: Duration,
}

impl TestTime {
    fn new(name: &str, seconds: &str) -> Option<Self> {
        let took = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
        Some(Self {
            name: name.to_owned(),
            took,
        })
    }
}

/// `cargo nextest`: `        PASS [   0.012s] ( 3/41) store series::head::tests::name`, one line per finished test.
pub(crate) fn nextest(log: &str) -> Vec<TestTime> {
    log.lines().filter_map(nextest_line).collect()
}

fn nextest_line(line: &str) -> Option<TestTime> {
    let (verdict, rest) = line.trim_start().split_once(" [")?;
    // A slow test also has `SLOW [> 60.000s]` lines while it runs; only its last line counts.
    if !matches!(
        verdict.trim(),
        "PASS" | "FAIL" | "TIMEOUT" | "LEAK" | "LEAK-FAIL" | "ABORT"
    ) {
        return None;
    }
    let (seconds, name) = rest.split_once("s] ")?;
    let name = match name.split_once(") ") {
        Some((count, name)) if count.starts_with('(') => name,
        _ => name,
    };
    TestTime::new(name.trim(), seconds.trim())
}

/// pytest with `--durations=0`: `1.25s call     crates/torch-probe/tests/test_x.py::name`. Set-up and tear-down have their own rows.
pub(crate) fn pytest(log: &str) -> Vec<TestTime> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let seconds = words.next()?.strip_suffix('s')?;
        let phase = words
            .next()
            .filter(|word| matches!(*word, "call" | "setup" | "teardown"))?;
        let test = words.collect::<Vec<_>>().join(" ");
        let test = test.rsplit_once('/').map_or(test.as_str(), |(_, file)| file);
        let name = if phase == "call" {
            test.to_owned()
        } else {
            format!("{test} ({phase})")
        };
        TestTime::new(&name, seconds)
    };
    log.lines().filter_map(line).collect()
}

/// Node's runner in TAP: `ok 1 - name`, then a block with `duration_ms: 1234.5`. Sub-tests are indented and belong to their test.
pub(crate) fn node(log: &str) -> Vec<TestTime> {
    let mut times = Vec::new();
    let mut current = None;
    for line in log.lines() {
        if let Some(rest) = line.strip_prefix("ok ").or_else(|| line.strip_prefix("not ok ")) {
            current = rest.split_once(" - ").map(|(_, name)| name);
        } else if let Some(milliseconds) = line.strip_prefix("  duration_ms: ")
            && let Some(name) = current.take()
            && let Ok(milliseconds) = milliseconds.parse::<f64>()
        {
            times.extend(TestTime::new(name, &(milliseconds / 1e3).to_string()));
        }
    }
    times
}

/// Renders the slowest tests, slowest first, one line per test.
pub(crate) fn table(mut times: Vec<TestTime>) -> String {
    times.sort_by_key(|time| std::cmp::Reverse(time.took));
    let lines = times.iter().take(SHOWN);
    lines
        .map(|time| format!("{:>8.1}  {}\n", time.took.as_secs_f64(), time.name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(times: Vec<TestTime>, expected: &[(&str, u64)]) {
        let found: Vec<_> = times
            .iter()
            .map(|time| (time.name.as_str(), time.took.as_millis() as u64))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn nextest_has_one_line_per_finished_test() {
        check(
            nextest(
                "   Compiling store v0.1.0\n        \
                 PASS [   0.012s] ( 3/41) store series::head::tests::name\n        \
                 SLOW [> 60.000s] lockstep::first_light runs::slow\n        \
                 FAIL [  61.500s] (  4/41) lockstep::first_light runs::slow\n        \
                 PASS [   1.000s] wire frame::tests::any\n",
            ),
            &[
                ("store series::head::tests::name", 12),
                ("lockstep::first_light runs::slow", 61_500),
                ("wire frame::tests::any", 1_000),
            ],
        );
    }

    #[test]
    fn pytest_names_what_was_slow_in_a_test() {
        check(
            pytest(
                "============ slowest durations ============\n\
                 12.50s call     crates/torch-probe/tests/test_rpc.py::test_a[fsdp two]\n\
                 0.30s setup    crates/torch-probe/tests/test_rpc.py::test_a\n\
                 3 passed in 13.00s\n",
            ),
            &[
                ("test_rpc.py::test_a[fsdp two]", 12_500),
                ("test_rpc.py::test_a (setup)", 300),
            ],
        );
    }

    #[test]
    fn node_counts_whole_tests() {
        check(
            node(
                "TAP version 13\n# Subtest: a\n    ok 1 - inner\n      ---\n      duration_ms: 5\n      ...\nok 1 - a\n  ---\n  duration_ms: 1500.5\n  ...\n\
                 not ok 2 - b\n  ---\n  duration_ms: 20\n",
            ),
            &[("a", 1_500), ("b", 20)],
        );
    }

    #[test]
    fn the_table_is_short_and_sorted() {
        let times = (0..50).map(|n| TestTime {
            name: format!("t{n}"),
            took: Duration::from_secs(n),
        });
        let table = table(times.collect());
        assert_eq!(table.lines().count(), SHOWN);
        assert!(table.starts_with("    49.0  t49\n"), "{table}");
    }
}
