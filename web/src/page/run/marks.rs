//! The marks of the charts: attempts, diagnoses and saved checkpoints.

use domain::api::checkpoints::CheckpointView;
use domain::api::runs::AttemptView;
use domain::time::TimestampMs;

use super::axis::RunDiagnosis;
use super::checkpoint_list::name;
use crate::chart::Marks;
use crate::language::tr_with;
use crate::ui::{clock, sorted};

/// Maximum number of marks in the text, the newest ones. The list of the time axis has all of them.
const LISTED_MOST: usize = 50;

/// Returns the marks in the order of their times. The charts draw words that begin with a symbol as thin lines, and of them only the symbol.
pub(super) fn all_marks(
    attempts: &[AttemptView],
    diagnoses: &[RunDiagnosis],
    checkpoints: &[CheckpointView],
) -> Marks {
    // Data left of the mark of an attempt belongs to earlier attempts. The first has none.
    let later = attempts.iter().skip(1).map(|attempt| {
        let number = tr_with("attempt {number}", &[("number", &attempt.attempt)]);
        (attempt.started_ms, number)
    });
    let diagnoses = diagnoses.iter().map(|diagnosis| {
        let start_ms = diagnosis.fired_ms.unwrap_or(diagnosis.active_ms);
        (start_ms, diagnosis.label())
    });
    let own = checkpoints.iter().filter(|one| one.complete && !one.foreign);
    let saved = own.filter_map(|one| {
        let words = tr_with("▾ Checkpoint {name}", &[("name", &name(one))]);
        Some((one.finished_ms?, words))
    });
    sorted(later.chain(diagnoses).chain(saved).collect(), |a, b| {
        a.0.cmp(&b.0)
    })
}

/// Returns the newest marks as text, for readers who do not see them.
pub(super) fn as_text(marks: &[(TimestampMs, String)]) -> String {
    let newest = &marks[marks.len().saturating_sub(LISTED_MOST)..];
    let words = newest
        .iter()
        .map(|(at_ms, words)| format!("{} {words}", clock(*at_ms)));
    let list: Vec<String> = words.collect();
    if list.is_empty() {
        return String::new();
    }
    tr_with("Marks in the charts: {list}", &[("list", &list.join("; "))])
}

#[cfg(test)]
mod tests {
    use domain::event::Severity;

    use super::*;

    #[test]
    fn diagnoses_and_own_complete_checkpoints_are_marked_in_the_order_of_time() {
        let diagnosis = |severity, active_ms, fired_ms| RunDiagnosis {
            id: "d-1".to_owned(),
            summary: "rank 17 is late".to_owned(),
            severity,
            active_ms,
            fired_ms,
            resolved_ms: None,
        };
        let saved = CheckpointView {
            step: Some(1_200),
            complete: true,
            finished_ms: Some(3_000),
            ..CheckpointView::default()
        };
        let foreign = CheckpointView {
            foreign: true,
            ..saved.clone()
        };
        let incomplete = CheckpointView {
            complete: false,
            ..saved.clone()
        };
        let unfinished = CheckpointView {
            finished_ms: None,
            ..saved.clone()
        };
        let found = all_marks(
            &[],
            &[
                diagnosis(Severity::Critical, 4_000, None),
                diagnosis(Severity::Warning, 1_000, Some(2_000)),
            ],
            &[saved, foreign, incomplete, unfinished],
        );
        let expected = [
            (2_000, "◆ rank 17 is late"),
            (3_000, "▾ Checkpoint step 1200"),
            (4_000, "▲ rank 17 is late"),
        ];
        assert_eq!(found, expected.map(|(at_ms, words)| (at_ms, words.to_owned())));
        assert_eq!(as_text(&[]), "");
    }
}
