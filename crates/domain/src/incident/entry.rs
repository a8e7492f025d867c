//! What people did about a diagnosis, as a list that only grows; where it stands is read off that list.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::AttemptNo;
use crate::time::TimestampMs;

/// One thing that a person did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When.
    pub at_ms: TimestampMs,
    /// The id of the token.
    pub who: String,
    /// What.
    pub what: EntryKind,
}

/// What a person did about a diagnosis; the stored form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum EntryKind {
    /// Took it on.
    Acknowledged {
        /// Why, or what is done next; may be empty.
        #[serde(default)]
        note: String,
    },
    /// Gave it back.
    Released {
        /// Why; may be empty.
        #[serde(default)]
        note: String,
    },
    /// Wrote something down.
    Note {
        /// What.
        note: String,
    },
    /// Said that it is a false alarm.
    NotAProblem {
        /// Why; may be empty.
        #[serde(default)]
        note: String,
    },
    /// Silenced alerts like it.
    Silenced {
        /// The silence.
        silence: String,
        /// Until when.
        until_ms: TimestampMs,
        /// Why.
        #[serde(default)]
        note: String,
    },
    /// Carried an action out.
    Acted {
        /// The id of the action.
        action: String,
        /// What it does, in a few words.
        title: String,
        /// The run that it was done to.
        run: String,
        /// The attempt that it made or changed, by which its verdict is found.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<AttemptNo>,
        /// Which of the changes in place of that attempt, from 1; 0 for the one it was made for.
        #[serde(default)]
        live: u32,
    },
}

/// Where the handling of a diagnosis stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Handling {
    /// Who has taken it on, last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<Mark>,
    /// Who has said that it is a false alarm, last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_a_problem: Option<Mark>,
    /// Until when webhooks are not told about it, when that is in the future.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silenced_until_ms: Option<TimestampMs>,
    /// How many notes there are.
    pub notes: u32,
}

/// Who did something, when, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mark {
    /// The id of the token.
    pub who: String,
    /// When.
    pub at_ms: TimestampMs,
    /// Why; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Where the handling stands after these entries, oldest first. Silences are looked up elsewhere: they end by themselves.
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
    /// The word that the API has for it.
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

    /// What was written; may be empty.
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
