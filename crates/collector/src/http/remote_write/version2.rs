//! `io.prometheus.write.v2.Request`: a table contains every string once, and labels refer to it.
//!
//! ```text
//! Request      4  symbol…          5  TimeSeries…        the first symbol is ""
//! TimeSeries   1  label references: name, value, …        2  Sample…   3  Histogram…   4  Exemplar…   5  Metadata
//! Metadata     1  type             3  help reference
//! ```
//! References are valid in one request only. So a series' labels are encoded as in version 1, and that form is cached: a sender that
//! changes the version stays known.

use domain::series::labels::{LABELS_MAX, METRIC_NAME, VALUE_BYTES_MAX};

use super::message::{OtherFields, Points};
use super::metadata;
use super::protobuf::{Field, Fields, Malformed, Value, put_bytes};
use super::translate::{Resolve, Translator, Unusable};

/// Maximum number of strings in one request: 16 MiB of references to them. Prometheus sends some thousand.
const SYMBOLS_MAX: usize = 1 << 20;
/// Bound of the labels of one request in their full form, in bytes: short references could expand to far more than was sent.
const WRITTEN_OUT_BYTES_MAX: usize = 256 << 20;

/// A table of strings that is invalid or too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadSymbols {
    #[error("the first symbol must be the empty string")]
    First,
    #[error("a request may have at most {SYMBOLS_MAX} symbols; send fewer series at once")]
    TooMany,
    #[error(
        "the labels of all series, written out, are more than {WRITTEN_OUT_BYTES_MAX} bytes; send fewer series at once"
    )]
    TooLong,
}

/// Parses a request and passes its series to the translator.
pub(super) fn walk<R: Resolve>(request: &[u8], translator: &mut Translator<'_, R>) -> Result<(), Unusable> {
    let symbols = symbols(request)?;
    let mut writer = Writer {
        described: vec![false; symbols.len()],
        symbols,
        ..Writer::default()
    };
    for field in Fields::of(request) {
        let field = field?;
        if field.number == 5 {
            writer.series(field.bytes()?, translator)?;
        }
    }
    Ok(())
}

fn symbols(request: &[u8]) -> Result<Vec<&[u8]>, Unusable> {
    let mut symbols = Vec::new();
    for field in Fields::of(request) {
        let field = field?;
        if field.number == 4 {
            if symbols.len() >= SYMBOLS_MAX {
                return Err(BadSymbols::TooMany.into());
            }
            symbols.push(field.bytes()?);
        }
    }
    if symbols.first().is_some_and(|first| !first.is_empty()) {
        return Err(BadSymbols::First.into());
    }
    Ok(symbols)
}

/// Encodes series as in version 1.
#[derive(Default)]
struct Writer<'a> {
    symbols: Vec<&'a [u8]>,
    /// For each symbol, whether the metric of this name was described already. Its other series have the same description.
    described: Vec<bool>,
    references: Vec<u32>,
    label: Vec<u8>,
    labels: Vec<u8>,
    written: usize,
}

#[derive(Default)]
struct Description {
    kind: u64,
    help: u32,
}

impl Writer<'_> {
    fn series<R: Resolve>(
        &mut self,
        series: &[u8],
        translator: &mut Translator<'_, R>,
    ) -> Result<(), Unusable> {
        let (other, description) = read(series, &mut self.references, &mut translator.points)?;
        translator.count(other);
        if translator.points.values.is_empty() {
            return Ok(());
        }
        let name = match self.write_out() {
            Ok(name) => name,
            Err(problem) => {
                translator.refuse_labels(problem);
                return Ok(());
            }
        };
        self.written += self.labels.len();
        if self.written > WRITTEN_OUT_BYTES_MAX {
            return Err(BadSymbols::TooLong.into());
        }
        if let (Some(name), Some(description)) = (name, description)
            && !std::mem::replace(&mut self.described[name], true)
        {
            let help = self
                .symbols
                .get(description.help as usize)
                .copied()
                .unwrap_or_default();
            metadata::note(
                &mut translator.out.metadata,
                self.symbols[name],
                description.kind,
                help,
            );
        }
        if translator.take_expected(&self.labels)? {
            return Ok(());
        }
        translator.labelled(&self.labels)
    }

    /// Replaces the references by the labels. Returns which symbol is the metric's name.
    fn write_out(&mut self) -> Result<Option<usize>, String> {
        self.labels.clear();
        let (pairs, rest) = self.references.as_chunks::<2>();
        if !rest.is_empty() {
            return Err("label references come in pairs".into());
        }
        // Labels with empty values do not count, so a few more than the limit may be there.
        if pairs.len() > 2 * LABELS_MAX {
            return Err(format!(
                "{} labels, more than the {LABELS_MAX} allowed",
                pairs.len()
            ));
        }
        let symbol = |at: u32| {
            let symbol = self.symbols.get(at as usize).copied();
            symbol.ok_or_else(|| {
                format!(
                    "label reference {at} is beyond the {} symbols",
                    self.symbols.len()
                )
            })
        };
        let mut metric = None;
        for [name, value] in pairs {
            let (name, text) = (symbol(*name)?, symbol(*value)?);
            if name.len().max(text.len()) > VALUE_BYTES_MAX {
                return Err(format!(
                    "a label is longer than the {VALUE_BYTES_MAX} bytes allowed"
                ));
            }
            if name == METRIC_NAME.as_bytes() {
                metric = Some(*value as usize);
            }
            self.label.clear();
            put_bytes(&mut self.label, 1, name);
            put_bytes(&mut self.label, 2, text);
            put_bytes(&mut self.labels, 1, &self.label);
        }
        Ok(metric)
    }
}

fn read(
    series: &[u8],
    references: &mut Vec<u32>,
    points: &mut Points,
) -> Result<(OtherFields, Option<Description>), Malformed> {
    references.clear();
    points.clear();
    let (mut other, mut description) = (OtherFields::default(), None);
    for field in Fields::of(series) {
        let field = field?;
        match field.number {
            1 => read_references(field, references)?,
            2 => points.push(field.bytes()?)?,
            3 => other.histograms += field.bytes().map(|_| 1)?,
            4 => other.exemplars += field.bytes().map(|_| 1)?,
            5 => description = Some(describe(field.bytes()?)?),
            _ => {}
        }
    }
    Ok((other, description))
}

/// Reads references: packed, as all senders write them, or one by one, as the format also allows. Numbers that cannot be references become
/// one that is beyond every table.
fn read_references(field: Field<'_>, references: &mut Vec<u32>) -> Result<(), Malformed> {
    let reference = |number| u32::try_from(number).unwrap_or(u32::MAX);
    if let Value::Varint(number) = field.value {
        references.push(reference(number));
        return Ok(());
    }
    for number in Fields::of(field.bytes()?).numbers() {
        references.push(reference(number?));
    }
    Ok(())
}

fn describe(metadata: &[u8]) -> Result<Description, Malformed> {
    let mut description = Description::default();
    for field in Fields::of(metadata) {
        let field = field?;
        match field.number {
            1 => description.kind = field.varint()?,
            3 => description.help = u32::try_from(field.varint()?).unwrap_or(u32::MAX),
            _ => {}
        }
    }
    Ok(description)
}

/// Parses a whole request, as [`super::message::check`] does.
pub(super) fn check(request: &[u8]) -> Result<(), Malformed> {
    let (mut references, mut points) = (Vec::new(), Points::default());
    for field in Fields::of(request) {
        let field = field?;
        if field.number == 5 {
            read(field.bytes()?, &mut references, &mut points)?;
        }
    }
    Ok(())
}
