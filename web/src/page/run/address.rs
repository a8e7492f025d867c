//! Addresses of parts of a run's page.

use domain::api::runs::AttemptView;
use domain::ident::{AttemptNo, Rank};
use domain::time::TimestampMs;
use leptos::prelude::*;

use super::tabs::Tab;
use crate::language::tr_with;

/// Returns the address of a tab.
pub(super) fn of_tab(run: &str, tab: Tab) -> String {
    format!("/runs/{run}?tab={}", tab.name())
}

/// Returns the address of the log of a rank in an attempt; of the last attempt and the first log if they are unknown.
pub(super) fn of_log(run: &str, attempt: Option<AttemptNo>, rank: Option<u32>) -> String {
    let attempt = attempt.map_or_else(String::new, |attempt| format!("&attempt={attempt}"));
    let rank = rank.map_or_else(String::new, |rank| format!("&rank={rank}"));
    format!("{}{attempt}{rank}", of_tab(run, Tab::Log))
}

/// Renders the number of a rank as a link to its log in an attempt, or in the last one. `tabindex`: -1 if the page has the same link elsewhere.
pub(super) fn log_link(run: &str, attempt: Option<AttemptNo>, rank: Rank, tabindex: &'static str) -> AnyView {
    let label = tr_with("Log of rank {rank}", &[("rank", &rank)]);
    let href = of_log(run, attempt, Some(rank.0));
    view! { <a class="link" href=href aria-label=label tabindex=tabindex>{rank.to_string()}</a> }.into_any()
}

/// Returns the attempt that ran at a time, or the last one before it.
pub(super) fn attempt_at(attempts: &[AttemptView], at_ms: TimestampMs) -> Option<AttemptNo> {
    let begun = attempts.iter().rfind(|attempt| attempt.started_ms <= at_ms);
    begun.map(|attempt| attempt.attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_named_by_attempt_and_rank() {
        for (attempt, rank, expected) in [
            (None, None, "/runs/r-1?tab=log"),
            (Some(AttemptNo(2)), None, "/runs/r-1?tab=log&attempt=2"),
            (
                Some(AttemptNo(2)),
                Some(17),
                "/runs/r-1?tab=log&attempt=2&rank=17",
            ),
        ] {
            assert_eq!(of_log("r-1", attempt, rank), expected);
        }
    }
}
