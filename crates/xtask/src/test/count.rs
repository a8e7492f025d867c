//! Counts of tests, read from the output of each test runner.

use crate::test::table::Count;

/// `cargo nextest`: `Summary [   2.3s] 41 tests run: 39 passed (1 slow), 1 failed, 1 timed out, 3 skipped`.
pub(crate) fn nextest(log: &str) -> Option<Count> {
    let line = log
        .lines()
        .rev()
        .find(|line| line.contains("Summary [") && line.contains(" run: "))?;
    let counts = line.rsplit_once(" run: ")?.1;
    Some(words(counts))
}

/// `cargo test`, one line per binary: `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; …`.
pub(crate) fn libtest(log: &str) -> Option<Count> {
    let mut lines = log
        .lines()
        .filter_map(|line| line.trim().strip_prefix("test result: "))
        .peekable();
    lines.peek()?;
    Some(
        lines
            .map(|line| words(&line.replace("filtered out", "filtered")))
            .fold(Count::default(), Count::plus),
    )
}

/// pytest: `2 failed, 17 passed, 1 skipped in 3.21s`.
pub(crate) fn pytest(log: &str) -> Option<Count> {
    let line = log.lines().rev().find(|line| {
        line.contains(" in ")
            && (line.contains(" passed") || line.contains(" failed") || line.contains(" error"))
    })?;
    Some(words(
        line.trim_matches(|c| c == '=' || c == ' ').rsplit_once(" in ")?.0,
    ))
}

/// Clients of sim-nvml, one line per simulated machine: `h100x8: 412 values, 0 wrong`.
pub(crate) fn nvml_clients(log: &str) -> Option<Count> {
    let wrongs = log.lines().filter_map(|line| {
        line.rsplit_once(" values, ")?
            .1
            .strip_suffix(" wrong")?
            .parse::<u64>()
            .ok()
    });
    let count = wrongs.fold(Count::default(), |sum, wrong| {
        sum.plus(if wrong == 0 {
            Count::one_passed()
        } else {
            Count::failed(String::new())
        })
    });
    (count != Count::default()).then_some(count)
}

/// The checks for machines with GPUs, one line per part: `part 1: 140 agrees, 1 differs, 12 not available, 0 failed; 21 s; …`. Differences
/// do not count, because small work on simulated GPUs causes them.
pub(crate) fn confirm(log: &str) -> Option<Count> {
    let parts = log.lines().filter_map(|line| {
        let (_, counts) = line.strip_prefix("part ")?.split_once(": ")?;
        let mut counts = counts.split([',', ';']).map(str::trim);
        let mut next = |word: &str| counts.next()?.strip_suffix(word)?.trim().parse::<u64>().ok();
        let (agree, _differ, _not_available, failed) = (
            next("agrees")?,
            next("differs")?,
            next("not available")?,
            next("failed")?,
        );
        Some(Count {
            passed: agree,
            failed,
            ..Count::default()
        })
    });
    parts.reduce(Count::plus)
}

/// Node's own runner in TAP: `# pass 5`, `# fail 0`, `# cancelled 0`, `# skipped 0`.
pub(crate) fn node(log: &str) -> Option<Count> {
    let value = |name: &str| {
        let line = log
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("# ")?.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse::<u64>().ok())
    };
    let (passed, failed) = (value("pass ")?, value("fail ")?);
    let skipped = value("skipped ").unwrap_or(0) + value("todo ").unwrap_or(0);
    Some(Count {
        passed,
        failed: failed + value("cancelled ").unwrap_or(0),
        skipped,
        ..Count::default()
    })
}

/// Sums `NUMBER WORD` pairs by the meaning of the word.
fn words(text: &str) -> Count {
    let mut count = Count::default();
    for pair in text.split([',', ';', '.', '(']) {
        let mut parts = pair.split_whitespace();
        let Some(Ok(number)) = parts.next().map(str::parse::<u64>) else {
            continue;
        };
        match parts.next().unwrap_or_default() {
            "passed" | "xpassed" => count.passed += number,
            "failed" | "error" | "errors" | "timed" | "exec" => count.failed += number,
            "skipped" | "ignored" | "xfailed" => count.skipped += number,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(count: Option<Count>, expected: Option<(u64, u64, u64)>) {
        assert_eq!(
            count.map(|count| (count.passed, count.failed, count.skipped)),
            expected
        );
    }

    #[test]
    fn nextest_counts_time_outs_as_failures() {
        let summary = "     Summary [   2.345s] 41 tests run: 39 passed (1 slow), 1 failed, 1 timed out, 3 skipped\n   TIMEOUT x";
        check(nextest(summary), Some((39, 2, 3)));
        check(
            nextest("Summary [ 0.1s] 1 test run: 1 passed, 0 skipped"),
            Some((1, 0, 0)),
        );
        check(
            nextest("     Summary [   9.0s] 5/41 tests run: 4 passed, 1 failed, 0 skipped"),
            Some((4, 1, 0)),
        );
        check(nextest("error: could not compile"), None);
    }

    #[test]
    fn libtest_sums_its_binaries() {
        let log = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.1s\n\
                   test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.0s";
        check(libtest(log), Some((4, 2, 1)));
        check(libtest(""), None);
    }

    #[test]
    fn pytest_counts_errors_as_failures() {
        check(
            pytest("...\n2 failed, 17 passed, 1 skipped in 3.21s"),
            Some((17, 2, 1)),
        );
        check(pytest("===== 5 passed, 1 error in 0.5s ====="), Some((5, 1, 0)));
        check(pytest("ImportError"), None);
    }

    #[test]
    fn a_simulated_machine_is_one_test() {
        check(
            nvml_clients("h100x8: 412 values, 0 wrong\na100x8: 7: why\na100x8: 98 values, 2 wrong"),
            Some((1, 1, 0)),
        );
        check(nvml_clients("no library"), None);
    }

    #[test]
    fn a_row_that_failed_is_a_failed_check() {
        let log = "part 1 on h200x1\npart 1: 20 agrees, 3 differs, 4 not available, 0 failed; 21 s; results in x\n\
                   part 2: 5 agrees, 0 differs, 1 not available, 2 failed; 9 s; results in x\n";
        check(confirm(log), Some((25, 2, 0)));
        check(confirm("python3: No module named checks\n"), None);
    }

    #[test]
    fn node_counts_what_was_cancelled_as_failed() {
        check(
            node("TAP version 13\n# tests 4\n# pass 2\n# fail 1\n# cancelled 1\n# skipped 0\n# todo 0\n"),
            Some((2, 2, 0)),
        );
        check(node("SyntaxError"), None);
    }
}
