//! The bytes of a request, and series prepared for many requests.
//!
//! ```text
//! WriteRequest  1: TimeSeries*      TimeSeries  1: Label* (encoded once per series)   2: Sample*
//! Sample        1: double value     2: int64 timestamp_ms
//! ```

use crate::Fleet;
use crate::fleet::{SeriesSignal, TICK_MS};

/// A series that is sent repeatedly.
pub(super) struct PreparedSeries {
    /// The encoded `Label` messages, with their tags.
    labels: Box<[u8]>,
    signal: SeriesSignal,
    start_ms: i64,
}

impl PreparedSeries {
    /// Creates a series of a fleet; `start_ms` is the time of tick 0.
    pub(super) fn new(fleet: Fleet, series: usize, start_ms: i64) -> Self {
        let (node, _, _) = fleet.place(series);
        Self {
            labels: encode_labels(&fleet.labels(series)),
            signal: fleet.signal(series),
            start_ms: fleet.time_ms(start_ms, node, 0),
        }
    }
}

/// Appends one `TimeSeries` with the samples of these ticks.
pub(super) fn put_series(
    out: &mut Vec<u8>,
    series: &PreparedSeries,
    ticks: impl ExactSizeIterator<Item = u64>,
) {
    /// Tag, length; tag and eight bytes; tag and six bytes (a time between 1971 and 2109).
    const SAMPLE_BYTES: usize = 2 + 9 + 7;
    let length = (series.labels.len() + SAMPLE_BYTES * ticks.len()) as u64;
    out.push(0x0a);
    put_varint(out, length);
    out.extend_from_slice(&series.labels);
    for tick in ticks {
        out.extend_from_slice(&[0x12, (SAMPLE_BYTES - 2) as u8, 0x09]);
        out.extend_from_slice(&series.signal.at(tick).to_le_bytes());
        out.push(0x10);
        put_varint(out, (series.start_ms + tick as i64 * TICK_MS) as u64);
    }
}

fn encode_labels(labels: &[(&str, String)]) -> Box<[u8]> {
    let mut out = Vec::new();
    for (name, value) in labels {
        let mut label = Vec::new();
        for (tag, text) in [(0x0a, *name), (0x12, value)] {
            label.push(tag);
            put_varint(&mut label, text.len() as u64);
            label.extend_from_slice(text.as_bytes());
        }
        out.push(0x0a);
        put_varint(&mut out, label.len() as u64);
        out.extend(label);
    }
    out.into()
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Names;

    const FLEET: Fleet = Fleet {
        nodes: 2,
        gpus: 1,
        metrics: 3,
        seed: 1,
        names: Names::Dcgm,
        runs: 1,
    };

    /// An independent reader, written from the proto file: returns (field, bytes or number) in order.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let field = match tag & 7 {
                0 => Field::Number(varint(&mut bytes)),
                1 => {
                    let (value, rest) = bytes.split_first_chunk::<8>().expect("eight bytes");
                    bytes = rest;
                    Field::Number(u64::from_le_bytes(*value))
                }
                _ => {
                    let length = varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Field::Bytes(value)
                }
            };
            found.push((tag >> 3, field));
        }
        found
    }

    #[derive(Debug, PartialEq)]
    enum Field<'a> {
        Number(u64),
        Bytes(&'a [u8]),
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = bytes.split_first().expect("a varint ends");
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }

    #[test]
    fn a_series_reads_back_as_the_proto_file_says() {
        let labels = FLEET.labels(4);
        let series = PreparedSeries {
            labels: encode_labels(&labels),
            signal: FLEET.signal(4),
            start_ms: 1_790_000_000_017,
        };
        let mut bytes = Vec::new();
        put_series(&mut bytes, &series, [5, 7].into_iter());
        let request = fields(&bytes);
        let [(1, Field::Bytes(inner))] = request.as_slice() else {
            panic!("one series, not {request:?}")
        };
        let inner = fields(inner);
        for ((name, value), (tag, field)) in labels.iter().zip(&inner) {
            let Field::Bytes(label) = field else {
                panic!("a label")
            };
            let expected = vec![
                (1, Field::Bytes(name.as_bytes())),
                (2, Field::Bytes(value.as_bytes())),
            ];
            assert_eq!((*tag, fields(label)), (1, expected));
        }
        for (tick, (tag, field)) in [5, 7].into_iter().zip(&inner[labels.len()..]) {
            let Field::Bytes(sample) = field else {
                panic!("a sample")
            };
            let time = 1_790_000_000_017 + tick * 1_000;
            let expected = vec![
                (1, Field::Number(series.signal.at(tick).to_bits())),
                (2, Field::Number(time)),
            ];
            assert_eq!((*tag, fields(sample)), (2, expected));
        }
        assert_eq!(inner.len(), labels.len() + 2);
    }
}
