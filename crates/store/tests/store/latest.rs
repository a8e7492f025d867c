//! Tests that a selection that needs only some samples gets the newest samples of what it would otherwise get.

use domain::series::{MatchOp, STALE, Selection};
use proptest::prelude::*;
use store::Store;

use crate::harness::{NOW_MS, Read, append, gpu, open, read, read_cached, selection};

/// A step before the reads.
#[derive(Debug, Clone)]
enum Step {
    /// Appends a sample to each of some series, `at_ms` after the start.
    Append {
        series: Vec<usize>,
        at_ms: i64,
        value: f64,
    },
    Seal,
    Restart,
}

const SERIES: usize = 5;

fn step() -> impl Strategy<Value = Step> {
    let series = proptest::sample::subsequence((0..SERIES).collect::<Vec<_>>(), 1..=SERIES);
    let value = prop_oneof![6 => (0..9_i32).prop_map(f64::from), 1 => Just(STALE)];
    let appended = (series, 0..40_i64, value).prop_map(|(series, at, value)| Step::Append {
        series,
        at_ms: at * 500,
        value,
    });
    prop_oneof![12 => appended, 2 => Just(Step::Seal), 1 => Just(Step::Restart)]
}

async fn done(folder: &std::path::Path, steps: Vec<Step>) -> Store {
    let mut store = open(folder).await;
    for step in steps {
        match step {
            Step::Append { series, at_ms, value } => {
                let names = series
                    .iter()
                    .map(|n| gpu("power", if n % 2 == 0 { "a" } else { "b" }, *n));
                let ids: Vec<_> = names
                    .map(|labels| store.series.resolve(&labels).unwrap())
                    .collect();
                let values = vec![value; ids.len()];
                let append = append(&store.series, &ids, &[NOW_MS + at_ms], &values);
                store.series.append(append, NOW_MS).await.unwrap();
            }
            Step::Seal => store.series.seal_now().await.unwrap(),
            Step::Restart => {
                store.close().await;
                store = open(folder).await;
            }
        }
    }
    store
}

/// Returns the newest sample of each series and step; steps are counted backwards from the end.
fn newest(series: Vec<Read>, end_ms: i64, step_ms: i64) -> Vec<Read> {
    let thinned = series.into_iter().map(|(labels, samples)| {
        let ends = |n: &usize| {
            let next = samples.get(n + 1);
            next.is_none_or(|next| (end_ms - next.0) / step_ms != (end_ms - samples[*n].0) / step_ms)
        };
        let kept = (0..samples.len()).filter(ends).map(|n| samples[n]).collect();
        (labels, kept)
    });
    thinned.collect()
}

async fn check(store: &Store, start_ms: i64, end_ms: i64, step_ms: i64) {
    let all = selection(
        &[("__name__", MatchOp::Equal, "power")],
        NOW_MS + start_ms,
        NOW_MS + end_ms,
    );
    let whole = read(&store.series, &all).await;
    let latest = Selection {
        latest: true,
        ..all.clone()
    };
    assert_eq!(
        read(&store.series, &latest).await,
        newest(whole.clone(), all.end_ms, i64::MAX)
    );
    let stepped = Selection {
        step_ms,
        ..all.clone()
    };
    let thinned = read(&store.series, &stepped).await;
    // More samples than needed are allowed, but at no other times.
    assert_eq!(
        newest(thinned.clone(), all.end_ms, step_ms),
        newest(whole.clone(), all.end_ms, step_ms)
    );
    let times = |(_, samples): &Read| samples.iter().map(|(time_ms, _)| *time_ms).collect::<Vec<_>>();
    for (thinned, whole) in thinned.iter().zip(&whole) {
        let all = times(whole);
        assert!(
            times(thinned).iter().all(|time_ms| all.contains(time_ms)),
            "{thinned:?} of {whole:?}"
        );
    }
    let rate = Selection {
        function: Some("rate".into()),
        ..stepped.clone()
    };
    assert_eq!(
        read(&store.series, &rate).await,
        whole,
        "a function looks at every sample"
    );
    // After one read, everything is known without the disk, whatever a selection needs of it.
    for selection in [all, latest, stepped, rate] {
        let known = read_cached(&store.series, &selection, u64::MAX);
        assert_eq!(
            known,
            Some(read(&store.series, &selection).await),
            "{selection:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_latest_is_the_last_of_all(
        steps in proptest::collection::vec(step(), 1..60),
        looks in proptest::collection::vec((0..20_000_i64, 0..20_000_i64, 1..8_000_i64), 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let store = done(folder.path(), steps).await;
            for (a, b, step_ms) in looks {
                check(&store, a.min(b), a.max(b), step_ms).await;
            }
            store.close().await;
        });
    }
}

#[tokio::test]
async fn a_query_for_a_billion_samples_fails_before_it_has_read_many() {
    use domain::series::{Budget, SelectError};
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let ids: Vec<_> = (0..8)
        .map(|n| store.series.resolve(&gpu("power", "a", n)).unwrap())
        .collect();
    for part in 0..200_i64 {
        let times: Vec<i64> = (0..20).map(|n| NOW_MS + part * 20 + n).collect();
        store
            .series
            .append(append(&store.series, &ids, &times, &[1.5; 160]), NOW_MS)
            .await
            .unwrap();
        store.series.seal_now().await.unwrap();
    }
    store.close().await;
    let store = open(folder.path()).await;
    let all = selection(&[("node", MatchOp::Equal, "a")], i64::MIN, i64::MAX);
    let budget = Budget::new(1_000, 100);
    let refused = store.series.prefetch(std::slice::from_ref(&all), &budget).await;
    assert!(matches!(refused, Err(SelectError::Budget(_))));
    assert!(budget.samples_spent() <= 1_000);
    let budget = Budget::new(33_000, 100);
    assert!(
        store
            .series
            .prefetch(std::slice::from_ref(&all), &budget)
            .await
            .is_ok()
    );
    assert!(budget.samples_spent() >= 32_000);
    budget
        .cancel_flag()
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let cancelled = store.series.prefetch(std::slice::from_ref(&all), &budget).await;
    assert!(matches!(cancelled, Err(SelectError::Budget(_))));
    store.close().await;
}
