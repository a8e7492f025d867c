//! From the bytes of a request to rows of samples: a remembered series costs a comparison, a new one is parsed and resolved.
//!
//! ```text
//! series ─▶ as expected? ─▶ remembered? ─▶ labels, checked ─▶ store ─▶ remembered from now on
//!               │ its samples     │                  └▶ refused: counted, the others are taken
//!               ▼                 ▼
//!              rows of series with the same times
//! ```

use std::collections::BTreeMap;

use domain::series::Labels;
use store::series::{Metadata, SeriesId};

use super::message::{self, Besides, MetricMetadata, Part, Points};
use super::protobuf::Malformed;
use super::refused::{Refusal, Refused};
use super::remembered::Remembered;
use super::rows::{Rows, Sorted, TooMuch};
use super::{metadata, version2};

/// Which of the two messages a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// `prometheus.WriteRequest`
    One,
    /// `io.prometheus.write.v2.Request`
    Two,
}

/// Who gives series their ids.
pub(super) trait Resolve {
    fn resolve(&mut self, labels: &Labels) -> Result<SeriesId, Refusal>;
}

/// A request, ready for the store.
#[derive(Debug, Default)]
pub(super) struct Translated {
    pub(super) sorted: Sorted,
    /// TYPE and HELP by name.
    pub(super) metadata: BTreeMap<String, Metadata>,
    pub(super) refused: Refused,
    /// Exemplars and histograms, which are not kept.
    pub(super) exemplars: u64,
    pub(super) histograms: u64,
}

/// A request of which nothing is taken.
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
    memory: &mut Remembered,
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
        rows: Rows::default(),
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
    translator.out.sorted = translator.rows.finish();
    Ok(translator.out)
}

/// A translation under way.
pub(super) struct Translator<'a, R> {
    version: Version,
    request: &'a [u8],
    /// Whether the whole request is known to be well formed.
    checked: bool,
    memory: &'a mut Remembered,
    resolver: &'a mut R,
    pub(super) points: Points,
    rows: Rows,
    pub(super) out: Translated,
}

impl<R: Resolve> Translator<'_, R> {
    #[inline]
    fn series(&mut self, series: &[u8]) -> Result<(), Unusable> {
        if let Some((place, length)) = self.memory.expected(series) {
            let besides = self.points.read(&series[length..])?;
            if !besides.labels {
                self.count(besides);
                let id = self.memory.follow(place);
                return Ok(self.rows.push(id, &mut self.points)?);
            }
        }
        self.unexpected(series)
    }

    fn unexpected(&mut self, series: &[u8]) -> Result<(), Unusable> {
        let length = message::leading_labels(series)?;
        let besides = self.points.read(&series[length..])?;
        self.count(besides);
        if besides.labels {
            return self.unremembered(series);
        }
        self.labelled(&series[..length])
    }

    /// Takes the samples that were read for the series of these labels, written as version 1 writes them.
    pub(super) fn labelled(&mut self, labels: &[u8]) -> Result<(), Unusable> {
        if let Some(place) = self.memory.find(labels) {
            let id = self.memory.follow(place);
            return Ok(self.rows.push(id, &mut self.points)?);
        }
        let Some(id) = self.resolve(labels)? else {
            return Ok(());
        };
        if let Some(place) = self.memory.add(labels, id) {
            self.memory.follow(place);
        }
        Ok(self.rows.push(id, &mut self.points)?)
    }

    /// Takes the samples that were read if `labels` are those of the series that is expected now.
    #[inline]
    pub(super) fn take_expected(&mut self, labels: &[u8]) -> Result<bool, Unusable> {
        match self.memory.expected(labels) {
            Some((place, length)) if length == labels.len() => {
                let id = self.memory.follow(place);
                self.rows.push(id, &mut self.points)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// A series with labels behind its samples: nobody sends that, but it means what it says.
    fn unremembered(&mut self, series: &[u8]) -> Result<(), Unusable> {
        if let Some(id) = self.resolve(series)? {
            self.rows.push(id, &mut self.points)?;
        }
        Ok(())
    }

    /// The id of a series that is not remembered; none when it is refused, or has no samples and thus needs none.
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

    pub(super) fn count(&mut self, besides: Besides) {
        self.out.exemplars += besides.exemplars;
        self.out.histograms += besides.histograms;
    }

    pub(super) fn refuse_labels(&mut self, problem: impl Into<String>) {
        self.out
            .refused
            .labels(problem.into(), self.points.values.len() as u64);
    }
}

/// The labels of a series, or why they cannot name one.
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
