//! Texts about a silence.

use domain::api::silences::SilenceView;
use domain::incident::SilenceState;
use domain::series::Matcher;

use crate::language::{tr, tr_with};
use crate::ui::clock;

/// Returns the CSS class of a silence's state, and its word.
pub(super) fn state_badge(state: SilenceState) -> (&'static str, &'static str) {
    match state {
        SilenceState::Pending => ("state state-info", tr("planned")),
        SilenceState::Active => ("state state-warning", tr("silenced")),
        SilenceState::Expired => ("state state-unknown", tr("ended")),
    }
}

/// Returns the matchers as in PromQL: `node="n1", gpu=~"1|2"`.
pub(super) fn matchers(silence: &SilenceView) -> String {
    let all = silence.matchers.iter();
    let all: Vec<String> = all.map(|one| Matcher::from(one).to_string()).collect();
    all.join(", ")
}

/// Returns who created the silence, and when it begins or ends.
pub(super) fn period(silence: &SilenceView) -> String {
    let (starts, ends) = (clock(silence.starts_ms), clock(silence.ends_ms));
    match silence.state {
        SilenceState::Pending => tr_with(
            "By {who}, from {start} until {end}.",
            &[("who", &silence.created_by), ("start", &starts), ("end", &ends)],
        ),
        SilenceState::Active => tr_with(
            "By {who}, until {end}.",
            &[("who", &silence.created_by), ("end", &ends)],
        ),
        SilenceState::Expired => tr_with(
            "By {who}, ended {end}.",
            &[("who", &silence.created_by), ("end", &ends)],
        ),
    }
}

/// Returns how many firing alerts the silence hides or will hide; empty if it has ended.
pub(super) fn hidden_alerts(silence: &SilenceView) -> String {
    match (silence.state, silence.matches_now.len()) {
        (SilenceState::Expired, _) => String::new(),
        (SilenceState::Pending, count) => {
            tr_with("{count} alerts that fire now match.", &[("count", &count)])
        }
        (SilenceState::Active, 0) => tr("Hides no alert now.").to_owned(),
        (SilenceState::Active, 1) => tr("Hides 1 alert now.").to_owned(),
        (SilenceState::Active, count) => tr_with("Hides {count} alerts now.", &[("count", &count)]),
    }
}

#[cfg(test)]
mod tests {
    use domain::incident::SilenceMatcher;

    use super::*;

    fn silence(state: SilenceState, matching: usize) -> SilenceView {
        let matcher = |name: &str, value: &str, is_regex| SilenceMatcher {
            name: name.into(),
            value: value.into(),
            is_regex,
            is_equal: true,
        };
        SilenceView {
            id: "si-1".into(),
            state,
            matchers: vec![matcher("node", "n1", false), matcher("gpu", "1|2", true)],
            starts_ms: 0,
            ends_ms: 1_000,
            created_ms: 0,
            created_by: "ann".into(),
            comment: "new fan".into(),
            matches_now: vec!["d-1".into(); matching],
        }
    }

    #[test]
    fn matchers_are_written_as_in_promql() {
        let silence = silence(SilenceState::Active, 0);
        assert_eq!(matchers(&silence), r#"node="n1", gpu=~"1|2""#);
    }

    #[test]
    fn the_number_of_hidden_alerts_is_a_sentence() {
        for (state, count, expected) in [
            (SilenceState::Active, 0, "Hides no alert now."),
            (SilenceState::Active, 1, "Hides 1 alert now."),
            (SilenceState::Active, 3, "Hides 3 alerts now."),
            (SilenceState::Pending, 2, "2 alerts that fire now match."),
            (SilenceState::Expired, 3, ""),
        ] {
            assert_eq!(hidden_alerts(&silence(state, count)), expected);
        }
    }
}
