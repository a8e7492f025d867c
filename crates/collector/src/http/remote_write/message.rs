//! `prometheus.WriteRequest`, read in place: labels are not copied, and there is no object per series.
//!
//! ```text
//! WriteRequest   1  TimeSeries…    3  MetricMetadata…
//! TimeSeries     1  Label…         2  Sample…        3  Exemplar…   4  Histogram…     the last two are counted, not kept
//! Label          1  name           2  value
//! Sample         1  value (double) 2  time (int64, ms)
//! Metadata       1  type           2  name           4  help
//! ```
//! Senders write a series' labels first and its samples after them. So the labels are one range of bytes, the same in every request, and a
//! range that was seen before needs no parsing.

use super::protobuf::{Field, Fields, Malformed};

/// The tag of a label in a series, in the form that every sender writes.
const LABEL_TAG: u8 = 1 << 3 | 2;

/// A part of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Part<'a> {
    Series(&'a [u8]),
    Metadata(&'a [u8]),
}

/// Returns the parts of a request. Unknown fields are skipped.
#[inline]
pub(super) fn parts(request: &[u8]) -> impl Iterator<Item = Result<Part<'_>, Malformed>> {
    Fields::of(request).filter_map(|field| field.and_then(part).transpose())
}

#[inline]
fn part(field: Field<'_>) -> Result<Option<Part<'_>>, Malformed> {
    match field.number {
        1 => field.bytes().map(Part::Series).map(Some),
        3 => field.bytes().map(Part::Metadata).map(Some),
        _ => Ok(None),
    }
}

/// Returns how many bytes the labels at the beginning of a series take.
#[inline]
pub(super) fn leading_labels(series: &[u8]) -> Result<usize, Malformed> {
    let mut fields = Fields::of(series);
    let mut end = 0;
    while series.get(end) == Some(&LABEL_TAG) {
        fields.next().transpose()?;
        end = series.len() - fields.left();
    }
    Ok(end)
}

/// Returns name and value of each label of a series, wherever in the series it is.
pub(super) fn labels(series: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), Malformed>> {
    let labels = Fields::of(series).filter(|field| !matches!(field, Ok(other) if other.number != 1));
    labels.map(|label| pair(label?.bytes()?))
}

/// If a field occurs twice in a label, the last one counts, as protobuf specifies.
fn pair(label: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (mut name, mut value) = (&[][..], &[][..]);
    for field in Fields::of(label) {
        let field = field?;
        match field.number {
            1 => name = field.bytes()?,
            2 => value = field.bytes()?,
            _ => {}
        }
    }
    Ok((name, value))
}

/// The samples of one series. Its memory is reused for each series.
#[derive(Debug, Default)]
pub(super) struct Points {
    pub(super) times_ms: Vec<i64>,
    pub(super) values: Vec<f64>,
}

/// What else a series contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OtherFields {
    /// The series contains further labels.
    pub(super) labels: bool,
    pub(super) exemplars: u64,
    pub(super) histograms: u64,
}

impl Points {
    /// Reads what follows the leading labels of a series.
    #[inline]
    pub(super) fn read(&mut self, rest: &[u8]) -> Result<OtherFields, Malformed> {
        self.clear();
        let mut other = OtherFields::default();
        for field in Fields::of(rest) {
            let field = field?;
            match field.number {
                2 => self.push(field.bytes()?)?,
                1 => other.labels |= field.bytes().map(|_| true)?,
                3 => other.exemplars += field.bytes().map(|_| 1)?,
                4 => other.histograms += field.bytes().map(|_| 1)?,
                _ => {}
            }
        }
        Ok(other)
    }

    pub(super) fn clear(&mut self) {
        self.times_ms.clear();
        self.values.clear();
    }

    /// Reads one sample.
    #[inline]
    pub(super) fn push(&mut self, sample: &[u8]) -> Result<(), Malformed> {
        let (mut time_ms, mut bits) = (0, 0);
        for field in Fields::of(sample) {
            let field = field?;
            match field.number {
                1 => bits = field.fixed64()?,
                2 => time_ms = field.varint()? as i64,
                _ => {}
            }
        }
        self.times_ms.push(time_ms);
        self.values.push(f64::from_bits(bits));
        Ok(())
    }
}

/// TYPE and HELP of a metric, as encoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MetricMetadata<'a> {
    pub(super) kind: u64,
    pub(super) name: &'a [u8],
    pub(super) help: &'a [u8],
}

impl<'a> MetricMetadata<'a> {
    pub(super) fn read(entry: &'a [u8]) -> Result<Self, Malformed> {
        let mut out = Self::default();
        for field in Fields::of(entry) {
            let field = field?;
            match field.number {
                1 => out.kind = field.varint()?,
                2 => out.name = field.bytes()?,
                4 => out.help = field.bytes()?,
                _ => {}
            }
        }
        Ok(out)
    }
}

/// Parses a whole request. This happens before the first new series of a request is created, so that a request that is malformed later
/// leaves nothing behind.
pub(super) fn check(request: &[u8]) -> Result<(), Malformed> {
    let mut points = Points::default();
    for part in parts(request) {
        match part? {
            Part::Series(series) => {
                points.read(series)?;
                labels(series).try_for_each(|label| label.map(|_| ()))?;
            }
            Part::Metadata(entry) => drop(MetricMetadata::read(entry)?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::super::protobuf::put_bytes;
    use super::*;

    fn label(name: &str, value: &str) -> Vec<u8> {
        let (mut inner, mut out) = (vec![], vec![]);
        put_bytes(&mut inner, 1, name.as_bytes());
        put_bytes(&mut inner, 2, value.as_bytes());
        put_bytes(&mut out, 1, &inner);
        out
    }

    fn sample(time_ms: i64, value: f64) -> Vec<u8> {
        let (mut inner, mut out) = (vec![0x09], vec![]);
        inner.extend(value.to_bits().to_le_bytes());
        inner.push(0x10);
        super::super::protobuf::put_varint(&mut inner, time_ms as u64);
        put_bytes(&mut out, 2, &inner);
        out
    }

    fn pairs(series: &[u8]) -> Vec<(&[u8], &[u8])> {
        labels(series).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn labels_are_one_range_and_samples_follow() {
        let names = [label("__name__", "up"), label("job", "node")].concat();
        let series = [names.clone(), sample(-5, 1.5), sample(i64::MAX, 0.0)].concat();
        assert_eq!(leading_labels(&series), Ok(names.len()));
        assert_eq!(
            pairs(&series),
            [(&b"__name__"[..], &b"up"[..]), (b"job", b"node")]
        );
        let mut points = Points::default();
        assert_eq!(points.read(&series[names.len()..]), Ok(OtherFields::default()));
        assert_eq!(points.times_ms, [-5, i64::MAX]);
        assert_eq!(points.values, [1.5, 0.0]);
    }

    #[test]
    fn labels_in_odd_places_are_found() {
        let series = [label("a", "1"), sample(1, 1.0), label("b", "2"), sample(2, 2.0)].concat();
        let leading = leading_labels(&series).unwrap();
        assert_eq!(leading, label("a", "1").len());
        let mut points = Points::default();
        assert!(points.read(&series[leading..]).unwrap().labels);
        assert_eq!(points.times_ms, [1, 2]);
        assert_eq!(pairs(&series).len(), 2);
        // The same tag in a longer encoding than necessary.
        let long = [&[0x8a, 0x00][..], &label("a", "1")[1..]].concat();
        assert_eq!(leading_labels(&long), Ok(0));
        assert_eq!(pairs(&long), [(&b"a"[..], &b"1"[..])]);
    }

    #[test]
    fn missing_fields_are_zero_and_unknown_ones_are_skipped() {
        let mut points = Points::default();
        // An empty sample; a sample that also has a start time (field 3); an exemplar, a histogram, an unknown field.
        let rest = [
            &[0x12, 0x00][..],
            &[0x12, 4, 0x18, 9, 0x10, 7],
            &[0x1a, 0],
            &[0x22, 0],
            &[0x78, 1],
        ]
        .concat();
        let other = OtherFields {
            labels: false,
            exemplars: 1,
            histograms: 1,
        };
        assert_eq!(points.read(&rest), Ok(other));
        assert_eq!((points.times_ms, points.values), (vec![0, 7], vec![0.0, 0.0]));
        assert_eq!(pair(&[0x0a, 1, b'a', 0x0a, 1, b'b']), Ok((&b"b"[..], &b""[..])));
    }

    #[test]
    fn markers_keep_their_bits() {
        let mut points = Points::default();
        for bits in [0x7ff0_0000_0000_0002, 0x7ff8_0000_0000_0001, u64::MAX, 1 << 63] {
            points.read(&sample(1, f64::from_bits(bits))).unwrap();
            assert_eq!(points.values[0].to_bits(), bits);
        }
    }

    #[test]
    fn what_is_malformed_anywhere_spoils_the_request() {
        let series = |inner: &[u8]| {
            let mut out = vec![];
            put_bytes(&mut out, 1, inner);
            out
        };
        let metadata = |inner: &[u8]| {
            let mut out = vec![];
            put_bytes(&mut out, 3, inner);
            out
        };
        assert_eq!(
            check(&series(&[label("a", "1"), sample(1, 1.0)].concat())),
            Ok(())
        );
        for (what, request) in [
            ("a series that is a number", vec![0x08, 1]),
            ("a metadata that is a number", vec![0x18, 1]),
            ("a sample that is a number", series(&[0x10, 1])),
            ("a label that is a number", series(&[0x08, 1])),
            ("an exemplar that is a number", series(&[0x18, 1])),
            ("a histogram that is a number", series(&[0x20, 1])),
            ("a name that is a number", series(&[0x0a, 2, 0x08, 1])),
            ("a value that is a number", series(&[0x0a, 2, 0x10, 1])),
            ("a sample's value that is a varint", series(&[0x12, 2, 0x08, 1])),
            ("a sample's time that is bytes", series(&[0x12, 2, 0x12, 0])),
            ("a label that is cut", series(&[0x0a, 3, 0x0a, 5, b'x'])),
            ("a sample that is cut", series(&[0x12, 3, 0x09, 1, 2])),
            ("a kind that is bytes", metadata(&[0x0a, 0])),
            ("a metric's name that is a number", metadata(&[0x10, 1])),
            ("a help that is a number", metadata(&[0x20, 1])),
            ("trailing bytes", [series(&sample(1, 1.0)), vec![0xff]].concat()),
        ] {
            assert!(check(&request).is_err(), "{what}");
        }
    }
}
