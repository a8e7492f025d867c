//! Translates the bytes of a request to rows of samples: a known series costs a comparison, a new one is parsed and resolved.
//!
//! ```text
//! series ─▶ as expected? ─▶ known? ─▶ labels, checked ─▶ store ─▶ known from now on
//!               │ its samples  │                └▶ refused: counted, the others are accepted
//!               ▼              ▼
//!              rows of series with the same times
//! ```

use std::collections::BTreeMap;

use domain::series::Labels;
use store::series::{Metadata, SeriesId};

use super::known_series::KnownSeries;
use super::message::{self, MetricMetadata, OtherFields, Part, Points};
use super::protobuf::Malformed;
use super::refused::{Refusal, Refused};
use super::rows::{Rows, TooMuch};
use super::{metadata, version2};

/// Which of the two messages a body contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// `prometheus.WriteRequest`
    One,
    /// `io.prometheus.write.v2.Request`
    Two,
}

/// Resolves series to their ids.
pub(super) trait Resolve {
    fn resolve(&mut self, labels: &Labels) -> Result<SeriesId, Refusal>;
}

/// A request, translated for the store.
#[derive(Debug, Default)]
pub(super) struct Translated {
    pub(super) rows: Rows,
    /// TYPE and HELP by name.
    pub(super) metadata: BTreeMap<String, Metadata>,
    pub(super) refused: Refused,
    /// Number of exemplars and histograms, which are not stored.
    pub(super) exemplars: u64,
    pub(super) histograms: u64,
}

/// A request from which nothing is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Symbols(#[from] version2::BadSymbols),
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
}

/// Translates a whole request.
pub(super) fn translate(
    version: Version,
    request: &[u8],
    memory: &mut KnownSeries,
    resolver: &mut impl Resolve,
) -> Result<Translated, Unusable> {
    memory.begin();
    let mut translator = Translator {
        version,
        request,
        checked: false,
        memory,
        resolver,
        points: Points::default(),
        out: Translated::default(),
    };
    match version {
        Version::One => {
            for part in message::parts(request) {
                match part? {
                    Part::Series(series) => translator.series(series)?,
                    Part::Metadata(entry) => {
                        metadata::take(&mut translator.out.metadata, MetricMetadata::read(entry)?);
                    }
                }
            }
        }
        Version::Two => version2::walk(request, &mut translator)?,
    }
    translator.out.rows.finish();
    Ok(translator.out)
}

/// A translation in progress.
pub(super) struct Translator<'a, R> {
    version: Version,
    request: &'a [u8],
    /// Whether the whole request was checked and is well formed.
    checked: bool,
    memory: &'a mut KnownSeries,
    resolver: &'a mut R,
    pub(super) points: Points,
    pub(super) out: Translated,
}

impl<R: Resolve> Translator<'_, R> {
    #[inline]
    fn series(&mut self, series: &[u8]) -> Result<(), Unusable> {
        if let Some((index, length)) = self.memory.expected(series) {
            let other = self.points.read(&series[length..])?;
            if !other.labels {
                self.count(other);
                let id = self.memory.follow(index);
                return Ok(self.out.rows.push(id, &mut self.points)?);
            }
        }
        self.unexpected(series)
    }

    fn unexpected(&mut self, series: &[u8]) -> Result<(), Unusable> {
        let length = message::leading_labels(series)?;
        let other = self.points.read(&series[length..])?;
        self.count(other);
        if other.labels {
            return self.labels_after_samples(series);
        }
        self.labelled(&series[..length])
    }

    /// Adds the samples read last to the series with these labels, which are encoded as in version 1.
    pub(super) fn labelled(&mut self, labels: &[u8]) -> Result<(), Unusable> {
        if let Some(index) = self.memory.find(labels) {
            let id = self.memory.follow(index);
            return Ok(self.out.rows.push(id, &mut self.points)?);
        }
        let Some(id) = self.resolve(labels)? else {
            return Ok(());
        };
        if let Some(index) = self.memory.add(labels, id) {
            self.memory.follow(index);
        }
        Ok(self.out.rows.push(id, &mut self.points)?)
    }

    /// Adds the samples read last if `labels` are those of the expected series.
    #[inline]
    pub(super) fn take_expected(&mut self, labels: &[u8]) -> Result<bool, Unusable> {
        match self.memory.expected(labels) {
            Some((index, length)) if length == labels.len() => {
                let id = self.memory.follow(index);
                self.out.rows.push(id, &mut self.points)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Handles a series with labels after its samples. No sender writes this, but it is valid.
    fn labels_after_samples(&mut self, series: &[u8]) -> Result<(), Unusable> {
        if let Some(id) = self.resolve(series)? {
            self.out.rows.push(id, &mut self.points)?;
        }
        Ok(())
    }

    /// Returns the id of an unknown series. `None` if it is refused, or if it has no samples and so needs no id.
    fn resolve(&mut self, series: &[u8]) -> Result<Option<SeriesId>, Unusable> {
        if self.points.values.is_empty() {
            message::labels(series).try_for_each(|label| label.map(|_| ()))?;
            return Ok(None);
        }
        if !self.checked {
            match self.version {
                Version::One => message::check(self.request)?,
                Version::Two => version2::check(self.request)?,
            }
            self.checked = true;
        }
        let samples = self.points.values.len() as u64;
        let labels = match named(series)? {
            Ok(labels) => labels,
            Err(problem) => {
                self.out.refused.labels(problem, samples);
                return Ok(None);
            }
        };
        match self.resolver.resolve(&labels) {
            Ok(id) => Ok(Some(id)),
            Err(refusal) => {
                self.out.refused.limit(refusal, &labels, samples);
                Ok(None)
            }
        }
    }

    pub(super) fn count(&mut self, other: OtherFields) {
        self.out.exemplars += other.exemplars;
        self.out.histograms += other.histograms;
    }

    pub(super) fn refuse_labels(&mut self, problem: impl Into<String>) {
        self.out
            .refused
            .labels(problem.into(), self.points.values.len() as u64);
    }
}

/// Returns the labels of a series, or why they are invalid.
fn named(series: &[u8]) -> Result<Result<Labels, String>, Malformed> {
    let mut pairs = Vec::new();
    for pair in message::labels(series) {
        let (name, value) = pair?;
        let text = (std::str::from_utf8(name), std::str::from_utf8(value));
        let (Ok(name), Ok(value)) = text else {
            return Ok(Err(format!(
                "label {:?} is not UTF-8",
                String::from_utf8_lossy(&name[..name.len().min(80)])
            )));
        };
        pairs.push((name, value));
    }
    Ok(Labels::new(pairs)
        .map_err(|error| error.to_string())
        .and_then(|labels| {
            if labels.metric_name().is_none() {
                return Err(format!("{labels} has no __name__"));
            }
            Ok(labels)
        }))
}
