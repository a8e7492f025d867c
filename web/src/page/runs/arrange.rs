//! Which runs the table shows, in which order and in which groups, as pure functions.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use domain::api::runs::RunSummary;
use domain::time::TimestampMs;

use crate::ui::sorted;

/// The state in the address that stands for all states of runs that have not ended.
pub(super) const ACTIVE: &str = "active";

/// A column by which the table can be sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// The word of the state.
    State,
    /// The id.
    Run,
    /// Who submitted the run.
    Owner,
    /// The recipe or script.
    Program,
    /// The number of ranks.
    Ranks,
    /// The number of the current attempt.
    Attempt,
    /// The time from the first rank's start to the end, or to now.
    Duration,
    /// When the run was submitted.
    Submitted,
}

impl Column {
    const ALL: [Self; 8] = [
        Self::State,
        Self::Run,
        Self::Owner,
        Self::Program,
        Self::Ranks,
        Self::Attempt,
        Self::Duration,
        Self::Submitted,
    ];

    /// Returns the name in the address.
    fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Run => "run",
            Self::Owner => "owner",
            Self::Program => "program",
            Self::Ranks => "ranks",
            Self::Attempt => "attempt",
            Self::Duration => "duration",
            Self::Submitted => "submitted",
        }
    }

    fn compare(self, a: &RunSummary, b: &RunSummary, now_ms: TimestampMs) -> Ordering {
        match self {
            Self::State => a.state.as_str().cmp(b.state.as_str()),
            Self::Run => a.id.cmp(&b.id),
            Self::Owner => a.owner.cmp(&b.owner),
            Self::Program => a.program.cmp(&b.program),
            Self::Ranks => a.world_size.cmp(&b.world_size),
            Self::Attempt => a.attempt.cmp(&b.attempt),
            Self::Duration => duration_ms(a, now_ms).cmp(&duration_ms(b, now_ms)),
            Self::Submitted => a.submitted_ms.cmp(&b.submitted_ms),
        }
    }
}

/// The order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) by: Column,
    pub(super) descending: bool,
}

impl Default for Sort {
    /// Newest first.
    fn default() -> Self {
        Self {
            by: Column::Submitted,
            descending: true,
        }
    }
}

impl Sort {
    /// Reads the order from the address: a column, with `-` in front if descending. An unknown one is the default.
    pub(super) fn read(text: &str) -> Self {
        let (descending, name) = match text.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, text),
        };
        let by = Column::ALL.into_iter().find(|column| column.name() == name);
        by.map_or_else(Self::default, |by| Self { by, descending })
    }

    /// Returns the order for the address.
    pub(super) fn written(self) -> String {
        let sign = if self.descending { "-" } else { "" };
        format!("{sign}{}", self.by.name())
    }

    /// Returns the order after a click on a column: the column, or its other direction.
    pub(super) fn clicked(self, by: Column) -> Self {
        Self {
            by,
            descending: self.by == by && !self.descending,
        }
    }

    fn compare(self, a: &RunSummary, b: &RunSummary, now_ms: TimestampMs) -> Ordering {
        let order = self.by.compare(a, b, now_ms);
        let order = if self.descending { order.reverse() } else { order };
        order.then_with(|| b.submitted_ms.cmp(&a.submitted_ms))
    }
}

/// What the runs are grouped by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Grouping {
    /// One group.
    #[default]
    None,
    /// One group per owner.
    Owner,
    /// One group per recipe or script.
    Program,
    /// One group per value of the label with this key.
    Label(String),
}

impl Grouping {
    /// Reads the grouping from the address.
    pub(super) fn read(text: &str) -> Self {
        match text {
            "owner" => Self::Owner,
            "program" => Self::Program,
            _ => text
                .strip_prefix("label:")
                .map_or(Self::None, |key| Self::Label(key.to_owned())),
        }
    }

    /// Returns the name of a run's group; empty if it has no owner or no such label.
    fn of(&self, run: &RunSummary) -> String {
        match self {
            Self::None => String::new(),
            Self::Owner => run.owner.clone().unwrap_or_default(),
            Self::Program => run.program.clone(),
            Self::Label(key) => run.labels.get(key).cloned().unwrap_or_default(),
        }
    }
}

/// The user's choices; empty fields match everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Arrangement {
    /// Words that id, name, program, owner, nodes or labels must all contain.
    pub(super) words: String,
    /// The word of a state, several with commas between them, or [`ACTIVE`].
    pub(super) state: String,
    /// The owner.
    pub(super) owner: String,
    /// A label as `KEY=VALUE`.
    pub(super) label: String,
    pub(super) sort: Sort,
    pub(super) grouping: Grouping,
}

/// A group of the table. Without grouping, all runs are one group without a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunGroup {
    pub(super) name: String,
    /// Number of runs that have not ended.
    pub(super) active: usize,
    /// Positions of its runs in the list, in the order of the table.
    pub(super) places: Vec<usize>,
}

/// Returns the groups by name; runs without an owner or without the label are last.
pub(super) fn arranged(runs: &[RunSummary], wanted: &Arrangement, now_ms: TimestampMs) -> Vec<RunGroup> {
    let words = wanted.words.to_lowercase();
    let matching = (0..runs.len()).filter(|place| takes(wanted, &words, &runs[*place]));
    let places = sorted(matching.collect(), |a: &usize, b: &usize| {
        wanted.sort.compare(&runs[*a], &runs[*b], now_ms)
    });
    let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for place in places {
        let name = wanted.grouping.of(&runs[place]);
        by_name.entry(name).or_default().push(place);
    }
    let unnamed = by_name.remove("").map(|places| (String::new(), places));
    let groups = by_name.into_iter().chain(unnamed);
    let group = |(name, places): (String, Vec<usize>)| RunGroup {
        name,
        active: places
            .iter()
            .filter(|place| !runs[**place].state.is_final())
            .count(),
        places,
    };
    groups.map(group).collect()
}

/// Returns how long the run has trained, or did; `None` before its first rank starts.
pub(super) fn duration_ms(run: &RunSummary, now_ms: TimestampMs) -> Option<i64> {
    Some((run.ended_ms.unwrap_or(now_ms) - run.started_ms?).max(0))
}

/// Returns a label as the filter and the table show it.
pub(super) fn label_text(key: &str, value: &str) -> String {
    format!("{key}={value}")
}

/// `words` are in lower case.
fn takes(wanted: &Arrangement, words: &str, run: &RunSummary) -> bool {
    let is_state = match wanted.state.as_str() {
        "" => true,
        ACTIVE => !run.state.is_final(),
        words => words.split(',').any(|word| run.state.as_str() == word),
    };
    let has_label = || {
        let mut labels = run.labels.iter();
        wanted.label.is_empty() || labels.any(|(key, value)| label_text(key, value) == wanted.label)
    };
    is_state
        && (wanted.owner.is_empty() || run.owner.as_deref() == Some(wanted.owner.as_str()))
        && has_label()
        && words.split_whitespace().all(|word| contains(run, word))
}

fn contains(run: &RunSummary, word: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(word);
    has(&run.id)
        || has(&run.name)
        || has(&run.program)
        || run.owner.as_deref().is_some_and(has)
        || run.nodes.iter().any(|node| has(node))
        || run.labels.iter().any(|(key, value)| has(&label_text(key, value)))
}

#[cfg(test)]
pub(super) mod tests {
    use domain::ident::AttemptNo;
    use domain::run::state::RunState;

    use super::*;

    /// A run that has not started.
    pub(in crate::page::runs) fn run(id: &str, submitted_ms: TimestampMs) -> RunSummary {
        RunSummary {
            id: id.to_owned(),
            name: id.to_owned(),
            program: "ddp".to_owned(),
            state: RunState::Queued,
            outcome: None,
            attempt: AttemptNo(1),
            nodes: vec![],
            world_size: 2,
            owner: None,
            labels: BTreeMap::new(),
            submitted_ms,
            started_ms: None,
            ended_ms: None,
        }
    }

    fn runs() -> Vec<RunSummary> {
        let labelled = |value: &str| BTreeMap::from([("team".to_owned(), value.to_owned())]);
        vec![
            RunSummary {
                state: RunState::Running,
                owner: Some("admin".to_owned()),
                labels: labelled("vision"),
                started_ms: Some(100),
                ..run("vit-1", 30)
            },
            RunSummary {
                state: RunState::Failed,
                program: "fsdp".to_owned(),
                labels: labelled("speech"),
                nodes: vec!["node-07".to_owned()],
                started_ms: Some(100),
                ended_ms: Some(150),
                ..run("llama-1", 20)
            },
            RunSummary {
                owner: Some("speech team".to_owned()),
                world_size: 16,
                ..run("asr-1", 10)
            },
        ]
    }

    fn ids(wanted: &Arrangement) -> Vec<(String, Vec<String>)> {
        let runs = runs();
        let groups = arranged(&runs, wanted, 1_000).into_iter();
        let id = |place: usize| runs[place].id.clone();
        groups
            .map(|group| (group.name, group.places.into_iter().map(id).collect()))
            .collect()
    }

    #[test]
    fn each_part_of_the_filter_narrows_the_table() {
        for (words, state, owner, label, expected) in [
            ("", "", "", "", vec!["vit-1", "llama-1", "asr-1"]),
            ("TEAM", "", "", "", vec!["vit-1", "llama-1", "asr-1"]),
            ("speech", "", "", "", vec!["llama-1", "asr-1"]),
            ("speech fsdp", "", "", "", vec!["llama-1"]),
            ("node-07", "", "", "", vec!["llama-1"]),
            ("", ACTIVE, "", "", vec!["vit-1", "asr-1"]),
            ("", "failed", "", "", vec!["llama-1"]),
            ("", "failed,running", "", "", vec!["vit-1", "llama-1"]),
            ("", "", "admin", "", vec!["vit-1"]),
            ("", "", "", "team=speech", vec!["llama-1"]),
            ("", "running", "speech team", "", vec![]),
        ] {
            let wanted = Arrangement {
                words: words.to_owned(),
                state: state.to_owned(),
                owner: owner.to_owned(),
                label: label.to_owned(),
                ..Arrangement::default()
            };
            let found: Vec<String> = ids(&wanted).into_iter().flat_map(|(_, ids)| ids).collect();
            assert_eq!(found, expected, "{wanted:?}");
        }
    }

    #[test]
    fn each_column_sorts_and_equal_runs_stay_newest_first() {
        for (sort, expected) in [
            ("", ["vit-1", "llama-1", "asr-1"]),
            ("submitted", ["asr-1", "llama-1", "vit-1"]),
            ("-run", ["vit-1", "llama-1", "asr-1"]),
            ("owner", ["llama-1", "vit-1", "asr-1"]),
            ("program", ["vit-1", "asr-1", "llama-1"]),
            ("-ranks", ["asr-1", "vit-1", "llama-1"]),
            ("attempt", ["vit-1", "llama-1", "asr-1"]),
            ("-duration", ["vit-1", "llama-1", "asr-1"]),
            ("state", ["llama-1", "asr-1", "vit-1"]),
        ] {
            let wanted = Arrangement {
                sort: Sort::read(sort),
                ..Arrangement::default()
            };
            assert_eq!(ids(&wanted)[0].1, expected, "{sort}");
        }
    }

    #[test]
    fn groups_are_in_the_order_of_their_names_and_the_unnamed_one_is_last() {
        let grouped = |by: &str| {
            let wanted = Arrangement {
                grouping: Grouping::read(by),
                ..Arrangement::default()
            };
            let names = ids(&wanted).into_iter().map(|(name, _)| name);
            names.collect::<Vec<String>>()
        };
        assert_eq!(grouped(""), [""]);
        assert_eq!(grouped("owner"), ["admin", "speech team", ""]);
        assert_eq!(grouped("program"), ["ddp", "fsdp"]);
        assert_eq!(grouped("label:team"), ["speech", "vision", ""]);
        assert_eq!(grouped("label:stage"), [""]);
        let all = arranged(&runs(), &Arrangement::default(), 1_000);
        assert_eq!(all[0].active, 2);
    }

    #[test]
    fn a_click_on_a_column_sorts_by_it_and_another_click_turns_the_order() {
        let sort = Sort::default().clicked(Column::Owner);
        assert_eq!(sort.written(), "owner");
        assert_eq!(sort.clicked(Column::Owner).written(), "-owner");
        assert_eq!(Sort::default().clicked(Column::Submitted).written(), "submitted");
        for column in Column::ALL {
            for descending in [false, true] {
                let sort = Sort {
                    by: column,
                    descending,
                };
                assert_eq!(Sort::read(&sort.written()), sort);
            }
        }
    }
}
