//! Sets of time as intervals. All times are whole nanoseconds, so unions, differences and lengths are exact.

/// An interval in nanoseconds. The end is excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    /// First nanosecond.
    pub(super) start: i64,
    /// The nanosecond after the last.
    pub(super) end: i64,
}

impl Span {
    /// Returns the length in nanoseconds.
    pub(super) fn length(self) -> u64 {
        u64::try_from(self.end.saturating_sub(self.start)).unwrap_or(0)
    }
}

/// A set of time: intervals in order, none of them empty, with a gap between any two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SpanSet(Vec<Span>);

impl SpanSet {
    /// Returns the union of intervals in any order. Empty intervals are dropped.
    pub(super) fn of(mut spans: Vec<Span>) -> Self {
        spans.retain(|span| span.start < span.end);
        spans.sort_unstable();
        Self(joined(spans, 0))
    }

    /// Returns the intervals.
    pub(super) fn spans(&self) -> &[Span] {
        &self.0
    }

    /// Returns the intervals as a list to which others can be added.
    pub(super) fn into_spans(self) -> Vec<Span> {
        self.0
    }

    /// Returns the length of the set in nanoseconds.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|span| span.length()).sum()
    }

    /// Returns the smallest interval that contains the set; `None` if it is empty.
    pub(super) fn hull(&self) -> Option<Span> {
        let (first, last) = (self.0.first()?, self.0.last()?);
        Some(Span {
            start: first.start,
            end: last.end,
        })
    }

    /// Returns the part of the set inside an interval.
    pub(super) fn within(&self, window: Span) -> Self {
        let clip = |span: &Span| Span {
            start: span.start.max(window.start),
            end: span.end.min(window.end),
        };
        let clipped = self.0.iter().map(clip);
        Self(clipped.filter(|span| span.start < span.end).collect())
    }

    /// Returns the part of the set that is not in another.
    pub(super) fn minus(&self, other: &Self) -> Self {
        let mut rest = Vec::new();
        let mut first = 0;
        for span in &self.0 {
            while other.0.get(first).is_some_and(|cut| cut.end <= span.start) {
                first += 1;
            }
            let mut start = span.start;
            for cut in other.0.iter().skip(first) {
                if cut.start >= span.end {
                    break;
                }
                let end = cut.start;
                rest.push(Span { start, end });
                start = cut.end;
            }
            let end = span.end;
            rest.push(Span { start, end });
        }
        rest.retain(|span| span.start < span.end);
        Self(rest)
    }

    /// Returns the set without the gaps that are shorter than `gap`.
    pub(super) fn without_gaps(&self, gap: i64) -> Self {
        Self(joined(self.0.clone(), gap))
    }
}

/// Joins intervals in order that overlap or touch, or whose gap is shorter than `gap`.
fn joined(mut spans: Vec<Span>, gap: i64) -> Vec<Span> {
    spans.dedup_by(|next, kept| {
        let joins = next.start <= kept.end || next.start - kept.end < gap;
        if joins {
            kept.end = kept.end.max(next.end);
        }
        joins
    });
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(spans: &[(i64, i64)]) -> SpanSet {
        SpanSet::of(spans.iter().map(|&(start, end)| Span { start, end }).collect())
    }

    fn pairs(set: &SpanSet) -> Vec<(i64, i64)> {
        set.spans().iter().map(|span| (span.start, span.end)).collect()
    }

    #[test]
    fn a_union_has_no_overlaps_and_its_length_counts_no_time_twice() {
        let union = set(&[(8, 9), (0, 4), (2, 5), (5, 6), (7, 7), (3, 1)]);
        assert_eq!(pairs(&union), [(0, 6), (8, 9)]);
        assert_eq!(union.total(), 7);
        assert_eq!(union.hull(), Some(Span { start: 0, end: 9 }));
        assert_eq!((set(&[]).total(), set(&[]).hull()), (0, None));
    }

    #[test]
    fn a_difference_cuts_at_every_border() {
        for (of, cuts, expected) in [
            (&[(0, 10)][..], &[][..], &[(0, 10)][..]),
            (&[(0, 10)], &[(0, 10)], &[]),
            (&[(0, 10)], &[(2, 3), (5, 7)], &[(0, 2), (3, 5), (7, 10)]),
            (&[(0, 10)], &[(-5, 1), (9, 20)], &[(1, 9)]),
            (&[(0, 2), (4, 6), (8, 10)], &[(1, 9)], &[(0, 1), (9, 10)]),
            (&[(4, 6)], &[(0, 1), (2, 3), (7, 8)], &[(4, 6)]),
        ] {
            assert_eq!(
                pairs(&set(of).minus(&set(cuts))),
                expected,
                "{of:?} minus {cuts:?}"
            );
        }
    }

    #[test]
    fn a_part_keeps_what_is_inside_and_short_gaps_are_closed_on_request() {
        let all = set(&[(0, 4), (6, 10), (20, 30)]);
        assert_eq!(
            pairs(&all.within(Span { start: 3, end: 25 })),
            [(3, 4), (6, 10), (20, 25)]
        );
        assert_eq!(pairs(&all.without_gaps(3)), [(0, 10), (20, 30)]);
        assert_eq!(all.without_gaps(2), all);
    }
}
