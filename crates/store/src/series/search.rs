//! Finds the series that match all matchers.
//!
//! ```text
//! a="x"   a=~"x|y"   the series of these values              kept
//! a!="x"  a=~"x?"    the series of the values it excludes    dropped
//! ```
//! Sets that are looked up come first, the smallest first. A regular expression that must be run comes last. It runs on the
//! series that are left, if these are fewer than the values of the label.

use std::borrow::Cow;

use domain::series::MatchOp;
use domain::series::matcher::CompiledMatcher;
use roaring::RoaringBitmap;

use super::index::Index;
use super::pattern::Pattern;
use super::postings::{Postings, union};
use super::vocabulary::{Name, PairId};

/// A matcher, and what is known about it without running it.
struct Test<'a> {
    matcher: &'a CompiledMatcher,
    pattern: Pattern,
    negated: bool,
    /// True if a series without the label matches.
    takes_none: bool,
}

type Set<'a> = Cow<'a, RoaringBitmap>;

/// The effect of a test on the set of found series.
enum Effect<'a> {
    Keep(Set<'a>),
    Drop(Set<'a>),
}

impl Index {
    /// Returns the series that match all matchers.
    pub(crate) fn find(&self, matchers: &[CompiledMatcher]) -> RoaringBitmap {
        let tests = matchers.iter().map(Test::new);
        let (costly, cheap): (Vec<_>, Vec<_>) = tests.partition(Test::runs_expression);
        let (mut keep, mut drop) = (Vec::new(), Vec::new());
        for test in &cheap {
            match self.effect(test) {
                Effect::Keep(set) => keep.push(set),
                Effect::Drop(set) => drop.push(set),
            }
        }
        let mut found = self.common(keep);
        drop.iter().for_each(|set| found -= &**set);
        for test in &costly {
            found = self.narrowed(found, test);
        }
        found
    }

    fn common(&self, mut sets: Vec<Set>) -> RoaringBitmap {
        sets.sort_by_key(|set| set.len());
        let mut sets = sets.into_iter();
        let Some(smallest) = sets.next() else {
            return self.known().clone();
        };
        sets.fold(smallest.into_owned(), |found, set| found & &*set)
    }

    fn narrowed(&self, found: RoaringBitmap, test: &Test) -> RoaringBitmap {
        let values = self.words().name(test.matcher.name()).map_or(0, Name::values_len);
        if found.len() < values {
            let name = test.matcher.name();
            let passes = |id: &u32| {
                test.matcher
                    .matches(self.value(*id, name).map_or("", |value| &**value))
            };
            return found.iter().filter(passes).collect();
        }
        match self.effect(test) {
            Effect::Keep(set) => found & &*set,
            Effect::Drop(set) => found - &*set,
        }
    }

    fn effect(&self, test: &Test) -> Effect<'_> {
        let name = self.words().name(test.matcher.name());
        let (Some(name), false) = (name, matches!(test.pattern, Pattern::Anything)) else {
            // Either no series has the label, or its value does not matter.
            let empty = Cow::Owned(RoaringBitmap::new());
            return if test.takes_none {
                Effect::Drop(empty)
            } else {
                Effect::Keep(empty)
            };
        };
        let accepted = || self.accepted(name, test);
        // The series that have the label with another value.
        let others = || match test.pattern {
            Pattern::Something => Cow::Owned(RoaringBitmap::new()),
            _ => Cow::Owned(name.series() - &*accepted()),
        };
        match (test.negated, test.takes_none) {
            (false, false) => Effect::Keep(accepted()),
            (false, true) => Effect::Drop(others()),
            (true, false) => Effect::Keep(others()),
            (true, true) => Effect::Drop(accepted()),
        }
    }

    /// Returns the series whose value the positive form of a matcher accepts.
    fn accepted<'a>(&'a self, name: &'a Name, test: &Test) -> Set<'a> {
        let pairs: Vec<PairId> = match &test.pattern {
            Pattern::Anything | Pattern::Something => return Cow::Borrowed(name.series()),
            Pattern::Values(values) => values.iter().filter_map(|value| name.pair(value)).collect(),
            Pattern::Prefix(prefix) => name.values_from(prefix).map(|(_, pair)| pair).collect(),
            Pattern::Check(prefixes) => {
                let values = prefixes.iter().flat_map(|prefix| name.values_from(prefix));
                values
                    .filter(|(value, _)| test.matcher.matches(value) != test.negated)
                    .map(|(_, pair)| pair)
                    .collect()
            }
        };
        if let [pair] = pairs.as_slice()
            && let Postings::Many(many) = self.words().postings(*pair)
        {
            return Cow::Borrowed(many);
        }
        Cow::Owned(union(pairs.iter().map(|pair| self.words().postings(*pair))))
    }
}

impl<'a> Test<'a> {
    fn new(matcher: &'a CompiledMatcher) -> Self {
        Self {
            matcher,
            pattern: Pattern::of(matcher.matcher()),
            negated: matches!(matcher.matcher().op, MatchOp::NotEqual | MatchOp::NotRegex),
            takes_none: matcher.matches(""),
        }
    }

    fn runs_expression(&self) -> bool {
        matches!(self.pattern, Pattern::Check(_))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::{Labels, Matcher};
    use proptest::prelude::*;

    use super::*;

    fn index() -> Index {
        let mut index = Index::new(100);
        for (metric, node, gpu) in [
            ("up", "a", ""),
            ("up", "b", ""),
            ("power", "a", "0"),
            ("power", "a", "1"),
            ("power", "b", "0"),
        ] {
            index
                .resolve(&Labels::new([("__name__", metric), ("node", node), ("gpu", gpu)]).unwrap())
                .unwrap();
        }
        index
    }

    fn compiled(name: &str, op: MatchOp, value: &str) -> CompiledMatcher {
        let matcher = Matcher {
            name: name.into(),
            op,
            value: value.into(),
        };
        CompiledMatcher::new(&matcher).unwrap()
    }

    fn check(index: &Index, matchers: &[(&str, MatchOp, &str)], expected: &[u32]) {
        let compiled = matchers
            .iter()
            .map(|(name, op, value)| compiled(name, *op, value));
        let found = index.search(&compiled.collect::<Vec<_>>());
        let found: Vec<u32> = found.iter().map(|entry| entry.id.0).collect();
        assert_eq!(found, expected, "{matchers:?}");
    }

    #[test]
    fn matchers_find_what_they_say() {
        use MatchOp::{Equal, NotEqual, NotRegex, Regex};
        let index = index();
        check(&index, &[("__name__", Equal, "power")], &[3, 4, 5]);
        check(
            &index,
            &[("__name__", Equal, "power"), ("node", Equal, "a")],
            &[3, 4],
        );
        check(&index, &[("__name__", Equal, "nothing")], &[]);
        check(&index, &[("node", Regex, "a|c")], &[1, 3, 4]);
        check(&index, &[("node", NotRegex, "a|c")], &[2, 5]);
        check(&index, &[("gpu", Equal, "")], &[1, 2]);
        check(&index, &[("gpu", NotEqual, "")], &[3, 4, 5]);
        check(&index, &[("gpu", NotEqual, "0")], &[1, 2, 4]);
        check(&index, &[("gpu", Regex, ".*"), ("node", Equal, "b")], &[2, 5]);
        check(&index, &[("gpu", Regex, ".+"), ("node", Equal, "b")], &[5]);
        check(&index, &[("gpu", NotRegex, ".+")], &[1, 2]);
        check(&index, &[("gpu", NotRegex, ".*")], &[]);
        check(&index, &[("rank", Equal, "")], &[1, 2, 3, 4, 5]);
        check(&index, &[("rank", NotRegex, "x.*")], &[1, 2, 3, 4, 5]);
        check(&index, &[], &[1, 2, 3, 4, 5]);
    }

    const NAMES: [&str; 3] = ["__name__", "node", "gpu"];
    const VALUES: [&str; 8] = ["", "a", "ab", "abc", "b", "n1", "n12", "n2"];
    const EXPRESSIONS: [&str; 16] = [
        "", ".*", ".+", "a", "a|b", "a|", "ab?", "a.*", "n1.*", "n1.+", "n[12]", ".*2", "(a|n).*", "a|n.*2",
        "(?i)AB?", "b$|^a",
    ];

    fn any_labels() -> impl Strategy<Value = Labels> {
        let value = || proptest::sample::select(VALUES.as_slice());
        (value(), value(), value())
            .prop_map(|(a, b, c)| Labels::new(NAMES.into_iter().zip([a, b, c])).unwrap())
    }

    fn any_matcher() -> impl Strategy<Value = CompiledMatcher> {
        let name = proptest::sample::select(&["__name__", "node", "gpu", "absent"][..]);
        let plain = (
            proptest::sample::select(&[MatchOp::Equal, MatchOp::NotEqual][..]),
            proptest::sample::select(VALUES.as_slice()),
        );
        let regex = (
            proptest::sample::select(&[MatchOp::Regex, MatchOp::NotRegex][..]),
            proptest::sample::select(EXPRESSIONS.as_slice()),
        );
        (name, prop_oneof![plain, regex]).prop_map(|(name, (op, value))| compiled(name, op, value))
    }

    proptest! {
        #[test]
        fn a_search_finds_what_a_look_at_every_series_finds(
            all in prop::collection::vec(any_labels(), 0..120),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
            matchers in prop::collection::vec(any_matcher(), 0..5),
        ) {
            let mut index = Index::new(1_000);
            let mut known = std::collections::BTreeMap::new();
            for labels in &all {
                known.insert(index.resolve(labels).unwrap(), labels.clone());
            }
            let removed: Vec<_> = removed.iter().filter(|_| !all.is_empty()).map(|at| index.id(&all[at.index(all.len())]).unwrap()).collect();
            index.remove(&removed);
            known.retain(|id, _| !removed.contains(id));
            let holds = |labels: &Labels| matchers.iter().all(|m| m.matches(labels.get(m.name()).unwrap_or("")));
            let expected: Vec<_> = known.into_iter().filter(|(_, labels)| holds(labels)).collect();
            let found: Vec<_> = index.search(&matchers).iter().map(|entry| (entry.id, entry.labels())).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
