//! What could not be observed inside the processes of an attempt, and what would help. A script may do things that no probe can follow; a
//! page that does not say so would present partial data as complete.
//!
//! ```text
//!  a rank's probe ──notes──▶ agent ──RankUnobserved──▶ Unobserved of the attempt ──▶ lines: ranks and text
//!  no probe at all ────────▶ agent ──RankUnobserved { silent }
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::Rank;
use crate::run::ranks::RankSet;

/// Maximum number of notes of one rank, as in the probe.
pub const NOTES_MAX: usize = 8;
/// Maximum length of a note, in characters: two lines of text.
pub const NOTE_CHARS_MAX: usize = 200;
/// Maximum number of different notes of one attempt. The ranks of one script report the same notes.
const ATTEMPT_NOTES_MAX: usize = 32;

/// What cannot be observed about one rank. The newest report of a rank replaces the previous one; a rank with nothing to report has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankUnobserved {
    /// The rank.
    pub rank: Rank,
    /// True if its probe sent nothing at all for too long, or until the rank ended successfully.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// True if the rank ended and its probe saw no step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stepless: bool,
    /// What its probe cannot observe, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What cannot be observed about an attempt's ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unobserved {
    /// Ranks whose probes sent nothing.
    #[serde(skip_serializing_if = "RankSet::is_empty")]
    silent: RankSet,
    /// Ranks without a step.
    #[serde(skip_serializing_if = "RankSet::is_empty")]
    stepless: RankSet,
    /// The notes of probes, each with its ranks, in order of arrival.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<(String, RankSet)>,
}

/// One line about what could not be observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnobservedLine {
    /// The ranks that the line is about: `0-7,9`.
    pub ranks: RankSet,
    /// What could not be observed and what would help: a sentence to be shown after the ranks.
    pub words: String,
}

impl Unobserved {
    /// Returns true if nothing is hidden.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// Applies the report of a rank.
    pub fn take(&mut self, told: &RankUnobserved) {
        let put = |set: &mut RankSet, there: bool| {
            if there {
                set.insert(told.rank)
            } else {
                set.remove(told.rank)
            }
        };
        put(&mut self.silent, told.silent);
        put(&mut self.stepless, told.stepless);
        for (_, ranks) in &mut self.notes {
            ranks.remove(told.rank);
        }
        for note in told.notes.iter().take(NOTES_MAX) {
            let note = one_line(note);
            if let Some((_, ranks)) = self.notes.iter_mut().find(|(known, _)| *known == note) {
                ranks.insert(told.rank);
            } else if self.notes.len() < ATTEMPT_NOTES_MAX {
                self.notes.push((note, RankSet::from_iter([told.rank])));
            }
        }
        self.notes.retain(|(_, ranks)| !ranks.is_empty());
    }

    /// Returns the lines for display, the ones that hide most first.
    #[must_use]
    pub fn lines(&self) -> Vec<UnobservedLine> {
        let line = |ranks: &RankSet, words: &str| {
            (!ranks.is_empty()).then(|| UnobservedLine {
                ranks: ranks.clone(),
                words: words.to_owned(),
            })
        };
        let whole = [line(&self.silent, SILENT), line(&self.stepless, STEPLESS)];
        let notes = self.notes.iter().map(|(note, ranks)| line(ranks, note));
        whole.into_iter().chain(notes).flatten().collect()
    }
}

const SILENT: &str = "not watched from inside: Python ignores PYTHONPATH there (python -I, -E or -S), or never imported torch. \
                      There are no steps, no loss and no shares of a step; log, exit and GPU are seen. \
                      Start Python without these flags to have them";
const STEPLESS: &str = "no step was seen: no torch.optim.Optimizer stepped in this process. \
                        With an optimizer of another kind, call lockstep_probe.step() where a step ends";

/// Returns the text of a process in a form that can be shown in one line.
#[must_use]
pub fn one_line(note: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    note.chars().take(NOTE_CHARS_MAX).map(plain).collect()
}

impl UnobservedLine {
    /// Returns the whole sentence: ranks and text.
    #[must_use]
    pub fn sentence(&self) -> String {
        let ranks = self.ranks.words();
        let mut letters = ranks.chars();
        let first = letters
            .next()
            .map_or_else(String::new, |first| first.to_uppercase().collect());
        format!("{first}{}: {}.", letters.as_str(), self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rank: u32, notes: &[&str]) -> RankUnobserved {
        RankUnobserved {
            rank: Rank(rank),
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
            ..RankUnobserved::default()
        }
    }

    fn sentences(unobserved: &Unobserved) -> Vec<String> {
        unobserved.lines().iter().map(UnobservedLine::sentence).collect()
    }

    #[test]
    fn ranks_that_hide_the_same_share_a_line_and_the_newest_word_counts() {
        let mut unobserved = Unobserved::default();
        for rank in [0, 2, 1] {
            unobserved.take(&told(rank, &["FSDP: waiting is not measured"]));
        }
        unobserved.take(&told(7, &["FSDP: waiting is not measured", "two\nlines"]));
        assert_eq!(
            sentences(&unobserved),
            [
                "Ranks 0–2, 7: FSDP: waiting is not measured.",
                "Rank 7: two lines."
            ]
        );
        unobserved.take(&told(7, &["two\nlines"]));
        assert_eq!(
            sentences(&unobserved),
            ["Ranks 0–2: FSDP: waiting is not measured.", "Rank 7: two lines."]
        );
        for rank in [0, 1, 2, 7] {
            unobserved.take(&told(rank, &[]));
        }
        assert!(unobserved.is_empty());
    }

    #[test]
    fn a_rank_that_was_silent_may_speak_late() {
        let mut unobserved = Unobserved::default();
        for rank in [0, 1] {
            unobserved.take(&RankUnobserved {
                silent: true,
                ..told(rank, &[])
            });
        }
        let [line] = sentences(&unobserved).try_into().expect("one line");
        assert!(
            line.starts_with("Ranks 0, 1: not watched from inside: Python ignores PYTHONPATH there"),
            "{line}"
        );
        unobserved.take(&told(1, &[]));
        unobserved.take(&RankUnobserved {
            stepless: true,
            ..told(2, &["it starts others"])
        });
        let [silent, stepless, note] = sentences(&unobserved).try_into().expect("three lines");
        assert!(silent.starts_with("Rank 0: not watched"), "{silent}");
        assert!(
            stepless.starts_with("Rank 2: no step was seen: ") && stepless.contains("lockstep_probe.step()"),
            "{stepless}"
        );
        assert_eq!(note, "Rank 2: it starts others.");
    }

    #[test]
    fn what_processes_say_is_bounded() {
        let mut unobserved = Unobserved::default();
        for rank in 0..100 {
            let notes: Vec<String> = (0..20)
                .map(|n| format!("{rank} {n} {}", "x".repeat(1_000)))
                .collect();
            let notes: Vec<&str> = notes.iter().map(String::as_str).collect();
            unobserved.take(&told(rank, &notes));
        }
        let lines = unobserved.lines();
        assert_eq!(lines.len(), ATTEMPT_NOTES_MAX);
        assert!(
            lines
                .iter()
                .all(|line| line.words.chars().count() == NOTE_CHARS_MAX)
        );
        let stored = serde_json::to_string(&unobserved).expect("JSON");
        assert_eq!(
            serde_json::from_str::<Unobserved>(&stored).expect("the same"),
            unobserved
        );
    }
}
