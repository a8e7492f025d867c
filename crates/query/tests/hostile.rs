//! Hostile queries, and queries that a faulty program wrote: the engine rejects them with a message, within limits, and never crashes.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(
    clippy::print_stdout,
    reason = "what each query costs is what this test is read for"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use domain::series::{Budget, Labels, SelectError, Selection, Series, SeriesSet, SeriesSource};
use query::{EvalError, Params, ParseError, Value, parse};

/// Half of the stack of a blocking thread of the collector.
const STACK_BYTES: usize = 1 << 20;
const BRACKETS_MAX: usize = 64;
const OPERATORS_MAX: usize = 200;
/// Maximum samples and series of a query in these tests: fewer than the collector allows.
const BUDGET: (u64, u64) = (5_000_000, 1_000);
/// Maximum processor time of one query in an unoptimised build. The collector is about ten times as fast.
const QUERY_MS_MAX: u64 = 4_000;
/// Maximum memory of the whole test process: the parser's tables, and queries that the budget pays for.
const PEAK_MB_MAX: u64 = 400;
const MESSAGE_BYTES_MAX: usize = 1_000;

/// Series with one sample per second, for any selection.
struct Seconds {
    series: usize,
}

impl SeriesSource for Seconds {
    fn select(&self, selection: &Selection, budget: &Budget) -> Result<SeriesSet, SelectError> {
        let times: Arc<[i64]> = (0..600)
            .map(|n| n * 1_000)
            .filter(|t| *t <= selection.end_ms)
            .collect();
        budget.take(self.series as u64, (self.series * times.len()) as u64)?;
        let series = (0..self.series).map(|n| Series {
            labels: Labels::new([("__name__", "x".to_owned()), ("gpu", n.to_string())]).unwrap(),
            values: times.iter().map(|time| (*time + n as i64) as f64).collect(),
            times_ms: Arc::clone(&times),
        });
        Ok(SeriesSet {
            series: series.collect(),
            ..SeriesSet::default()
        })
    }
}

fn evaluate(text: &str, params: &Params, budget: &Budget) -> Result<Value, String> {
    let query = parse(text).map_err(|error| error.to_string())?;
    let output = query
        .evaluate(&Seconds { series: 3 }, params, budget)
        .map_err(|error| error.to_string())?;
    Ok(output.value)
}

/// Parses, plans, evaluates and drops a query on a small stack. An overflow would end the whole test process.
fn on_a_small_stack(text: String) -> Result<Value, String> {
    let work = move || {
        let budget = || Budget::new(BUDGET.0, BUDGET.1);
        evaluate(&text, &Params::instant(300_000), &budget())?;
        evaluate(&text, &Params::range(0, 60_000, 30_000), &budget())
    };
    thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(work)
        .unwrap()
        .join()
        .unwrap()
}

/// Each file is a query, in the folder `refused` or `answered`.
#[test]
fn every_kept_query_is_refused_or_answered_within_bounds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let (mut seen, mut wrong) = (0, Vec::new());
    for (verdict, must_fail) in [("refused", true), ("answered", false)] {
        let mut files: Vec<_> = fs::read_dir(folder.join(verdict))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        for file in files {
            let (text, started) = (fs::read_to_string(&file).unwrap(), cpu_ms());
            let result = on_a_small_stack(text);
            let (name, took) = (
                file.file_name().unwrap().display().to_string(),
                cpu_ms() - started,
            );
            println!("{took:>6} ms  {name:<50} {}", shown(&result));
            seen += 1;
            // A clear error is one short sentence; the query may be thousands of characters long.
            let is_told = result
                .as_ref()
                .err()
                .is_none_or(|error| !error.is_empty() && error.len() < MESSAGE_BYTES_MAX);
            if result.is_err() != must_fail || !is_told || took > QUERY_MS_MAX {
                wrong.push(format!("{name} must be {verdict}: {took} ms, {}", shown(&result)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 60, "only {seen} files in {}", folder.display());
    let peak = peak_mb();
    assert!(peak < PEAK_MB_MAX, "{peak} MB");
}

fn shown(result: &Result<Value, String>) -> String {
    match result {
        Ok(value) => format!("{value:?}").chars().take(100).collect(),
        Err(error) => error.chars().take(200).collect(),
    }
}

/// Returns the processor time of this process, which does not depend on other load of the machine.
fn cpu_ms() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // User and system time, in hundredths of a second.
    fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<u64>().unwrap() * 10)
        .sum()
}

/// Returns the peak memory of this process.
fn peak_mb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
}

#[test]
fn the_deepest_query_allowed_fits_a_small_stack() {
    let nested = |open: &str, close: &str, n: usize| format!("{}x{}", open.repeat(n), close.repeat(n));
    for text in [
        nested("sum(", ")", BRACKETS_MAX),
        nested("(", ")", BRACKETS_MAX),
        nested("abs(", ")", BRACKETS_MAX),
        nested("max_over_time(", "[1m:10s])", BRACKETS_MAX / 2),
        format!("{}x", "-".repeat(OPERATORS_MAX)),
        format!("x{}", " + x".repeat(OPERATORS_MAX)),
        format!("x{}", " or x".repeat(OPERATORS_MAX)),
        format!("x{}", " ^ 1".repeat(OPERATORS_MAX)),
        format!(
            "{}x{}{}",
            "abs(".repeat(BRACKETS_MAX),
            ")".repeat(BRACKETS_MAX),
            " + x".repeat(OPERATORS_MAX)
        ),
        format!("{}x{}", "abs(---".repeat(BRACKETS_MAX), ")".repeat(BRACKETS_MAX)),
        format!(
            "{}x{}",
            "abs(1 + 1 + 1 + ".repeat(BRACKETS_MAX),
            ")".repeat(BRACKETS_MAX)
        ),
    ] {
        let shown = text.chars().take(40).collect::<String>();
        assert!(on_a_small_stack(text).is_ok(), "{shown}");
    }
}

#[test]
fn deeper_and_longer_queries_are_refused_before_the_parser() {
    for text in [
        "sum(",
        "(",
        "-",
        "x + ",
        "x or ",
        "x ^ ",
        "{",
        "[",
        "max_over_time(x[",
        "a(b[c{",
    ] {
        let deep = text.repeat(3_000);
        let error = parse(&deep).unwrap_err();
        let is_bound = matches!(error, ParseError::TooComplex { .. } | ParseError::TooLong { .. });
        assert!(is_bound, "{text}: {error}");
    }
    assert!(matches!(
        parse(&"sum(".repeat(8_000)).unwrap_err(),
        ParseError::TooLong { length: 32_000, .. }
    ));
}

#[test]
fn a_regex_bomb_is_an_error() {
    let bomb = "(((a{100}){100}){100}){100}";
    let error = parse(&format!("x{{a=~{bomb:?}}}")).unwrap_err();
    assert!(
        error.to_string().contains("more than 1 MiB once compiled"),
        "{error}"
    );
    let replace = format!("label_replace(x, \"a\", \"b\", \"c\", {bomb:?})");
    let error = evaluate(&replace, &Params::instant(0), &Budget::unlimited()).unwrap_err();
    assert!(
        error.contains("in label_replace() would take more than 1 MiB once compiled"),
        "{error}"
    );
}

#[test]
fn giant_ranges_cost_no_more_than_their_data() {
    let at = Params::instant(600_000);
    for text in [
        "sum(count_over_time(x[900y]))",
        "sum(count_over_time(x[1h] offset -900y))",
        "x offset 900y",
        "x @ -1e10",
    ] {
        assert!(evaluate(text, &at, &Budget::unlimited()).is_ok(), "{text}");
    }
    for text in ["x[2000y]", "x offset 2000y", "x @ 1e17"] {
        assert!(parse(text).is_err(), "{text}");
    }
    let error = evaluate("count_over_time(x[900y:1ms])", &at, &Budget::unlimited()).unwrap_err();
    assert!(error.contains("a sub-query has"), "{error}");
    let error = evaluate("x", &Params::range(0, i64::MAX, 1), &Budget::unlimited()).unwrap_err();
    assert!(error.contains("out of range"), "{error}");
    let error = evaluate("x", &Params::range(0, 1_000_000_000, 1), &Budget::unlimited()).unwrap_err();
    assert!(error.contains("11,000 points"), "{error}");
}

#[test]
fn nested_subqueries_are_paid_for() {
    let text = "max_over_time(max_over_time(x[10m:1s])[10m:1s])";
    let error = evaluate(text, &Params::instant(600_000), &Budget::new(3_000, 100)).unwrap_err();
    assert!(error.contains("more than 3000 samples"), "{error}");
}

#[test]
fn values_that_become_labels_are_paid_for() {
    let range = Params::range(0, 599_000, 1_000);
    let error = evaluate("count_values(\"v\", x)", &range, &Budget::new(50_000, 100)).unwrap_err();
    assert!(error.contains("more than 50000 samples"), "{error}");
}

#[test]
fn a_cancelled_query_stops() {
    let budget = Budget::unlimited();
    budget.cancel_flag().store(true, Ordering::Relaxed);
    let query = parse("sum(x)").unwrap();
    let error = query
        .evaluate(&Seconds { series: 1 }, &Params::instant(0), &budget)
        .unwrap_err();
    assert!(matches!(error, EvalError::Budget(_)), "{error}");
}
