//! What an agent's indices mean on this connection: (segment, index) → series.
//!
//! A name that cannot be used spoils its own row, never the batch: one label flood must not cost the node its temperatures.

use std::collections::BTreeMap;
use std::fmt;

use domain::ident::NodeName;
use domain::series::{Frame, Labels};
use store::series::{SeriesId, SeriesLimit};
use wire::proto::Definitions;

/// Series one agent may define in a segment: 16 GPUs with every metric, links and processes need some 3,000.
pub(super) const SERIES_MAX: usize = 20_000;
/// Segments a connection keeps names for: live, backfill, and some older ones. Past this the one not used longest goes; the
/// agent defines a segment's names again before it goes on with it.
const SEGMENTS_MAX: usize = 8;
/// The longest name of a segment.
const SEGMENT_BYTES_MAX: usize = 128;

/// Names by segment, the most recently used last.
#[derive(Default)]
pub(super) struct Dictionaries(Vec<(String, Vec<Name>)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Undefined,
    Refused(Reason),
    Known(SeriesId),
}

/// Why a series is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// Labels that cannot name a series.
    Labels,
    /// More than [`SERIES_MAX`].
    AgentLimit,
    /// The store takes no more.
    StoreLimit,
}

impl Reason {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Labels => "series_labels",
            Self::AgentLimit => "series_agent_limit",
            Self::StoreLimit => "series_store_limit",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Labels => f.write_str("their labels cannot name a series"),
            Self::AgentLimit => write!(
                f,
                "an agent may define {SERIES_MAX} series; look for a label with too many values"
            ),
            Self::StoreLimit => {
                f.write_str("the store has as many series as it may; look for a label with too many values")
            }
        }
    }
}

impl Dictionaries {
    /// Takes names; says which were refused, by reason.
    pub(super) fn define(
        &mut self,
        definitions: &Definitions,
        node: &NodeName,
        resolve: impl Fn(&Labels) -> Result<SeriesId, SeriesLimit>,
    ) -> BTreeMap<Reason, u64> {
        let mut refused = BTreeMap::new();
        let Some(names) = self.segment_to_define(&definitions.segment) else {
            refused.insert(Reason::Labels, definitions.series.len() as u64);
            return refused;
        };
        let first = definitions.first as usize;
        for (index, series) in (first..).zip(&definitions.series) {
            let name = match wire::labels::decode(series, node.as_str()) {
                _ if index >= SERIES_MAX => Name::Refused(Reason::AgentLimit),
                Err(_) => Name::Refused(Reason::Labels),
                Ok(labels) if labels.metric_name().is_none() => Name::Refused(Reason::Labels),
                Ok(labels) => resolve(&labels).map_or(Name::Refused(Reason::StoreLimit), Name::Known),
            };
            if let Name::Refused(reason) = name {
                *refused.entry(reason).or_default() += 1;
            }
            if index < SERIES_MAX {
                if names.len() <= index {
                    names.resize(index + 1, Name::Undefined);
                }
                names[index] = name;
            }
        }
        refused
    }

    /// Puts series in the place of indices. Rows of refused series are left out; their samples are counted.
    ///
    /// # Errors
    /// When the batch names series that were never defined, or nothing of it is left.
    pub(super) fn translate(
        &mut self,
        segment: &str,
        frames: Vec<Frame>,
    ) -> Result<(Vec<Frame<SeriesId>>, u64), String> {
        let names = self
            .used(segment)
            .ok_or_else(|| format!("no series of segment {segment:?} are defined"))?;
        let (mut kept, mut dropped, mut last) = (Vec::with_capacity(frames.len()), 0, Reason::Labels);
        for frame in frames {
            let rows: Vec<Name> = frame.series.iter().map(|index| lookup(names, *index)).collect();
            if let Some(undefined) = rows.iter().position(|name| *name == Name::Undefined) {
                let index = frame.series[undefined];
                return Err(format!("series {index} of segment {segment:?} is not defined"));
            }
            let mut refused = rows.iter().filter_map(|name| match name {
                Name::Refused(reason) => Some(*reason),
                _ => None,
            });
            dropped += refused.clone().count() as u64 * frame.times_ms.len() as u64;
            last = refused.next_back().unwrap_or(last);
            kept.extend(known_rows(frame, &rows));
        }
        if kept.is_empty() && dropped > 0 {
            Err(format!("none of its series is taken: {last}"))
        } else {
            Ok((kept, dropped))
        }
    }

    fn segment_to_define(&mut self, segment: &str) -> Option<&mut Vec<Name>> {
        if segment.is_empty() || segment.len() > SEGMENT_BYTES_MAX {
            return None;
        }
        if self.used(segment).is_none() {
            if self.0.len() >= SEGMENTS_MAX {
                self.0.remove(0);
            }
            self.0.push((segment.to_owned(), Vec::new()));
        }
        self.0.last_mut().map(|(_, names)| names)
    }

    /// Finds a segment and makes it the most recently used.
    fn used(&mut self, segment: &str) -> Option<&Vec<Name>> {
        let at = self.0.iter().position(|(name, _)| name == segment)?;
        self.0[at..].rotate_left(1);
        self.0.last().map(|(_, names)| names)
    }
}

/// The frame with the known of its rows; none when it has none of those.
fn known_rows(frame: Frame, rows: &[Name]) -> Option<Frame<SeriesId>> {
    let id = |name: &Name| match name {
        Name::Known(id) => Some(*id),
        _ => None,
    };
    let series: Vec<SeriesId> = rows.iter().filter_map(id).collect();
    let values = if series.len() == rows.len() {
        frame.values
    } else {
        let known = (0..rows.len()).filter(|row| id(&rows[*row]).is_some());
        known.flat_map(|row| frame.row(row)).copied().collect()
    };
    (!series.is_empty()).then_some(Frame {
        series,
        times_ms: frame.times_ms,
        values,
    })
}

/// Indices past the limit were refused when they were defined.
fn lookup(names: &[Name], index: u32) -> Name {
    let index = index as usize;
    let missing = if index >= SERIES_MAX {
        Name::Refused(Reason::AgentLimit)
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
        names.define(&definitions, &node(), |labels| {
            if labels.metric_name() == Some("full") {
                Err(SeriesLimit { series_max: 1 })
            } else {
                Ok(SeriesId(labels.metric_name().map_or(0, str::len) as u32))
            }
        })
    }

    fn frame(series: &[u32]) -> Vec<Frame> {
        vec![Frame {
            series: series.to_vec(),
            times_ms: vec![1_000],
            values: series.iter().map(|s| f64::from(*s)).collect(),
        }]
    }

    #[test]
    fn a_refused_name_spoils_its_own_row_only() {
        let mut names = Dictionaries::default();
        let refused = define(&mut names, "s", 0, &["ab", "1bad", "full"]);
        assert_eq!(
            refused,
            BTreeMap::from([(Reason::Labels, 1), (Reason::StoreLimit, 1)])
        );
        let (frames, dropped) = names.translate("s", frame(&[0, 1, 2])).expect("a row is left");
        assert_eq!(
            (frames[0].series.as_slice(), frames[0].values.as_slice(), dropped),
            (&[SeriesId(2)][..], &[0.0][..], 2)
        );
        assert!(names.translate("s", frame(&[1, 2])).is_err());
    }

    #[test]
    fn what_was_never_defined_is_refused() {
        let mut names = Dictionaries::default();
        assert!(names.translate("s", frame(&[0])).is_err());
        define(&mut names, "s", 2, &["abc"]);
        assert!(names.translate("s", frame(&[1])).is_err());
        assert!(names.translate("s", frame(&[3])).is_err());
        assert!(names.translate("s", frame(&[2])).is_ok());
    }

    #[test]
    fn a_flood_is_cut_at_the_limit() {
        let mut names = Dictionaries::default();
        let refused = define(&mut names, "s", SERIES_MAX as u32 - 1, &["last", "over", "over2"]);
        assert_eq!(refused, BTreeMap::from([(Reason::AgentLimit, 2)]));
        let over = names
            .translate("s", frame(&[SERIES_MAX as u32]))
            .expect_err("nothing is left");
        assert!(over.contains("20000"), "{over}");
        assert!(
            names
                .translate("s", frame(&[SERIES_MAX as u32 - 1, SERIES_MAX as u32]))
                .is_ok()
        );
        // An index far away costs no memory.
        assert_eq!(
            define(&mut names, "t", u32::MAX - 1, &["far"]).get(&Reason::AgentLimit),
            Some(&1)
        );
    }

    #[test]
    fn the_segment_not_used_longest_goes() {
        let mut names = Dictionaries::default();
        for n in 0..SEGMENTS_MAX {
            define(&mut names, &n.to_string(), 0, &["ab"]);
        }
        assert!(names.translate("0", frame(&[0])).is_ok());
        define(&mut names, "new", 0, &["ab"]);
        assert!(names.translate("0", frame(&[0])).is_ok());
        assert!(names.translate("1", frame(&[0])).is_err());
    }
}
