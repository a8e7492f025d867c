//! The lines of the audit log: pages of it, names of people, and links.

use domain::time::TimestampMs;
use serde::Deserialize;

/// Number of lines per request.
pub(super) const PAGE_LINES: usize = 200;

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct AuditLine {
    /// When the action was requested.
    pub(super) at_ms: TimestampMs,
    /// The id of the token, or `system`.
    pub(super) who: String,
    /// The action: `run_stop`, `silence_create`, …
    pub(super) what: String,
    /// The object of the action.
    pub(super) target: String,
}

/// The fields of a [`TokenView`](domain::api::session::TokenView) that are shown.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Token {
    id: String,
    note: String,
}

/// The notes of the tokens, which usually name a person.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Names(Vec<Token>);

impl AuditLine {
    /// Returns the action in words: `run stop`.
    pub(super) fn action(&self) -> String {
        self.what.replace('_', " ")
    }

    /// Returns true if the line contains all of `words`, which are in lower case. `name` is the person.
    pub(super) fn contains(&self, name: &str, words: &str) -> bool {
        let text = format!("{name} {} {} {}", self.what, self.action(), self.target).to_lowercase();
        words.split_whitespace().all(|word| text.contains(word))
    }
}

impl Names {
    /// Returns the note and the id of a token, or only the id.
    pub(super) fn name(&self, id: &str) -> String {
        let token = self.0.iter().find(|token| token.id == id);
        match token.filter(|token| !token.note.is_empty()) {
            Some(token) => format!("{} ({id})", token.note),
            None => id.to_owned(),
        }
    }
}

/// Returns the request for the newest lines, or for those from the oldest known line on.
pub(super) fn page_path(oldest: Option<&AuditLine>) -> String {
    // Other lines may have the same time as the oldest known one, so that time is requested again.
    let before = oldest.map_or_else(String::new, |line| format!("&before_ms={}", line.at_ms + 1));
    format!("/api/audit?limit={PAGE_LINES}{before}")
}

/// Appends a page. It replaces the lines of its first time.
pub(super) fn append(lines: &mut Vec<AuditLine>, page: Vec<AuditLine>) {
    if let Some(first) = page.first() {
        lines.retain(|line| line.at_ms > first.at_ms);
    }
    lines.extend(page);
}

/// Returns the page of the run or the diagnosis that an action changed.
pub(super) fn link(what: &str, target: &str) -> Option<String> {
    let mut words = target.split(' ');
    let first = words.next().filter(|word| !word.is_empty())?;
    match what {
        // The target is the name of the run, not its id.
        "run_submit" => None,
        // The target begins with the run.
        "diagnosis_act" => words.next().map(|id| format!("/diagnoses/{id}")),
        _ if what.starts_with("diagnosis_") => Some(format!("/diagnoses/{first}")),
        _ if what.starts_with("run_") || what.starts_with("checkpoint_") => Some(format!("/runs/{first}")),
        _ if what.starts_with("silence_") => Some("/diagnoses".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at_ms: i64, target: &str) -> AuditLine {
        AuditLine {
            at_ms,
            who: "t1".into(),
            what: "run_stop".into(),
            target: target.into(),
        }
    }

    #[test]
    fn pages_join_without_gaps_and_duplicates() {
        let mut lines = vec![line(9, "a"), line(7, "b")];
        assert_eq!(page_path(None), "/api/audit?limit=200");
        assert_eq!(page_path(lines.last()), "/api/audit?limit=200&before_ms=8");
        append(&mut lines, vec![line(7, "b"), line(7, "c"), line(5, "d")]);
        let targets: String = lines.iter().map(|line| line.target.as_str()).collect();
        assert_eq!(targets, "abcd");
        append(&mut lines, vec![]);
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn a_line_is_found_by_person_action_and_target() {
        let names = Names(vec![Token {
            id: "t1".into(),
            note: "Ann".into(),
        }]);
        assert_eq!(names.name("t1"), "Ann (t1)");
        assert_eq!(names.name("system"), "system");
        let line = line(1, "llama-1");
        for (words, expected) in [
            ("", true),
            ("ann", true),
            ("t1 stop", true),
            ("run_stop llama", true),
            ("run resume", false),
        ] {
            assert_eq!(line.contains(&names.name(&line.who), words), expected, "{words}");
        }
    }

    #[test]
    fn a_line_links_to_what_was_changed() {
        for (what, target, expected) in [
            ("run_apply", "r-1 lr=0.1", Some("/runs/r-1")),
            ("checkpoint_prune", "r-1 keep_last=3", Some("/runs/r-1")),
            ("run_submit", "llama", None),
            ("diagnosis_note", "abc-1", Some("/diagnoses/abc-1")),
            ("diagnosis_act", "r-1 abc-1 restart", Some("/diagnoses/abc-1")),
            ("silence_end", "si-1", Some("/diagnoses")),
            ("token_revoke", "t2", None),
            ("store_compact", "", None),
        ] {
            assert_eq!(link(what, target).as_deref(), expected, "{what}");
        }
    }
}
