//! Compares the translation with prost's parser on the same bytes: complete and damaged messages, known and unknown series.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use domain::series::{ABSENT, Labels, STALE};
use proptest::prelude::*;
use prost::Message;
use store::series::{SeriesId, Shape};

use super::known_series::KnownSeries;
use super::refused::Refusal;
use super::senders::{Ready, Senders};
use super::translate::{Resolve, Translated, Unusable, Version, translate};

/// `prometheus.WriteRequest`, with bytes for strings: the parser does not check whether they are UTF-8.
#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
    #[prost(message, repeated, tag = "3")]
    metadata: Vec<MetricMetadata>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    exemplars: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "4")]
    histograms: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Sample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    timestamp_ms: i64,
}

#[derive(Clone, PartialEq, Message)]
struct MetricMetadata {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    help: Vec<u8>,
}

/// `io.prometheus.write.v2.Request`.
#[derive(Clone, PartialEq, Message)]
struct Request2 {
    #[prost(bytes = "vec", repeated, tag = "4")]
    symbols: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "5")]
    timeseries: Vec<TimeSeries2>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries2 {
    #[prost(uint32, repeated, tag = "1")]
    labels_refs: Vec<u32>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    histograms: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "4")]
    exemplars: Vec<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    metadata: Option<Metadata2>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Metadata2 {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(uint32, tag = "3")]
    help_ref: u32,
}

/// The part of a store's index that assigns ids.
#[derive(Default)]
struct Index {
    ids: BTreeMap<Labels, SeriesId>,
    resolved: usize,
}

impl Resolve for Index {
    fn resolve(&mut self, labels: &Labels) -> Result<SeriesId, Refusal> {
        self.resolved += 1;
        let next = SeriesId(self.ids.len() as u32 + 1);
        Ok(*self.ids.entry(labels.clone()).or_insert(next))
    }
}

/// A collector's memory over several requests.
struct Receiver {
    memory: KnownSeries,
    index: Index,
}

/// A sample: its series, its time, and the bits of its value.
type Point = (String, i64, u64);

impl Receiver {
    fn new() -> Self {
        Self {
            memory: KnownSeries::new(1 << 20),
            index: Index::default(),
        }
    }

    fn receive(&mut self, version: Version, request: &[u8]) -> Result<Translated, Unusable> {
        translate(version, request, &mut self.memory, &mut self.index)
    }

    /// Returns all samples of a translation, sorted.
    fn points(&self, translated: &Translated) -> Vec<Point> {
        let names: BTreeMap<SeriesId, String> = self
            .index
            .ids
            .iter()
            .map(|(labels, id)| (*id, labels.to_string()))
            .collect();
        let mut points = Vec::new();
        for row in &translated.rows.rows {
            assert_eq!(row.values.len(), row.series.len() * row.times_ms.len());
            assert!(row.times_ms.is_sorted_by(|a, b| a < b));
            for (id, values) in row.series.iter().zip(row.values.chunks(row.times_ms.len())) {
                let samples = row.times_ms.iter().zip(values);
                points.extend(samples.map(|(time_ms, value)| (names[id].clone(), *time_ms, value.to_bits())));
            }
        }
        points.sort();
        points
    }
}

/// Returns the meaning of a request, computed in a simple way.
fn meaning(request: &WriteRequest) -> (Vec<Point>, u64) {
    let (mut points, mut refused) = (Vec::new(), 0);
    for series in request
        .timeseries
        .iter()
        .filter(|series| !series.samples.is_empty())
    {
        let Some(labels) = usable(&series.labels) else {
            refused += 1;
            continue;
        };
        let mut by_time = BTreeMap::new();
        for sample in &series.samples {
            let hole = sample.value.to_bits() == ABSENT.to_bits();
            let value = if hole { f64::NAN } else { sample.value };
            by_time.entry(sample.timestamp_ms).or_insert(value.to_bits());
        }
        points.extend(
            by_time
                .into_iter()
                .map(|(time_ms, bits)| (labels.to_string(), time_ms, bits)),
        );
    }
    points.sort();
    (points, refused)
}

fn usable(labels: &[Label]) -> Option<Labels> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let pairs: Option<Vec<_>> = labels
        .iter()
        .map(|label| Some((text(&label.name)?, text(&label.value)?)))
        .collect();
    Labels::new(pairs?)
        .ok()
        .filter(|labels| labels.metric_name().is_some())
}

fn label() -> impl Strategy<Value = Label> {
    let names = prop_oneof![
        6 => Just(b"__name__".to_vec()),
        6 => "[a-c]".prop_map(String::into_bytes),
        1 => Just(b"1bad".to_vec()),
        1 => Just(vec![]),
        1 => Just(vec![0xff]),
        1 => Just(vec![b'n'; 300]),
    ];
    let values = prop_oneof![
        8 => "[x-z]{1,2}".prop_map(String::into_bytes),
        1 => Just(vec![]),
        1 => Just(b"\xc3\x28".to_vec()),
        1 => Just(vec![b'v'; 3_000]),
    ];
    (names, values).prop_map(|(name, value)| Label { name, value })
}

fn sample() -> impl Strategy<Value = Sample> {
    let times = prop_oneof![4 => 0..4_i64, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => any::<i64>()];
    let values = prop_oneof![Just(0.0), Just(STALE), Just(ABSENT), any::<f64>()];
    (times, values).prop_map(|(timestamp_ms, value)| Sample { value, timestamp_ms })
}

fn series() -> impl Strategy<Value = TimeSeries> {
    let blobs = || prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3), 0..2);
    let name = Just(Label {
        name: b"__name__".to_vec(),
        value: b"m".to_vec(),
    });
    let labels = (prop::option::of(name), prop::collection::vec(label(), 0..3))
        .prop_map(|(name, others)| name.into_iter().chain(others).collect());
    (labels, prop::collection::vec(sample(), 0..4), blobs(), blobs()).prop_map(
        |(labels, samples, exemplars, histograms)| TimeSeries {
            labels,
            samples,
            exemplars,
            histograms,
        },
    )
}

fn request() -> impl Strategy<Value = WriteRequest> {
    let metadata = (0..9_i32, "[a-c1]{0,2}").prop_map(|(kind, name)| MetricMetadata {
        kind,
        name: name.into_bytes(),
        help: b"Help.".to_vec(),
    });
    (
        prop::collection::vec(series(), 0..8),
        prop::collection::vec(metadata, 0..3),
    )
        .prop_map(|(timeseries, metadata)| WriteRequest { timeseries, metadata })
}

/// Returns the same request in version 2.
fn as_version_2(request: &WriteRequest) -> Request2 {
    let mut symbols = vec![vec![]];
    let mut reference = |text: &[u8]| {
        let at = symbols.iter().position(|symbol: &Vec<u8>| symbol == text);
        at.unwrap_or_else(|| {
            symbols.push(text.to_vec());
            symbols.len() - 1
        }) as u32
    };
    let mut convert = |series: &TimeSeries| TimeSeries2 {
        labels_refs: series
            .labels
            .iter()
            .flat_map(|label| [reference(&label.name), reference(&label.value)])
            .collect(),
        samples: series.samples.clone(),
        histograms: series.histograms.clone(),
        exemplars: series.exemplars.clone(),
        metadata: None,
    };
    let timeseries = request.timeseries.iter().map(&mut convert).collect();
    Request2 { symbols, timeseries }
}

fn counts(request: &WriteRequest) -> (u64, u64) {
    let sum = |of: fn(&TimeSeries) -> usize| request.timeseries.iter().map(of).sum::<usize>() as u64;
    (sum(|s| s.exemplars.len()), sum(|s| s.histograms.len()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn both_versions_mean_what_prost_reads(requests in prop::collection::vec(request(), 1..4)) {
        let mut receiver = Receiver::new();
        // In the second round all series are known, and their order differs where the requests join.
        for request in requests.iter().chain(requests.iter().rev()) {
            // As it arrives: senders leave out zero values, and with them the sign of -0.
            let request = &WriteRequest::decode(request.encode_to_vec().as_slice()).expect("just encoded");
            let (expected, refused) = meaning(request);
            for (version, bytes) in [
                (Version::One, request.encode_to_vec()),
                (Version::Two, as_version_2(request).encode_to_vec()),
            ] {
                let translated = receiver.receive(version, &bytes).expect("well formed");
                prop_assert_eq!(&receiver.points(&translated), &expected);
                prop_assert_eq!(translated.refused.bad_labels.series, refused);
                prop_assert_eq!((translated.exemplars, translated.histograms), counts(request));
            }
        }
    }

    #[test]
    fn damaged_bytes_are_read_as_prost_reads_them(
        request in request(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in any::<prop::sample::Index>(),
        truncate in any::<bool>(),
    ) {
        let whole = request.encode_to_vec();
        let mut bytes = whole.clone();
        for (at, byte) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        if truncate {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        // Once with nothing known, and once with the series of the undamaged request.
        for known in [false, true] {
            let mut receiver = Receiver::new();
            if known {
                receiver.receive(Version::One, &whole).expect("well formed");
            }
            let before = receiver.index.ids.len();
            match (WriteRequest::decode(bytes.as_slice()), receiver.receive(Version::One, &bytes)) {
                (Ok(request), Ok(translated)) => {
                    prop_assert_eq!(receiver.points(&translated), meaning(&request).0);
                }
                (Err(_), Err(_)) => prop_assert_eq!(receiver.index.ids.len(), before, "nothing is left behind"),
                // Groups: prost skips them, no sender uses them, and we reject them.
                (Ok(_), Err(Unusable::Malformed(super::protobuf::Malformed::WireType(3)))) => {}
                (prost, ours) => prop_assert!(false, "{:?} and {:?}", prost, ours.map(|_| ())),
            }
            let _no_panic = receiver.receive(Version::Two, &bytes);
        }
    }

    #[test]
    fn rubbish_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        super::walk_for_fuzzing(&bytes);
        super::parse_for_fuzzing(&bytes);
    }
}

fn named(name: &str, time_ms: i64) -> TimeSeries {
    let label = Label {
        name: b"__name__".to_vec(),
        value: name.as_bytes().to_vec(),
    };
    TimeSeries {
        labels: vec![label],
        samples: vec![Sample {
            value: 1.0,
            timestamp_ms: time_ms,
        }],
        ..TimeSeries::default()
    }
}

fn written(timeseries: Vec<TimeSeries>) -> Vec<u8> {
    let metadata = vec![];
    WriteRequest { timeseries, metadata }.encode_to_vec()
}

#[test]
fn a_known_series_is_not_resolved_again_in_either_version() {
    let mut receiver = Receiver::new();
    let series = || vec![named("a", 1), named("b", 1), named("c", 2)];
    receiver
        .receive(Version::One, &written(series()))
        .expect("well formed");
    assert_eq!(receiver.index.resolved, 3);
    let request = WriteRequest::decode(written(series()).as_slice()).expect("well formed");
    receiver
        .receive(Version::One, &written(series()))
        .expect("well formed");
    receiver
        .receive(Version::Two, &as_version_2(&request).encode_to_vec())
        .expect("well formed");
    assert_eq!(receiver.index.resolved, 3);
}

#[test]
fn a_request_that_is_malformed_at_its_end_leaves_no_series_behind() {
    let mut receiver = Receiver::new();
    let request = [written(vec![named("a", 1)]), vec![0x0a, 9]].concat();
    assert!(receiver.receive(Version::One, &request).is_err());
    assert_eq!(receiver.index.ids.len(), 0);
}

#[test]
fn a_series_without_samples_is_not_made() {
    let mut receiver = Receiver::new();
    let empty = TimeSeries {
        samples: vec![],
        histograms: vec![vec![]],
        ..named("a", 1)
    };
    let translated = receiver
        .receive(Version::One, &written(vec![empty]))
        .expect("well formed");
    assert_eq!((translated.histograms, receiver.index.ids.len()), (1, 0));
}

#[test]
fn version_2_describes_metrics_and_refuses_bad_references() {
    let symbols = ["", "__name__", "up", "Whether it is up."].map(|text| text.as_bytes().to_vec());
    let series = |labels_refs: &[u32]| TimeSeries2 {
        labels_refs: labels_refs.to_vec(),
        samples: named("", 7).samples,
        metadata: Some(Metadata2 { kind: 2, help_ref: 3 }),
        ..TimeSeries2::default()
    };
    let request = Request2 {
        symbols: symbols.to_vec(),
        timeseries: vec![
            series(&[1, 2]),
            series(&[1]),
            series(&[1, 4]),
            series(&[1, u32::MAX]),
            series(&[]),
            series(&[1; 300]),
        ],
    };
    let mut receiver = Receiver::new();
    let translated = receiver
        .receive(Version::Two, &request.encode_to_vec())
        .expect("well formed");
    assert_eq!(
        receiver.points(&translated),
        [("up".to_owned(), 7, 1.0_f64.to_bits())]
    );
    assert_eq!(translated.refused.bad_labels.series, 5);
    let up = &translated.metadata["up"];
    assert_eq!(
        (up.kind.as_str(), up.help.as_str()),
        ("gauge", "Whether it is up.")
    );

    let bad_table = Request2 {
        symbols: vec![b"up".to_vec()],
        ..request
    };
    let refused = receiver.receive(Version::Two, &bad_table.encode_to_vec());
    assert!(matches!(refused, Err(Unusable::Symbols(_))));
}

#[test]
fn references_may_be_unpacked() {
    // Field 1 as two varints instead of one packed list.
    let mut inner = vec![0x08, 1, 0x08, 2];
    super::protobuf::put_bytes(&mut inner, 2, &[0x10, 5]);
    let mut request = Vec::new();
    for symbol in ["", "__name__", "up"] {
        super::protobuf::put_bytes(&mut request, 4, symbol.as_bytes());
    }
    super::protobuf::put_bytes(&mut request, 5, &inner);
    let mut receiver = Receiver::new();
    let translated = receiver.receive(Version::Two, &request).expect("well formed");
    assert_eq!(receiver.points(&translated), [("up".to_owned(), 5, 0)]);
}

/// Returns a request with these series, each with one sample at this time.
fn scrape(names: &[String], time_ms: i64) -> Vec<u8> {
    written(names.iter().map(|name| named(name, time_ms)).collect())
}

async fn store(folder: &std::path::Path) -> store::Store {
    store::Store::open(store::StoreConfig::new(folder))
        .await
        .expect("an empty folder")
}

fn ids(ready: &Ready) -> Vec<SeriesId> {
    let blocks = ready.appends.iter().flatten();
    blocks.flat_map(|block| block.shape.series()).copied().collect()
}

#[tokio::test]
async fn shapes_are_used_again_wherever_requests_are_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path()).await;
    let (senders, now) = (Senders::new(1_000), Instant::now());
    let sender = senders.of("t", now);
    let names: Vec<String> = (0..500).map(|n| format!("m{n}")).collect();
    let prepare = |range: std::ops::Range<usize>, time_ms| {
        let ready = sender.prepare(
            Version::One,
            &scrape(&names[range.clone()], time_ms),
            &store.series,
            now,
        );
        let ready = ready.expect("well formed");
        assert_eq!(ids(&ready).len(), range.len());
        ready
            .appends
            .into_iter()
            .flatten()
            .map(|block| block.shape)
            .collect::<Vec<_>>()
    };
    let first = prepare(0..300, 1);
    assert!(first.len() > 1, "cut into pieces when it is new");
    let shared =
        |a: &[Arc<Shape>], b: &[Arc<Shape>]| a.iter().filter(|a| b.iter().any(|b| Arc::ptr_eq(a, b))).count();
    let elsewhere = prepare(7..290, 2);
    assert!(
        shared(&first, &elsewhere) >= 3,
        "the pieces between the cuts are the same"
    );
    let again = prepare(0..300, 3);
    assert_eq!(again.len(), 1, "whole when it comes again");
    assert_eq!(shared(&again, &prepare(0..300, 4)), 1);
}

#[tokio::test]
async fn a_flood_from_one_sender_leaves_the_others_theirs() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path()).await;
    let (senders, now) = (Senders::new(10), Instant::now());
    let names = |prefix: &str, count: usize| (0..count).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
    let send = |token: &str, names: &[String]| {
        let sender = senders.of(token, now);
        let ready = sender.prepare(Version::One, &scrape(names, 1), &store.series, now);
        let ready = ready.expect("well formed");
        (ids(&ready).len(), ready.refused.over_sender_limit.series)
    };
    assert_eq!(send("flood", &names("a", 25)), (10, 15));
    assert_eq!(send("flood", &names("b", 5)), (0, 5));
    assert_eq!(send("flood", &names("a", 10)), (10, 0), "what it has stays good");
    assert_eq!(send("other", &names("c", 8)), (8, 0));
    assert_eq!(
        send("flood", &names("c", 8)),
        (8, 0),
        "what is there costs nothing"
    );
}

#[tokio::test]
async fn idle_senders_are_forgotten_but_their_series_stay_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path()).await;
    let (senders, now) = (Senders::new(10), Instant::now());
    let names: Vec<String> = (0..10).map(|n| format!("m{n}")).collect();
    let sender = senders.of("t", now);
    let send = |names: &[String]| {
        let ready = sender.prepare(Version::One, &scrape(names, 1), &store.series, now);
        ready.expect("well formed").refused.over_sender_limit.series
    };
    assert_eq!(send(&names), 0);
    assert!(senders.known_series_bytes() > 0);
    senders.forget_idle(now + std::time::Duration::from_secs(60));
    assert!(senders.known_series_bytes() > 0, "not idle yet");
    senders.forget_idle(now + std::time::Duration::from_secs(3_600));
    assert_eq!(senders.known_series_bytes(), 0);
    assert_eq!(send(&["new".to_owned()]), 1);
    assert_eq!(send(&names), 0, "known to the store");
}

#[tokio::test]
async fn of_a_repeated_series_in_a_request_the_first_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path()).await;
    let (senders, now) = (Senders::new(10), Instant::now());
    let mut series = vec![named("a", 1), named("b", 1), named("a", 1), named("a", 1)];
    series[3].samples[0].value = 9.0;
    let request = written(series);
    let ready = senders
        .of("t", now)
        .prepare(Version::One, &request, &store.series, now)
        .expect("well formed");
    assert_eq!(ids(&ready).len(), 2);
    assert_eq!((ready.repeats.duplicates, ready.repeats.conflicts), (1, 1));
}
