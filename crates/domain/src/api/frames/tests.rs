//! What is decoded is what was encoded; and no bytes make the decoder panic, or show a value with the labels of another series.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use proptest::prelude::*;

use super::*;
use crate::series::Labels;

const WATCH: u32 = 7;

fn rank(rank: u32, values: &[Option<f64>], not_finite: &[u32]) -> Column {
    let rank = rank.to_string();
    Column {
        labels: Labels::new([
            ("__name__", "train_loss"),
            ("rank", rank.as_str()),
            ("run", "llama"),
        ])
        .unwrap(),
        values: values.to_vec(),
        not_finite: not_finite.to_vec(),
        min: vec![],
        max: vec![],
    }
}

fn frame(reset: bool, times_ms: &[TimestampMs], series: Vec<Column>) -> Frame {
    Frame {
        reset,
        times_ms: times_ms.to_vec(),
        series,
    }
}

/// One value per rank at one time.
fn instant(at_ms: TimestampMs, values: &[(u32, f64)]) -> Frame {
    let column = |(n, value): &(u32, f64)| rank(*n, &[Some(*value)], &[]);
    frame(true, &[at_ms], values.iter().map(column).collect())
}

/// Encodes and decodes the frames in their order. Returns the messages.
fn check(frames: &[Frame]) -> Vec<Vec<u8>> {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let mut messages = Vec::new();
    for frame in frames {
        let message = encoder.encode(WATCH, frame);
        assert_eq!(watch_id(&message), Ok(WATCH));
        assert_eq!(decoder.decode(&message).as_ref(), Ok(frame));
        messages.push(message);
    }
    messages
}

#[test]
fn the_layout_is_the_documented_one() {
    let column = Column {
        labels: Labels::new([("a", "b")]).unwrap(),
        values: vec![Some(0.5)],
        not_finite: vec![],
        min: vec![],
        max: vec![],
    };
    let message = Encoder::default().encode(WATCH, &frame(true, &[1_000], vec![column]));
    let expected: Vec<u8> = [
        &[1, RESET | BEGINS | IN_ORDER | NARROW][..],
        &[7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..],
        &[1, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0, 0, 0][..],
        &[2, 0, 0, 0, 1, 0, 0, 0, b'a', 1, 0, 0, 0, b'b'][..],
        &[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0][..],
        &[1, 0, 0, 0, 0, 0, 0, 0x3f][..],
    ]
    .concat();
    assert_eq!(message, expected);
}

#[test]
fn values_that_are_missing_or_not_finite_stay_what_they_are() {
    let whole = vec![
        rank(0, &[Some(0.1), None, None], &[2]),
        rank(1, &[None, Some(-0.0), Some(f64::MAX)], &[]),
        rank(2, &[None, None, None], &[0, 1, 2]),
        rank(3, &[None, None, None], &[]),
    ];
    let narrow = vec![rank(0, &[Some(0.5), None], &[1]), rank(1, &[None, None], &[0])];
    let empty = frame(true, &[1_000], vec![]);
    let unlabelled = Column {
        labels: Labels::empty(),
        ..rank(0, &[Some(1.0)], &[])
    };
    check(&[
        frame(true, &[1_000, 2_000, 3_000], whole),
        frame(false, &[4_000, 5_000], narrow),
        empty.clone(),
        frame(true, &[2_000], vec![rank(0, &[None], &[0])]),
        empty,
        frame(true, &[], vec![]),
        frame(true, &[3_000], vec![unlabelled]),
    ]);
}

#[test]
fn f32_is_used_only_if_it_loses_nothing() {
    let is_narrow = |value: f64| check(&[instant(0, &[(0, value)])])[0][1] & NARROW != 0;
    for value in [0.0, -1.5, 16_777_216.0, f64::from(f32::MAX)] {
        assert!(is_narrow(value), "{value}");
    }
    for value in [0.1, 16_777_217.0, 1_767_225_600_123.0, f64::MAX, 5e-324] {
        assert!(!is_narrow(value), "{value}");
    }
}

#[test]
fn labels_are_sent_once_and_only_changed_values_are_sent() {
    let values: Vec<(u32, f64)> = (0..1_000).map(|n| (n, f64::from(n) + 0.1)).collect();
    let mut one_more = values.clone();
    one_more[500].1 = 7.0;
    one_more.push((1_000, 8.0));
    let messages = check(&[
        instant(1_000, &values),
        instant(2_000, &values),
        instant(3_000, &one_more),
        // Two series end.
        instant(4_000, &one_more[..999]),
        instant(5_000, &values),
    ]);
    let sizes: Vec<usize> = messages.iter().map(Vec::len).collect();
    assert!(sizes[0] > 30_000, "{sizes:?}");
    assert_eq!(sizes[1], 38, "nothing has changed");
    assert!(sizes[2..].iter().all(|size| *size < 200), "{sizes:?}");
}

#[test]
fn a_value_of_a_range_is_compared_with_the_one_before() {
    let appended = |at_ms, value| {
        let series = vec![rank(0, &[Some(value)], &[]), rank(1, &[Some(0.1)], &[])];
        frame(false, &[at_ms], series)
    };
    let messages = check(&[
        frame(
            true,
            &[1_000, 2_000],
            vec![
                rank(0, &[None, Some(3.0)], &[]),
                rank(1, &[Some(4.0), Some(0.1)], &[]),
            ],
        ),
        appended(3_000, 3.0),
        appended(4_000, 5.0),
    ]);
    assert_eq!(messages[1].len(), 38);
    assert!(messages[2][1] & CHANGED != 0);
}

#[test]
fn extremes_follow_the_values() {
    let whole = |n, value: f64| Column {
        min: vec![None, Some(value - 1.0)],
        max: vec![Some(value + 0.1), None],
        ..rank(n, &[Some(value), None], &[])
    };
    let appended = |max| Column {
        min: vec![Some(1.0)],
        max: vec![Some(max)],
        ..rank(0, &[Some(1.5)], &[])
    };
    let messages = check(&[
        frame(true, &[0, 5_000], vec![whole(0, 3.0), whole(1, 0.5)]),
        frame(false, &[10_000], vec![appended(2.0)]),
        frame(false, &[15_000], vec![appended(9.0)]),
        frame(
            false,
            &[20_000],
            vec![rank(0, &[Some(1.5)], &[]), rank(1, &[Some(0.1)], &[])],
        ),
    ]);
    let is_changed = messages.iter().map(|message| message[1] & CHANGED != 0);
    assert_eq!(is_changed.collect::<Vec<_>>(), [false, false, false, true]);
    for length in 0..messages[0].len() {
        assert!(
            Decoder::default().decode(&messages[0][..length]).is_err(),
            "{length}"
        );
    }
}

#[test]
fn a_dictionary_of_series_that_have_ended_begins_again() {
    let moments = (0..400).map(|n| instant(i64::from(n), &[(n, 0.1), (n + 1, 0.1)]));
    let messages = check(&moments.collect::<Vec<_>>());
    let begun = messages.iter().filter(|message| message[1] & BEGINS != 0);
    assert_eq!(begun.count(), 2);
}

#[test]
fn a_truncated_message_is_an_error_at_each_length() {
    let messages = check(&[
        frame(
            true,
            &[0, 1_000],
            vec![
                rank(0, &[Some(0.1), None], &[1]),
                rank(1, &[None, Some(0.5)], &[]),
            ],
        ),
        instant(2_000, &[(1, 0.1), (2, 0.7)]),
    ]);
    for length in 0..messages[0].len() {
        let mut decoder = Decoder::default();
        assert!(decoder.decode(&messages[0][..length]).is_err(), "{length}");
        assert_eq!(decoder.decode(&messages[1]), Err(DecodeError::Generation));
    }
    for length in 0..messages[1].len() {
        let mut decoder = Decoder::default();
        decoder.decode(&messages[0]).unwrap();
        assert!(decoder.decode(&messages[1][..length]).is_err(), "{length}");
    }
    let longer = [&messages[0][..], &[0][..]].concat();
    assert_eq!(Decoder::default().decode(&longer), Err(DecodeError::TooLong));
}

#[test]
fn counts_larger_than_the_message_are_an_error() {
    let message = check(&[instant(0, &[(0, 0.1)])]).remove(0);
    // The counts of the times, and, behind the only time, of the texts.
    for at in [14, 26] {
        let mut hostile = message.clone();
        hostile[at..at + 4].fill(0xff);
        assert_eq!(
            Decoder::default().decode(&hostile),
            Err(DecodeError::Truncated),
            "{at}"
        );
    }
    // The rows of the next message, which has no other series: the last count of an unchanged frame.
    let mut encoder = Encoder::default();
    let first = encoder.encode(WATCH, &instant(0, &[(0, 0.1)]));
    let mut hostile = encoder.encode(WATCH, &instant(1, &[(0, 0.1)]));
    let end = hostile.len();
    hostile[end - 4..].fill(0xff);
    let mut decoder = Decoder::default();
    decoder.decode(&first).unwrap();
    assert_eq!(decoder.decode(&hostile), Err(DecodeError::Invalid));
}

#[test]
fn other_versions_and_unknown_flags_are_errors() {
    let message = check(&[instant(0, &[(0, 0.1)])]).remove(0);
    let changed = |at: usize, byte: u8| {
        let mut changed = message.clone();
        changed[at] = byte;
        changed
    };
    assert_eq!(watch_id(&changed(0, 2)), Err(DecodeError::Version(2, message[1])));
    let flags = message[1] | 128;
    assert_eq!(
        Decoder::default().decode(&changed(1, flags)),
        Err(DecodeError::Version(1, flags))
    );
}

/// Regression guard: values must never appear with the labels of another dictionary.
#[test]
fn a_frame_of_another_dictionary_is_an_error_until_the_next_begins() {
    let mut encoder = Encoder::default();
    let first = encoder.encode(WATCH, &instant(0, &[(0, 0.1), (1, 0.2)]));
    let grown = encoder.encode(WATCH, &instant(1, &[(0, 0.1), (1, 0.2), (2, 0.3)]));
    let last = encoder.encode(WATCH, &instant(2, &[(0, 0.1), (1, 0.9), (2, 0.3)]));
    let decode = |messages: &[&Vec<u8>]| {
        let mut decoder = Decoder::default();
        let decoded = messages.iter().map(|message| decoder.decode(message));
        decoded.collect::<Vec<_>>()
    };
    assert!(decode(&[&first, &grown, &last]).iter().all(Result::is_ok));
    assert_eq!(
        decode(&[&last])[0],
        Err(DecodeError::Generation),
        "nothing was sent before"
    );
    let skipped = decode(&[&first, &last, &grown]);
    assert_eq!(skipped[1], Err(DecodeError::Generation), "rank 2 is unknown");
    assert_eq!(
        skipped[2],
        Err(DecodeError::Generation),
        "after an error, until a new dictionary"
    );
    // A watch that replaced the first one.
    let replaced = Encoder::default().encode(WATCH, &instant(3, &[(5, 0.5)]));
    let decoded = decode(&[&first, &last, &replaced]).remove(2).unwrap();
    assert_eq!(decoded, instant(3, &[(5, 0.5)]));
    // Other bytes in place of the generation.
    let mut other = grown.clone();
    other[6] ^= 1;
    assert_eq!(decode(&[&first, &other])[1], Err(DecodeError::Generation));
}

#[test]
fn series_and_texts_that_do_not_exist_are_errors() {
    let column = Column {
        labels: Labels::new([("a", "b")]).unwrap(),
        values: vec![Some(0.1)],
        not_finite: vec![],
        min: vec![],
        max: vec![],
    };
    let message = Encoder::default().encode(WATCH, &frame(true, &[0], vec![column]));
    // 14 bytes of header, 12 of times; then the texts, of which the second ends at 40, and the only series.
    for (at, byte, what) in [
        (34, 0xff, "a text that is not UTF-8"),
        (48, 2, "the third of two texts"),
        (56, 2, "two rows of one series"),
    ] {
        let mut hostile = message.clone();
        hostile[at] = byte;
        assert_eq!(
            Decoder::default().decode(&hostile),
            Err(DecodeError::Invalid),
            "{what}"
        );
    }
}

#[test]
fn labels_that_are_not_sorted_are_an_error() {
    let column = Column {
        labels: Labels::new([("a", "v"), ("b", "w")]).unwrap(),
        values: vec![Some(0.1)],
        not_finite: vec![],
        min: vec![],
        max: vec![],
    };
    let mut message = Encoder::default().encode(WATCH, &frame(true, &[0], vec![column]));
    assert!(Decoder::default().decode(&message).is_ok());
    // Each text follows its length.
    let place = |text: u8| {
        message
            .windows(5)
            .position(|five| five == [1, 0, 0, 0, text])
            .unwrap()
            + 4
    };
    let (a, b) = (place(b'a'), place(b'b'));
    message.swap(a, b);
    assert_eq!(Decoder::default().decode(&message), Err(DecodeError::Invalid));
}

fn value() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        Just(None),
        Just(Some(f64::NAN)),
        Just(Some(0.5)),
        Just(Some(0.1)),
        any::<f64>().prop_map(Some),
    ]
}

/// A frame with one time or several, in which each of some ranks may occur.
fn any_frame() -> impl Strategy<Value = Frame> {
    let rows = |times: usize| {
        let row = (any::<bool>(), proptest::collection::vec(value(), times));
        proptest::collection::vec(row, 0..8)
    };
    let frame = |rows: Vec<(bool, Vec<Option<f64>>)>| {
        let times = rows.first().map_or(1, |(_, row)| row.len());
        let mut series = Vec::new();
        for (n, (is_there, row)) in (0..).zip(rows) {
            let finite: Vec<_> = row
                .iter()
                .map(|value| value.filter(|value| value.is_finite()))
                .collect();
            let is_not_finite = |at: &u32| row[*at as usize].is_some_and(|value| !value.is_finite());
            let not_finite: Vec<u32> = (0..times as u32).filter(is_not_finite).collect();
            // A series without a value at the only time is left out.
            if is_there && (times > 1 || row[0].is_some()) {
                series.push(rank(n, &finite, &not_finite));
            }
        }
        Frame {
            reset: times > 1,
            times_ms: (0..times as i64).collect(),
            series,
        }
    };
    prop_oneof![Just(1_usize), 2_usize..5]
        .prop_flat_map(rows)
        .prop_map(frame)
}

/// Returns the columns by labels, with values as bits: a frame with one time is in the order of the dictionary, and zeros have signs.
fn in_order(frame: &Frame) -> Vec<(Labels, Vec<Option<u64>>, Vec<u32>)> {
    let column = |column: &Column| {
        let bits = column.values.iter().map(|value| value.map(f64::to_bits));
        (
            column.labels.clone(),
            bits.collect::<Vec<_>>(),
            column.not_finite.clone(),
        )
    };
    let mut columns: Vec<_> = frame.series.iter().map(column).collect();
    columns.sort();
    columns
}

proptest! {
    #[test]
    fn any_frames_are_decoded_as_they_were_encoded(frames in proptest::collection::vec(any_frame(), 1..8)) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for frame in frames {
            let decoded = decoder.decode(&encoder.encode(WATCH, &frame)).unwrap();
            prop_assert_eq!(decoded.reset, frame.reset);
            prop_assert_eq!(&decoded.times_ms, &frame.times_ms);
            prop_assert_eq!(in_order(&decoded), in_order(&frame));
        }
    }

    #[test]
    fn changed_bytes_never_panic(frame in any_frame(), changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4)) {
        let mut encoder = Encoder::default();
        let first = encoder.encode(WATCH, &instant(0, &[(0, 0.1), (1, 0.2)]));
        let mut message = encoder.encode(WATCH, &frame);
        for (at, byte) in changes {
            let at = at % message.len();
            message[at] = byte;
        }
        let mut decoder = Decoder::default();
        decoder.decode(&first).unwrap();
        let _any_result = decoder.decode(&message);
    }

    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _any_result = Decoder::default().decode(&[&[VERSION, BEGINS][..], &bytes[..]].concat());
    }
}
