//! Maps the indices that an agent uses on this connection: (segment, index) → series.
//!
//! An invalid label set affects its own row only, never the whole batch: a label with too many values must not cost the node its
//! temperatures.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use domain::ident::NodeName;
use domain::series::Labels;
use store::series::{SeriesId, SeriesLimit};
use wire::proto::Definitions;

use super::node_series::SERIES_MAX;
use crate::analysis::{Column, FedColumn};

/// The highest index of a series in a segment, plus one. [`NodeSeries`](super::node_series::NodeSeries) limits how many series the node may
/// have in all segments.
pub(super) const INDEX_MAX: usize = SERIES_MAX;
/// Segments for which a connection keeps names: live, backfill, and some older ones. When there are more, the least recently used one is
/// removed. The agent defines the names of a segment again before it continues with it.
const SEGMENTS_MAX: usize = 8;
/// Maximum length of a segment's name, in bytes.
const SEGMENT_BYTES_MAX: usize = 128;

/// Names by segment, the most recently used one last.
#[derive(Default)]
pub(super) struct Dictionaries(Vec<(String, Names)>);

/// The names of one segment.
#[derive(Default)]
struct Names {
    series: Vec<Name>,
    /// The columns of series that feed the analysers, by index.
    columns: HashMap<u32, Column>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Undefined,
    Refused(Reason),
    Known(SeriesId),
}

/// The series that a list of indices refers to.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) series: Vec<SeriesId>,
    /// The positions of the indices whose series are refused, in rising order, and the reason of the last one.
    pub(super) refused: Option<(Vec<usize>, Reason)>,
    /// The rows that feed the analysers.
    pub(super) fed: Vec<FedColumn>,
}

/// Why a series is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// Labels that cannot name a series.
    Labels,
    /// The node has more than [`SERIES_MAX`] series.
    NodeLimit,
    /// The store is at its limit of series.
    StoreLimit,
}

impl Reason {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Labels => "series_labels",
            Self::NodeLimit => "series_agent_limit",
            Self::StoreLimit => "series_store_limit",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Labels => f.write_str("their labels cannot name a series"),
            Self::NodeLimit => write!(
                f,
                "a node may have at most {SERIES_MAX} series at a time; look for a label with too many values"
            ),
            Self::StoreLimit => {
                f.write_str("the store is at its limit of series; look for a label with too many values")
            }
        }
    }
}

impl Dictionaries {
    /// Adds definitions. Returns the number of refused series by reason. `admit` decides whether the node may have a series.
    pub(super) fn define(
        &mut self,
        definitions: &Definitions,
        node: &NodeName,
        mut admit: impl FnMut(&Labels) -> bool,
        resolve: impl Fn(&Labels) -> Result<SeriesId, SeriesLimit>,
    ) -> BTreeMap<Reason, u64> {
        let (mut refused, mut columns) = (BTreeMap::new(), Vec::new());
        let Some(names) = self.segment_to_define(&definitions.segment) else {
            refused.insert(Reason::Labels, definitions.series.len() as u64);
            return refused;
        };
        let first = definitions.first as usize;
        for (index, series) in (first..).zip(&definitions.series) {
            let name = match wire::labels::decode(series, node.as_str()) {
                _ if index >= INDEX_MAX => Name::Refused(Reason::NodeLimit),
                Err(_) => Name::Refused(Reason::Labels),
                Ok(labels) if labels.metric_name().is_none() => Name::Refused(Reason::Labels),
                Ok(labels) if !admit(&labels) => Name::Refused(Reason::NodeLimit),
                Ok(labels) => {
                    columns.extend(Column::of(&labels).map(|column| (index, column)));
                    resolve(&labels).map_or(Name::Refused(Reason::StoreLimit), Name::Known)
                }
            };
            if let Name::Refused(reason) = name {
                *refused.entry(reason).or_default() += 1;
            }
            if index < INDEX_MAX {
                if names.series.len() <= index {
                    names.series.resize(index + 1, Name::Undefined);
                }
                names.series[index] = name;
            }
        }
        for (index, column) in columns {
            names.columns.insert(index as u32, column);
        }
        refused
    }

    /// Returns the series that the indices refer to.
    ///
    /// # Errors
    /// Returns an error if an index was never defined.
    pub(super) fn rows(&self, segment: &str, indices: &[u32]) -> Result<Rows, String> {
        let names = self.0.iter().find(|(name, _)| name == segment);
        let nothing = Names::default();
        let names = names.map_or(&nothing, |(_, names)| names);
        let mut rows = Rows::default();
        for (row, &index) in indices.iter().enumerate() {
            match lookup(&names.series, index) {
                Name::Known(id) => {
                    rows.series.push(id);
                    let column = names.columns.get(&index).cloned();
                    rows.fed.extend(column.map(|column| FedColumn { row, column }));
                }
                Name::Undefined => {
                    return Err(format!("series {index} of segment {segment:?} is not defined"));
                }
                Name::Refused(reason) => {
                    let (refused, last) = rows.refused.get_or_insert_with(|| (Vec::new(), reason));
                    refused.push(row);
                    *last = reason;
                }
            }
        }
        Ok(rows)
    }

    /// Marks a segment as recently used, so that other segments are removed before it.
    pub(super) fn note_use(&mut self, segment: &str) {
        self.used(segment);
    }

    fn segment_to_define(&mut self, segment: &str) -> Option<&mut Names> {
        if segment.is_empty() || segment.len() > SEGMENT_BYTES_MAX {
            return None;
        }
        if self.used(segment).is_none() {
            if self.0.len() >= SEGMENTS_MAX {
                self.0.remove(0);
            }
            self.0.push((segment.to_owned(), Names::default()));
        }
        self.0.last_mut().map(|(_, names)| names)
    }

    /// Finds a segment and makes it the most recently used one.
    fn used(&mut self, segment: &str) -> Option<&Names> {
        let at = self.0.iter().position(|(name, _)| name == segment)?;
        self.0[at..].rotate_left(1);
        self.0.last().map(|(_, names)| names)
    }
}

/// Returns the name at an index. Indices past the limit were refused when they were defined.
fn lookup(names: &[Name], index: u32) -> Name {
    let index = index as usize;
    let missing = if index >= INDEX_MAX {
        Name::Refused(Reason::NodeLimit)
    } else {
        Name::Undefined
    };
    names.get(index).copied().unwrap_or(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::proto::Series;

    fn node() -> NodeName {
        NodeName::new("n1").expect("a good name")
    }

    fn define(
        names: &mut Dictionaries,
        segment: &str,
        first: u32,
        metrics: &[&str],
    ) -> BTreeMap<Reason, u64> {
        let series = metrics
            .iter()
            .map(|name| Series {
                labels: vec!["__name__".into(), (*name).into()],
            })
            .collect();
        let definitions = Definitions {
            segment: segment.into(),
            first,
            series,
        };
        let admit = |labels: &Labels| labels.metric_name() != Some("beyond");
        names.define(&definitions, &node(), admit, |labels| {
            if labels.metric_name() == Some("full") {
                Err(SeriesLimit { series_max: 1 })
            } else {
                Ok(SeriesId(labels.metric_name().map_or(0, str::len) as u32))
            }
        })
    }

    #[test]
    fn a_refused_name_spoils_its_own_row_only() {
        let mut names = Dictionaries::default();
        let refused = define(&mut names, "s", 0, &["ab", "1bad", "beyond", "full"]);
        assert_eq!(
            refused,
            BTreeMap::from([
                (Reason::Labels, 1),
                (Reason::NodeLimit, 1),
                (Reason::StoreLimit, 1)
            ])
        );
        let rows = names.rows("s", &[0, 1, 2, 3]).expect("all are defined");
        assert_eq!(rows.series, [SeriesId(2)]);
        assert_eq!(rows.refused, Some((vec![1, 2, 3], Reason::StoreLimit)));
    }

    #[test]
    fn what_was_never_defined_is_refused() {
        let mut names = Dictionaries::default();
        assert!(names.rows("s", &[0]).is_err());
        define(&mut names, "s", 2, &["abc"]);
        assert!(names.rows("s", &[1]).is_err());
        assert!(names.rows("s", &[3]).is_err());
        assert!(names.rows("s", &[2]).is_ok());
    }

    #[test]
    fn a_flood_is_cut_at_the_limit() {
        let mut names = Dictionaries::default();
        let refused = define(&mut names, "s", INDEX_MAX as u32 - 1, &["last", "over", "over2"]);
        assert_eq!(refused, BTreeMap::from([(Reason::NodeLimit, 2)]));
        let last = INDEX_MAX as u32 - 1;
        let rows = names
            .rows("s", &[last, last + 1])
            .expect("all are defined or refused");
        assert_eq!(rows.series.len(), 1);
        let (refused, reason) = rows.refused.expect("one is over the limit");
        assert_eq!(refused, [1]);
        assert!(reason.to_string().contains("20000"), "{reason}");
        // A very high index does not allocate memory.
        assert_eq!(
            define(&mut names, "t", u32::MAX - 1, &["far"]).get(&Reason::NodeLimit),
            Some(&1)
        );
    }

    #[test]
    fn the_segment_not_used_longest_goes() {
        let mut names = Dictionaries::default();
        for n in 0..SEGMENTS_MAX {
            define(&mut names, &n.to_string(), 0, &["ab"]);
        }
        names.note_use("0");
        define(&mut names, "new", 0, &["ab"]);
        assert!(names.rows("0", &[0]).is_ok());
        assert!(names.rows("1", &[0]).is_err());
    }
}
