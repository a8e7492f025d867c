//! Compares the store with a map: after random appends, repeats, seals, merges, restarts and reads it returns what a `BTreeMap`
//! returns.

use std::collections::BTreeMap;

use domain::series::{ABSENT, Labels, MatchOp, STALE, is_absent};
use proptest::prelude::*;

use crate::harness::{NOW_MS, append, gpu, open, read, read_all, samples_in_chunks, selection};

const NODES: [&str; 2] = ["a", "b"];
const METRICS: [&str; 2] = ["power", "temperature"];
const GPUS: usize = 3;
const SESSIONS: usize = 2;

#[derive(Debug, Clone)]
enum Step {
    /// The session, if any; series by index; the first time; the interval of the times; values, series-major.
    Append {
        session: Option<usize>,
        series: Vec<usize>,
        start_ms: i64,
        tick_ms: i64,
        values: Vec<f64>,
    },
    /// A session sends a number again, with any content.
    Repeat {
        session: usize,
    },
    Seal,
    Compact,
    /// Drops the store without closing it, and opens it again.
    Restart,
    Read {
        node: &'static str,
        start_ms: i64,
        end_ms: i64,
    },
}

type Model = BTreeMap<Labels, BTreeMap<i64, u64>>;

fn name(number: usize) -> Labels {
    let (node, rest) = (number % NODES.len(), number / NODES.len());
    gpu(METRICS[rest % METRICS.len()], NODES[node], rest / METRICS.len())
}

fn value() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => (0..20_i32).prop_map(f64::from),
        1 => Just(STALE),
        1 => Just(f64::NAN),
        2 => Just(ABSENT),
        1 => any::<u64>().prop_map(f64::from_bits),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let count = NODES.len() * METRICS.len() * GPUS;
    let series = proptest::sample::subsequence((0..count).collect::<Vec<_>>(), 1..=count);
    let appended = (
        proptest::option::of(0..SESSIONS),
        series,
        0..120_i64,
        prop_oneof![Just(1_000_i64), Just(500), Just(7)],
        1..8_usize,
    )
        .prop_flat_map(|(session, series, start, tick_ms, ticks)| {
            let cells = series.len() * ticks;
            let values = proptest::collection::vec(value(), cells);
            (
                Just(session),
                Just(series),
                Just(NOW_MS + start * 500),
                Just(tick_ms),
                values,
            )
        })
        .prop_map(|(session, series, start_ms, tick_ms, values)| Step::Append {
            session,
            series,
            start_ms,
            tick_ms,
            values,
        });
    let reads = (proptest::sample::select(&NODES), 0..70_000_i64, 0..70_000_i64).prop_map(|(node, a, b)| {
        Step::Read {
            node,
            start_ms: NOW_MS + a.min(b),
            end_ms: NOW_MS + a.max(b),
        }
    });
    let repeats = (0..SESSIONS).prop_map(|session| Step::Repeat { session });
    prop_oneof![
        8 => appended,
        2 => repeats,
        2 => Just(Step::Seal),
        1 => Just(Step::Compact),
        1 => Just(Step::Restart),
        3 => reads,
    ]
}

fn remember(model: &mut Model, labels: Labels, times_ms: &[i64], values: &[f64]) {
    let samples = model.entry(labels).or_default();
    for (time_ms, value) in times_ms
        .iter()
        .zip(values)
        .filter(|(_, value)| !is_absent(**value))
    {
        samples.entry(*time_ms).or_insert(value.to_bits());
    }
}

fn expected(model: &Model, node: Option<&str>, start_ms: i64, end_ms: i64) -> Vec<(Labels, Vec<(i64, u64)>)> {
    let of_node = |labels: &&Labels| node.is_none_or(|node| labels.get("node") == Some(node));
    let series = model.iter().filter(|(labels, _)| of_node(labels));
    let within = series.map(|(labels, samples)| {
        let samples = samples
            .range(start_ms..=end_ms)
            .map(|(time_ms, bits)| (*time_ms, *bits));
        (labels.clone(), samples.collect::<Vec<_>>())
    });
    within.filter(|(_, samples)| !samples.is_empty()).collect()
}

async fn run(steps: Vec<Step>) {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).await;
    let mut model = Model::new();
    let mut seqs = [0_u64; SESSIONS];
    for step in steps {
        match step {
            Step::Append {
                session,
                series,
                start_ms,
                tick_ms,
                values,
            } => {
                let ids: Vec<_> = series
                    .iter()
                    .map(|n| store.series.resolve(&name(*n)).unwrap())
                    .collect();
                let ticks = values.len() / series.len();
                let times: Vec<i64> = (0..ticks as i64).map(|n| start_ms + n * tick_ms).collect();
                let before: usize = model.values().map(BTreeMap::len).sum();
                for (row, n) in series.iter().enumerate() {
                    remember(
                        &mut model,
                        name(*n),
                        &times,
                        &values[row * ticks..(row + 1) * ticks],
                    );
                }
                let new = model.values().map(BTreeMap::len).sum::<usize>() - before;
                let mut sent = append(&store.series, &ids, &times, &values);
                sent.source = session.map(|session| {
                    seqs[session] += 1;
                    (format!("session-{session}"), seqs[session])
                });
                let done = store.series.append(sent, NOW_MS).await.unwrap();
                assert!(!done.already_seen);
                // An append does not read sealed samples, so a repetition of them may count as new.
                assert!(done.accepted >= new as u64);
            }
            Step::Repeat { session } if seqs[session] > 0 => {
                let id = store.series.resolve(&name(0)).unwrap();
                let mut sent = append(&store.series, &[id], &[NOW_MS], &[-1.0]);
                sent.source = Some((format!("session-{session}"), seqs[session]));
                assert!(store.series.append(sent, NOW_MS).await.unwrap().already_seen);
            }
            Step::Repeat { .. } => {}
            Step::Seal => store.series.seal_now().await.unwrap(),
            Step::Compact => store.series.compact_now(NOW_MS).await.unwrap(),
            Step::Restart => {
                drop(store);
                store = open(folder.path()).await;
            }
            Step::Read {
                node,
                start_ms,
                end_ms,
            } => {
                let selection = selection(&[("node", MatchOp::Equal, node)], start_ms, end_ms);
                assert_eq!(
                    read(&store.series, &selection).await,
                    expected(&model, Some(node), start_ms, end_ms)
                );
            }
        }
    }
    assert_eq!(
        read_all(&store.series).await,
        expected(&model, None, i64::MIN, i64::MAX)
    );
    store.close().await;
    let store = open(folder.path()).await;
    store.series.seal_now().await.unwrap();
    store.series.compact_now(NOW_MS).await.unwrap();
    assert_eq!(
        read_all(&store.series).await,
        expected(&model, None, i64::MIN, i64::MAX)
    );
    let samples: usize = model.values().map(BTreeMap::len).sum();
    assert_eq!(
        samples_in_chunks(folder.path()).await,
        samples as i64,
        "each once, when all is merged"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_store_reads_like_a_map(steps in proptest::collection::vec(step(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
