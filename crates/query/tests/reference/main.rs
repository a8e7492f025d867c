//! Compares the engine with a reference: random expressions over random series are evaluated a second time by code that is simple instead
//! of fast.
//!
//! ```text
//!  grow ─▶ Tree ─┬─ as text ─▶ query::parse ─▶ engine, over columns, all steps at once ─┐
//!                └─ as it is ─▶ reference: one step at a time, one series at a time ────┴─▶ equal?
//! ```
//! The two share no code: the reference walks the tree that the generator made, and does not use the parser's or the engine's tree.
//! Rounding differences up to 1e-9 are allowed. `grow` applies operators that can amplify them, such as `==` and `/`, only to operands that
//! are integers.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod data;
mod evaluate;
mod grow;
mod over;
mod tree;

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use query::{Params, Value};

use data::{Data, LOOKBACK_MS, STEP_MS, STEPS};
use evaluate::{Reference, Vector};
use tree::{Names, Tree};

/// Maximum difference of two equal numbers: relative, and absolute below 1.
const EPSILON: f64 = 1e-9;

/// Values by step and labels, or the error.
type Results = Result<BTreeMap<(i64, Names), f64>, String>;

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, rng_seed: seed(), ..ProptestConfig::default() })]

    #[test]
    fn the_engine_agrees_with_the_reference(tree in grow::tree(), data in data::data()) {
        check(&tree, &data)?;
    }

    #[test]
    fn aggregations_that_pick_series_pick_the_right_ones(ranked in grow::ranked(), data in data::data()) {
        check_ranked(&ranked, &data)?;
    }
}

/// Number of cases. `LOCKSTEP_REFERENCE_CASES` sets another number.
fn cases() -> u32 {
    let asked = std::env::var("LOCKSTEP_REFERENCE_CASES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(300)
}

/// A fixed seed: a change is tested with the same cases as the version before. `LOCKSTEP_REFERENCE_SEED` sets another seed.
fn seed() -> RngSeed {
    let asked = std::env::var("LOCKSTEP_REFERENCE_SEED").ok();
    RngSeed::Fixed(asked.and_then(|text| text.parse().ok()).unwrap_or(7))
}

// === the engine equals the reference ===

fn check(tree: &Tree, data: &Data) -> Result<(), TestCaseError> {
    check_over(tree, data, &range())?;
    for step in [0, STEPS / 2, STEPS - 1] {
        let params = Params {
            lookback_ms: LOOKBACK_MS,
            ..Params::instant(step * STEP_MS)
        };
        check_over(tree, data, &params)?;
    }
    Ok(())
}

fn check_over(tree: &Tree, data: &Data, params: &Params) -> Result<(), TestCaseError> {
    let (expected, found) = (
        expected(tree, data, params),
        engine(&tree.to_string(), data, params),
    );
    // The engine, like Prometheus, evaluates a sub-query also at steps between two windows, and may get an error there.
    let between_windows = if params.is_instant() { 2 } else { 1 };
    let agrees = match (&expected, &found) {
        (Ok(_), Err(_)) => tree.subqueries() >= between_windows,
        (Ok(expected), Ok(found)) => same(expected, found),
        (Err(_), found) => found.is_err(),
    };
    prop_assert!(
        agrees,
        "{tree}\n{params:?}\nreference {expected:?}\n   engine {found:?}"
    );
    Ok(())
}

fn same(a: &BTreeMap<(i64, Names), f64>, b: &BTreeMap<(i64, Names), f64>) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|((a_key, a), (b_key, b))| a_key == b_key && is_near(*a, *b))
}

fn is_near(a: f64, b: f64) -> bool {
    a == b
        || (a.is_nan() && b.is_nan())
        || (a - b).abs() <= EPSILON * a.abs().max(b.abs()).clamp(1.0, f64::MAX)
}

fn range() -> Params {
    Params {
        lookback_ms: LOOKBACK_MS,
        ..Params::range(0, (STEPS - 1) * STEP_MS, STEP_MS)
    }
}

fn steps(params: &Params) -> impl Iterator<Item = i64> {
    (params.start_ms..=params.end_ms).step_by(params.step_ms.max(1) as usize)
}

fn expected(tree: &Tree, data: &Data, params: &Params) -> Results {
    let reference = Reference {
        rows: &data.rows,
        start_ms: params.start_ms,
        end_ms: params.end_ms,
    };
    let mut all = BTreeMap::new();
    for time in steps(params) {
        for element in reference.result(tree, time)? {
            all.insert((time, element.labels), element.value);
        }
    }
    Ok(all)
}

fn engine(text: &str, data: &Data, params: &Params) -> Results {
    let query = query::parse(text)
        .map_err(|error| format!("{text}: {error}"))
        .unwrap();
    let output = query
        .evaluate(data, params, &domain::series::Budget::unlimited())
        .map_err(|error| error.to_string())?;
    let mut all = BTreeMap::new();
    let mut add = |labels: &domain::series::Labels, time: i64, value: f64| {
        let names = labels
            .iter()
            .map(|label| (label.name.to_string(), label.value.to_string()))
            .collect();
        assert!(
            all.insert((time, names), value).is_none(),
            "{text}: {labels} comes twice at {time}"
        );
    };
    match output.value {
        Value::Vector(samples) => samples
            .iter()
            .for_each(|(labels, time, value)| add(labels, *time, *value)),
        Value::Matrix(matrix) => {
            for series in &matrix {
                let samples = series.times.iter().zip(&series.values);
                samples.for_each(|(time, value)| add(&series.labels, *time, *value));
            }
        }
        Value::Scalar(time, value) => add(&domain::series::Labels::empty(), time, value),
        Value::String(..) => panic!("{text} is a string"),
    }
    Ok(all)
}

// === topk and similar ===

/// PromQL does not define which of equal values comes first. Therefore the test compares the selected values, and checks that each is a
/// value of its series.
fn check_ranked(ranked: &grow::Ranked, data: &Data) -> Result<(), TestCaseError> {
    let (params, text) = (range(), ranked.to_string());
    let (all, found) = (
        expected_elements(&ranked.inner, data, &params),
        engine(&text, data, &params),
    );
    let (all, found) = match (&all, &found) {
        (Ok(all), Ok(found)) => (all, found),
        // Equal labels are an error only if both are selected.
        (Ok(all), Err(_)) => {
            let is_told =
                ranked.inner.subqueries() > 0 || all.iter().any(|(_, elements)| has_twins(elements));
            prop_assert!(is_told, "{text}: {found:?}");
            return Ok(());
        }
        (Err(_), found) => {
            prop_assert!(found.is_err(), "{text}: {all:?} {found:?}");
            return Ok(());
        }
    };
    for (time, elements) in all {
        let picked: Vec<(&Names, f64)> = found
            .iter()
            .filter(|((at, _), _)| at == time)
            .map(|((_, names), value)| (names, *value))
            .collect();
        for (names, value) in &picked {
            let is_there = elements
                .iter()
                .any(|element| element.labels == **names && is_near(element.value, *value));
            prop_assert!(
                is_there,
                "{text} at {time}: {names:?} {value} is not among {elements:?}"
            );
        }
        for group in ranked.groups(elements) {
            let keys = |names: &Names| ranked.grouping.key(names);
            let of_group = picked
                .iter()
                .filter(|(names, _)| keys(names) == keys(&group[0].labels));
            // All NaNs count as equal. Their sign depends on the processor.
            let one_nan = |value: f64| if value.is_nan() { f64::NAN } else { value };
            let mut values: Vec<f64> = of_group.map(|(_, value)| one_nan(*value)).collect();
            values.sort_by(f64::total_cmp);
            let wanted = ranked.values(&group);
            let is_right = match &wanted {
                Some(wanted) => {
                    values.len() == wanted.len() && values.iter().zip(wanted).all(|(a, b)| is_near(*a, *b))
                }
                None => values.len() == ranked.limit().min(group.len()),
            };
            prop_assert!(
                is_right,
                "{text} at {time}: picked {values:?} of {group:?}, expected {wanted:?}"
            );
        }
    }
    Ok(())
}

fn expected_elements(tree: &Tree, data: &Data, params: &Params) -> Result<Vec<(i64, Vector)>, String> {
    let reference = Reference {
        rows: &data.rows,
        start_ms: params.start_ms,
        end_ms: params.end_ms,
    };
    steps(params)
        .map(|time| Ok((time, reference.nameless(tree, time)?)))
        .collect()
}

fn has_twins(elements: &Vector) -> bool {
    let is_twin = |n: usize| {
        elements[..n]
            .iter()
            .any(|other| other.labels == elements[n].labels)
    };
    (0..elements.len()).any(is_twin)
}
