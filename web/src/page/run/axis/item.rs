//! The entries of the time axis.

use domain::api::checkpoints::CheckpointView;
use domain::api::runs::{AttemptView, RunAction};
use domain::event::{Event, Severity};
use domain::run::knob::Change;
use domain::run::state::RunState;
use domain::time::TimestampMs;

use super::super::address::{attempt_at, of_log, of_tab};
use super::super::cause::cause;
use super::super::checkpoint_list::name;
use super::super::tabs::Tab;
use super::history::{RunDiagnosis, RunHistory};
use crate::language::{tr, tr_with};
use crate::ui::{bytes, run_state_word};

/// The lanes of the axis, from top to bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// The attempts of the run.
    Attempts,
    /// The states of the run.
    States,
    /// Its checkpoints.
    Checkpoints,
    /// Its diagnoses.
    Diagnoses,
    /// Errors that its GPUs reported.
    GpuErrors,
    /// What people did to it, and changes of knobs.
    Actions,
}

impl Lane {
    /// All lanes in order.
    pub(super) const ALL: [Self; 6] = [
        Self::Attempts,
        Self::States,
        Self::Checkpoints,
        Self::Diagnoses,
        Self::GpuErrors,
        Self::Actions,
    ];

    /// Returns the identifier for the page.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::States => "states",
            Self::Checkpoints => "checkpoints",
            Self::Diagnoses => "diagnoses",
            Self::GpuErrors => "xids",
            Self::Actions => "actions",
        }
    }

    /// Returns the name for users.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Attempts => tr("Attempts"),
            Self::States => tr("States"),
            Self::Checkpoints => tr("Checkpoints"),
            Self::Diagnoses => tr("Diagnoses"),
            Self::GpuErrors => tr("Xid errors"),
            Self::Actions => tr("Actions"),
        }
    }
}

/// The collector writes in English.
const ENGLISH: Option<&str> = Some("en");

/// The states that events can name.
const STATES: [RunState; 10] = [
    RunState::Queued,
    RunState::Preparing,
    RunState::Starting,
    RunState::Running,
    RunState::Stopping,
    RunState::Stopped,
    RunState::Restarting,
    RunState::Succeeded,
    RunState::Failed,
    RunState::Lost,
];

/// When an entry ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The entry is a moment.
    Moment,
    /// At this time.
    At(TimestampMs),
    /// It has not ended.
    Open,
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// The lane.
    pub(super) lane: Lane,
    /// When it began.
    pub(super) start_ms: TimestampMs,
    /// When it ended.
    pub(super) end: End,
    /// The language of the words if it is not that of the page.
    pub(super) lang: Option<&'static str>,
    /// A few words, shown where there is room.
    pub(super) label: String,
    /// The whole text.
    pub(super) text: String,
    /// The address of what it is about.
    pub(super) href: String,
    /// The severity, if it has one.
    pub(super) severity: Option<Severity>,
}

/// What the entries are made from.
pub(super) struct Sources<'a> {
    /// The run's id.
    pub(super) run: &'a str,
    /// Whether the run has ended.
    pub(super) is_over: bool,
    /// Its attempts, oldest first.
    pub(super) attempts: &'a [AttemptView],
    /// Its checkpoints.
    pub(super) checkpoints: &'a [CheckpointView],
    /// Its history.
    pub(super) history: &'a RunHistory,
}

impl Sources<'_> {
    /// Returns all entries, lane by lane.
    pub(super) fn items(&self) -> Vec<Item> {
        let mut items: Vec<Item> = self.attempts.iter().map(|one| self.attempt(one)).collect();
        self.states(&mut items);
        let own = self.checkpoints.iter().filter(|one| !one.foreign);
        items.extend(own.filter_map(|one| self.checkpoint(one)));
        items.extend(self.history.diagnoses.iter().map(diagnosis));
        items.extend(self.history.gpu_errors.iter().map(|event| self.gpu_error(event)));
        items.extend(self.history.actions.iter().map(|action| self.action(action)));
        for attempt in self.attempts {
            let own = attempt.change.iter().map(|change| (attempt.started_ms, change));
            let live = attempt.live.iter().map(|live| (live.asked_ms, &live.change));
            items.extend(
                own.chain(live)
                    .filter_map(|(at_ms, change)| self.change(at_ms, change)),
            );
        }
        items
    }

    fn attempt(&self, attempt: &AttemptView) -> Item {
        let number = attempt.attempt;
        let outcome = match (&attempt.outcome, attempt.ended_ms) {
            (Some(outcome), _) => outcome.message.to_string(),
            (None, Some(_)) => tr("ended").to_owned(),
            (None, None) => tr("active").to_owned(),
        };
        Item {
            lane: Lane::Attempts,
            start_ms: attempt.started_ms,
            end: attempt.ended_ms.map_or(End::Open, End::At),
            lang: None,
            label: tr_with("attempt {number}", &[("number", &number)]),
            text: tr_with(
                "Attempt {number} ({cause}): {outcome}",
                &[
                    ("number", &number),
                    ("cause", &cause(&attempt.cause)),
                    ("outcome", &outcome),
                ],
            ),
            href: of_log(self.run, Some(number), None),
            severity: None,
        }
    }

    /// Adds the states. Each lasts until the next one begins.
    fn states(&self, items: &mut Vec<Item>) {
        let mut next_ms = None;
        let begin = items.len();
        for event in &self.history.states {
            let end = match next_ms {
                Some(at_ms) => End::At(at_ms),
                None if self.is_over => End::Moment,
                None => End::Open,
            };
            next_ms = Some(event.at_ms);
            items.push(Item {
                lane: Lane::States,
                start_ms: event.at_ms,
                end,
                lang: ENGLISH,
                label: state_label(self.run, &event.message),
                text: event.message.clone(),
                href: self.log_at(event.at_ms),
                severity: Some(event.severity).filter(|severity| *severity != Severity::Info),
            });
        }
        items[begin..].reverse();
    }

    fn checkpoint(&self, checkpoint: &CheckpointView) -> Option<Item> {
        let (name, size) = (name(checkpoint), bytes(checkpoint.bytes));
        let text = if checkpoint.complete {
            tr_with(
                "Checkpoint {name}: complete, {size}",
                &[("name", &name), ("size", &size)],
            )
        } else {
            tr_with(
                "Checkpoint {name}: incomplete, {size}",
                &[("name", &name), ("size", &size)],
            )
        };
        Some(Item {
            lane: Lane::Checkpoints,
            start_ms: checkpoint.finished_ms?,
            end: End::Moment,
            lang: None,
            label: "▾".to_owned(),
            text,
            href: of_tab(self.run, Tab::Checkpoints),
            severity: (!checkpoint.complete).then_some(Severity::Warning),
        })
    }

    fn gpu_error(&self, event: &Event) -> Item {
        let href = match &event.node {
            Some(node) => format!("/?sel={node}"),
            None => self.log_at(event.at_ms),
        };
        let text = match &event.node {
            Some(node) => format!("{node}: {}", event.message),
            None => event.message.clone(),
        };
        Item {
            lane: Lane::GpuErrors,
            start_ms: event.at_ms,
            end: End::Moment,
            lang: ENGLISH,
            label: "⚡".to_owned(),
            text,
            href,
            severity: Some(event.severity),
        }
    }

    fn action(&self, action: &RunAction) -> Item {
        self.moment_of_action(action.at_ms, format!("{}: {}", action.who, action.text), ENGLISH)
    }

    /// Returns a change of knobs that no person requested. Those of people are among the actions.
    fn change(&self, at_ms: TimestampMs, change: &Change) -> Option<Item> {
        let reason = change.reason.as_ref()?;
        let cause = cause(change.cause());
        let words = format!("{cause}, {}: {reason}", change.words());
        Some(self.moment_of_action(at_ms, words, None))
    }

    fn moment_of_action(&self, at_ms: TimestampMs, text: String, lang: Option<&'static str>) -> Item {
        Item {
            lane: Lane::Actions,
            start_ms: at_ms,
            end: End::Moment,
            lang,
            label: "⚙".to_owned(),
            text,
            href: of_tab(self.run, Tab::Attempts),
            severity: None,
        }
    }

    /// Returns the address of the lines of all ranks at a time, in the attempt that ran then.
    fn log_at(&self, at_ms: TimestampMs) -> String {
        let log = of_log(self.run, attempt_at(self.attempts, at_ms), None);
        format!("{log}&at={at_ms}")
    }
}

/// Returns the state alone, because marks can be short: the whole message is in the title. If it names no known state, returns the message.
fn state_label(run: &str, message: &str) -> String {
    let rest = message
        .strip_prefix("run ")
        .and_then(|rest| rest.strip_prefix(run)?.strip_prefix(" is "));
    let word = rest.and_then(|rest| rest.split(':').next());
    match word.and_then(|word| STATES.into_iter().find(|state| state.as_str() == word)) {
        Some(state) => run_state_word(state).to_owned(),
        None => message.to_owned(),
    }
}

fn diagnosis(diagnosis: &RunDiagnosis) -> Item {
    Item {
        lane: Lane::Diagnoses,
        start_ms: diagnosis.fired_ms.unwrap_or(diagnosis.active_ms),
        end: diagnosis.resolved_ms.map_or(End::Open, End::At),
        lang: ENGLISH,
        label: diagnosis.label(),
        text: diagnosis.summary.clone(),
        href: format!("/diagnoses/{}", diagnosis.id),
        severity: Some(diagnosis.severity),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use serde_json::{Value, json};

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn attempts() -> Vec<AttemptView> {
        read(json!([
            {"attempt": 1, "cause": "submitted", "started_ms": 1_000, "ended_ms": 5_000, "nodes": []},
            {"attempt": 2, "cause": "knob reverted by itself", "started_ms": 6_000, "nodes": [],
             "change": {"set": [{"knob": "amp", "new": "off", "how": {"way": "injected"}}], "reverts": 1, "reason": "it was slower"}},
        ]))
    }

    fn event(at_ms: TimestampMs, severity: Severity, node: Option<&str>, message: &str) -> Event {
        Event {
            at_ms,
            severity,
            kind: "run_state".to_owned(),
            node: node.map(str::to_owned),
            gpu: None,
            run: Some("r-1".to_owned()),
            message: message.to_owned(),
        }
    }

    fn items(history: &RunHistory, checkpoints: &[CheckpointView], is_over: bool) -> Vec<Item> {
        let attempts = attempts();
        let sources = Sources {
            run: "r-1",
            is_over,
            attempts: &attempts,
            checkpoints,
            history,
        };
        sources.items()
    }

    fn of(lane: Lane, items: &[Item]) -> Vec<&Item> {
        items.iter().filter(|item| item.lane == lane).collect()
    }

    #[test]
    fn attempts_are_spans_and_lead_to_their_logs() {
        let items = items(&RunHistory::default(), &[], false);
        let attempts = of(Lane::Attempts, &items);
        let ends: Vec<End> = attempts.iter().map(|item| item.end).collect();
        assert_eq!(ends, [End::At(5_000), End::Open]);
        assert_eq!(attempts[0].text, "Attempt 1 (submitted): ended");
        assert_eq!(attempts[1].href, "/runs/r-1?tab=log&attempt=2");
        let actions = of(Lane::Actions, &items);
        assert_eq!(actions[0].text, "knob reverted by itself, amp=off: it was slower");
        assert_eq!(actions[0].start_ms, 6_000);
    }

    #[test]
    fn a_state_lasts_until_the_next_one() {
        let history = RunHistory {
            states: vec![
                event(6_500, Severity::Info, None, "run r-1 is running"),
                event(5_000, Severity::Warning, None, "run r-1 is restarting"),
                event(1_500, Severity::Info, None, "run r-1 is running"),
            ],
            ..RunHistory::default()
        };
        let states = |is_over| -> Vec<(TimestampMs, End)> {
            let items = items(&history, &[], is_over);
            let states = of(Lane::States, &items);
            states.iter().map(|item| (item.start_ms, item.end)).collect()
        };
        assert_eq!(
            states(false),
            [
                (1_500, End::At(5_000)),
                (5_000, End::At(6_500)),
                (6_500, End::Open)
            ]
        );
        assert_eq!(states(true)[2], (6_500, End::Moment));
        let items = items(&history, &[], false);
        let second = of(Lane::States, &items)[1];
        assert_eq!(second.href, "/runs/r-1?tab=log&attempt=1&at=5000");
        assert_eq!(second.severity, Some(Severity::Warning));
        assert_eq!(
            (second.label.as_str(), second.text.as_str()),
            ("restarting", "run r-1 is restarting")
        );
    }

    #[test]
    fn a_mark_of_a_state_has_the_state_alone() {
        for (message, expected) in [
            ("run r-1 is running", "running"),
            ("run r-1 is failed: rank 3: exit code 1", "failed"),
            ("run r-12 is running", "run r-12 is running"),
            ("run r-1 is asleep", "run r-1 is asleep"),
        ] {
            assert_eq!(state_label("r-1", message), expected);
        }
    }

    #[test]
    fn checkpoints_diagnoses_errors_and_actions_lead_to_what_they_are() {
        let own = CheckpointView {
            step: Some(1_200),
            bytes: 4_096,
            complete: true,
            finished_ms: Some(3_000),
            ..CheckpointView::default()
        };
        let foreign = CheckpointView {
            foreign: true,
            ..own.clone()
        };
        let unfinished = CheckpointView {
            finished_ms: None,
            ..own.clone()
        };
        let history = RunHistory {
            gpu_errors: vec![event(
                4_000,
                Severity::Critical,
                Some("node-07"),
                "GPU 3 reports Xid 79",
            )],
            diagnoses: vec![RunDiagnosis {
                id: "d-1".to_owned(),
                summary: "rank 17 is late".to_owned(),
                severity: Severity::Warning,
                active_ms: 2_000,
                fired_ms: Some(2_500),
                resolved_ms: None,
            }],
            actions: vec![RunAction {
                at_ms: 4_500,
                who: "ann".to_owned(),
                kind: "run_stop".to_owned(),
                text: "run stop".to_owned(),
            }],
            ..RunHistory::default()
        };
        let items = items(&history, &[own, foreign, unfinished], false);
        let told = |lane| -> Vec<(TimestampMs, &str, &str)> {
            let of_lane = of(lane, &items).into_iter();
            of_lane
                .map(|item| (item.start_ms, item.text.as_str(), item.href.as_str()))
                .collect()
        };
        assert_eq!(
            told(Lane::Checkpoints),
            [(
                3_000,
                "Checkpoint step 1200: complete, 4.0 KiB",
                "/runs/r-1?tab=checkpoints"
            )]
        );
        assert_eq!(
            told(Lane::Diagnoses),
            [(2_500, "rank 17 is late", "/diagnoses/d-1")]
        );
        assert_eq!(of(Lane::Diagnoses, &items)[0].label, "◆ rank 17 is late");
        let marked = items.iter().filter(|item| item.lang.is_some());
        let marked: Vec<Lane> = marked.map(|item| item.lane).collect();
        assert_eq!(marked, [Lane::Diagnoses, Lane::GpuErrors, Lane::Actions]);
        assert_eq!(
            told(Lane::GpuErrors),
            [(4_000, "node-07: GPU 3 reports Xid 79", "/?sel=node-07")]
        );
        assert_eq!(
            told(Lane::Actions)[0],
            (4_500, "ann: run stop", "/runs/r-1?tab=attempts")
        );
    }
}
