//! The period of a run that its charts show.

use domain::api::runs::RunSummary;
use domain::time::TimestampMs;

use crate::chart::Window;
use crate::language::marked;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
/// The lengths of "all" while the run is active. Each change reloads the charts, so there are few.
const STEPS_MS: [i64; 9] = [
    10 * MINUTE_MS,
    30 * MINUTE_MS,
    HOUR_MS,
    3 * HOUR_MS,
    6 * HOUR_MS,
    12 * HOUR_MS,
    24 * HOUR_MS,
    3 * 24 * HOUR_MS,
    7 * 24 * HOUR_MS,
];
/// Margin before the first rank started, because clocks differ slightly.
const MARGIN_MS: i64 = 2_000;

/// The user's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span {
    /// The last part of the run.
    Last(i64),
    /// From start to end.
    Whole,
}

/// The choices: `(choice, name in the address, label)`, the default first.
pub(super) const SPANS: [(Span, &str, &str); 5] = [
    (Span::Last(10 * MINUTE_MS), "10m", marked("10 minutes")),
    (Span::Last(HOUR_MS), "1h", marked("1 hour")),
    (Span::Last(6 * HOUR_MS), "6h", marked("6 hours")),
    (Span::Last(24 * HOUR_MS), "24h", marked("24 hours")),
    (Span::Whole, "run", marked("whole run")),
];

/// Where the step to an earlier or a later period leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// To the period between these times.
    Period {
        /// Its start.
        start_ms: TimestampMs,
        /// Its end.
        end_ms: TimestampMs,
    },
    /// To the chosen period, which is the newest.
    Newest,
    /// Nowhere: the run was not active then.
    Nowhere,
}

impl Step {
    /// Returns the step from a window to the period of the same length before or after it.
    pub(super) fn from(window: Window, is_later: bool, run: &RunSummary, now_ms: TimestampMs) -> Self {
        let (start_ms, end_ms) = match window {
            Window::Past { start_ms, end_ms } => (start_ms, end_ms),
            Window::Last { range_ms } => (now_ms - range_ms, now_ms),
        };
        let length_ms = end_ms - start_ms;
        let begin_ms = run.started_ms.unwrap_or(run.submitted_ms);
        let newest_ms = run.ended_ms.unwrap_or(now_ms);
        match is_later {
            false if start_ms <= begin_ms => Self::Nowhere,
            false => Self::Period {
                start_ms: start_ms - length_ms,
                end_ms: start_ms,
            },
            true if end_ms >= newest_ms => Self::Nowhere,
            true if end_ms + length_ms >= newest_ms => Self::Newest,
            true => Self::Period {
                start_ms: end_ms,
                end_ms: end_ms + length_ms,
            },
        }
    }
}

/// Returns the period between two times in seconds, as an address has them; `None` if they name no period.
pub(super) fn period(from: Option<&str>, to: Option<&str>) -> Option<Window> {
    let time_ms = |text: &str| text.parse::<u32>().ok().map(|time_s| i64::from(time_s) * 1_000);
    let (start_ms, end_ms) = (time_ms(from?)?, time_ms(to?)?);
    (start_ms < end_ms).then_some(Window::Past { start_ms, end_ms })
}

impl Span {
    /// Returns the choice with this name; the default for no name or an unknown one.
    pub(super) fn of(name: Option<&str>) -> Self {
        let named = SPANS.into_iter().find(|(_, known, _)| Some(*known) == name);
        named.unwrap_or(SPANS[0]).0
    }

    /// Returns the window of this choice: it moves while the run is active, and is fixed after its end.
    pub(super) fn window(self, run: &RunSummary, now_ms: TimestampMs) -> Window {
        let begin_ms = run.started_ms.unwrap_or(run.submitted_ms);
        match (run.ended_ms, self) {
            (Some(end_ms), Self::Last(range_ms)) => past(begin_ms.max(end_ms - range_ms), end_ms),
            (Some(end_ms), Self::Whole) => past(begin_ms, end_ms),
            (None, Self::Last(range_ms)) => Window::Last { range_ms },
            (None, Self::Whole) => Window::Last {
                range_ms: at_least(now_ms - begin_ms),
            },
        }
    }
}

fn past(start_ms: TimestampMs, end_ms: TimestampMs) -> Window {
    Window::Past {
        start_ms: (start_ms - MARGIN_MS) / 1_000 * 1_000,
        end_ms: (end_ms + MARGIN_MS) / 1_000 * 1_000,
    }
}

fn at_least(age_ms: i64) -> i64 {
    let longest = STEPS_MS[STEPS_MS.len() - 1];
    STEPS_MS
        .into_iter()
        .find(|step| *step >= age_ms)
        .unwrap_or(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::ident::AttemptNo;
    use domain::run::state::RunState;

    fn run(ended_ms: Option<i64>) -> RunSummary {
        RunSummary {
            id: "r".into(),
            name: "r".into(),
            program: "ddp".into(),
            state: RunState::Running,
            outcome: None,
            attempt: AttemptNo(1),
            nodes: vec![],
            world_size: 2,
            owner: None,
            labels: std::collections::BTreeMap::new(),
            submitted_ms: 0,
            started_ms: Some(10_000),
            ended_ms,
        }
    }

    #[test]
    fn an_address_names_a_choice_or_a_period() {
        for (span, name, _) in SPANS {
            assert_eq!(Span::of(Some(name)), span);
        }
        for unknown in [None, Some(""), Some("2h")] {
            assert_eq!(Span::of(unknown), SPANS[0].0);
        }
        for (from, to, expected) in [
            (Some("10"), Some("12"), Some((10_000, 12_000))),
            (Some("12"), Some("10"), None),
            (Some("10"), Some("10"), None),
            (Some("-1"), Some("10"), None),
            (Some("10"), Some("9999999999"), None),
            (Some("10"), None, None),
            (None, None, None),
        ] {
            let expected = expected.map(|(start_ms, end_ms)| Window::Past { start_ms, end_ms });
            assert_eq!(period(from, to), expected, "{from:?} {to:?}");
        }
    }

    #[test]
    fn an_active_run_has_a_moving_window() {
        let going = run(None);
        assert_eq!(
            Span::Last(60_000).window(&going, 1),
            Window::Last { range_ms: 60_000 }
        );
        let whole = Span::Whole.window(&going, 10_000 + 11 * MINUTE_MS);
        assert_eq!(
            whole,
            Window::Last {
                range_ms: 30 * MINUTE_MS
            }
        );
        let ancient = Span::Whole.window(&going, 90 * 24 * HOUR_MS);
        assert_eq!(
            ancient,
            Window::Last {
                range_ms: 7 * 24 * HOUR_MS
            }
        );
    }

    #[test]
    fn a_step_keeps_the_length_and_stays_within_the_run() {
        let past = |start_s: i64, end_s: i64| Window::Past {
            start_ms: start_s * 1_000,
            end_ms: end_s * 1_000,
        };
        let to = |start_s: i64, end_s: i64| Step::Period {
            start_ms: start_s * 1_000,
            end_ms: end_s * 1_000,
        };
        let last = Window::Last { range_ms: 20_000 };
        // The run starts at 10 s; now it is 100 s. `None`: the run is active.
        for (window, is_later, ended_ms, expected) in [
            (last, false, None, to(60, 80)),
            (last, true, None, Step::Nowhere),
            (past(60, 80), true, None, Step::Newest),
            (past(40, 60), true, None, to(60, 80)),
            (past(20, 40), false, None, to(0, 20)),
            (past(0, 20), false, None, Step::Nowhere),
            (past(70, 92), true, Some(90_000), Step::Nowhere),
            (past(70, 92), false, Some(90_000), to(48, 70)),
            (past(48, 70), true, Some(90_000), Step::Newest),
        ] {
            let step = Step::from(window, is_later, &run(ended_ms), 100_000);
            assert_eq!(step, expected, "{window:?} {is_later} {ended_ms:?}");
        }
    }

    #[test]
    fn an_ended_run_has_a_fixed_window() {
        let ended = run(Some(100_500));
        let window = |start_ms, end_ms| Window::Past { start_ms, end_ms };
        assert_eq!(Span::Whole.window(&ended, 5_000_000), window(8_000, 102_000));
        assert_eq!(
            Span::Last(60_000).window(&ended, 5_000_000),
            window(38_000, 102_000)
        );
        assert_eq!(
            Span::Last(600_000).window(&ended, 5_000_000),
            window(8_000, 102_000)
        );
    }
}
