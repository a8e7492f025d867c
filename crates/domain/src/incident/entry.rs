//! What people did about a diagnosis, as a list that only grows. The state of the handling is computed from that list.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::AttemptNo;
use crate::time::TimestampMs;

/// One thing that a person did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When the person did it.
    pub at_ms: TimestampMs,
    /// Id of the person's token.
    pub who: String,
    /// What the person did.
    pub what: EntryKind,
}

/// What a person did about a diagnosis; the stored form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum EntryKind {
    /// Acknowledged the diagnosis.
    Acknowledged {
        /// Why, or what happens next; may be empty.
        #[serde(default)]
        note: String,
    },
    /// Released the diagnosis: it is no longer acknowledged.
    Released {
        /// Why; may be empty.
        #[serde(default)]
        note: String,
    },
    /// Wrote a note.
    Note {
        /// Text of the note.
        note: String,
    },
    /// Marked the diagnosis as a false alarm.
    NotAProblem {
        /// Why; may be empty.
        #[serde(default)]
        note: String,
    },
    /// Silenced alerts with the same labels.
    Silenced {
        /// Id of the silence.
        silence: String,
        /// End of the silence.
        until_ms: TimestampMs,
        /// Why the silence was needed.
        #[serde(default)]
        note: String,
    },
    /// Carried out an action.
    Acted {
        /// Id of the action.
        action: String,
        /// Title of the action: what it does, in a few words.
        title: String,
        /// Run on which the action was carried out.
        run: String,
        /// Attempt that the action made or changed. The verdict is looked up with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<AttemptNo>,
        /// Number of the change in place within that attempt, from 1; 0 for the change for which the attempt was made.
        #[serde(default)]
        live: u32,
        /// Number of the prune within the run, if the action removed checkpoints.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prune: Option<u32>,
    },
}

/// State of the handling of a diagnosis by people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Handling {
    /// Who last acknowledged the diagnosis. Absent if it was released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<Mark>,
    /// Who last marked the diagnosis as a false alarm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_a_problem: Option<Mark>,
    /// Until when webhooks get no notifications about the diagnosis, if that is in the future.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silenced_until_ms: Option<TimestampMs>,
    /// Number of notes.
    pub notes: u32,
}

/// Who did something, when, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mark {
    /// Id of the token.
    pub who: String,
    /// When it was done.
    pub at_ms: TimestampMs,
    /// Why; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Returns the state of the handling after these entries, oldest first. Silences are not included, because they end by themselves.
pub fn handling<'e>(entries: impl IntoIterator<Item = &'e Entry>) -> Handling {
    let mut handling = Handling::default();
    for entry in entries {
        let mark = |note: &String| {
            Some(Mark {
                who: entry.who.clone(),
                at_ms: entry.at_ms,
                note: note.clone(),
            })
        };
        match &entry.what {
            EntryKind::Acknowledged { note } => handling.acknowledged = mark(note),
            EntryKind::Released { .. } => handling.acknowledged = None,
            EntryKind::NotAProblem { note } => handling.not_a_problem = mark(note),
            EntryKind::Note { .. } => handling.notes += 1,
            EntryKind::Silenced { .. } | EntryKind::Acted { .. } => {}
        }
    }
    handling
}

impl EntryKind {
    /// Returns the word that the API uses for this kind.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Acknowledged { .. } => "acknowledged",
            Self::Released { .. } => "released",
            Self::Note { .. } => "note",
            Self::NotAProblem { .. } => "not_a_problem",
            Self::Silenced { .. } => "silenced",
            Self::Acted { .. } => "acted",
        }
    }

    /// Returns the text of the entry; may be empty.
    #[must_use]
    pub fn note(&self) -> &str {
        match self {
            Self::Acknowledged { note }
            | Self::Released { note }
            | Self::Note { note }
            | Self::NotAProblem { note }
            | Self::Silenced { note, .. } => note,
            Self::Acted { title, .. } => title,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_who_took_it_on_owns_it() {
        let entry = |at_ms, who: &str, what| Entry {
            at_ms,
            who: who.into(),
            what,
        };
        let note = |note: &str| note.to_owned();
        let mut entries = vec![
            entry(1, "ann", EntryKind::Acknowledged { note: note("") }),
            entry(2, "bob", EntryKind::Note { note: note("fan") }),
            entry(3, "bob", EntryKind::Acknowledged { note: note("mine") }),
        ];
        let now = handling(&entries);
        let owner = now.acknowledged.expect("an owner");
        assert_eq!(
            (owner.who.as_str(), owner.at_ms, owner.note.as_str()),
            ("bob", 3, "mine")
        );
        assert_eq!(now.notes, 1);
        entries.push(entry(4, "bob", EntryKind::Released { note: note("") }));
        entries.push(entry(5, "ann", EntryKind::NotAProblem { note: note("test") }));
        let now = handling(&entries);
        assert_eq!(now.acknowledged, None);
        assert_eq!(now.not_a_problem.expect("a mark").who, "ann");
    }
}
