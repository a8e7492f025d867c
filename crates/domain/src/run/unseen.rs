//! What of an attempt could not be seen from inside its processes, and what would help: a script may do what no probe can follow, and a page
//! that says nothing of it would show less than there is as if it were all.
//!
//! ```text
//!  a rank's probe ──notes──▶ agent ──RankUnseen──▶ Unseen of the attempt ──▶ lines: ranks and words
//!  no probe at all ────────▶ agent ──RankUnseen { silent }
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::Rank;
use crate::run::ranks::RankSet;

/// Of a rank, as the probe has them.
pub const NOTES_MAX: usize = 8;
/// Of a note: two lines of text.
pub const NOTE_CHARS_MAX: usize = 200;
/// Different notes of one attempt: ranks of one script say the same.
const ATTEMPT_NOTES_MAX: usize = 32;

/// What of one rank cannot be seen. The newest word of a rank counts; of a rank that hides nothing there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankUnseen {
    /// The rank.
    pub rank: Rank,
    /// Its probe has said nothing at all, for so long, or to its good end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// It ended, and its probe has seen no step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stepless: bool,
    /// What its probe says it cannot see, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What of an attempt's ranks cannot be seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unseen {
    /// Ranks of which no probe has spoken.
    #[serde(skip_serializing_if = "RankSet::is_empty")]
    silent: RankSet,
    /// Ranks without a step.
    #[serde(skip_serializing_if = "RankSet::is_empty")]
    stepless: RankSet,
    /// What probes say, each note with its ranks, in the order in which they came.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<(String, RankSet)>,
}

/// A line of what could not be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnseenLine {
    /// Whom it is about: `0-7,9`.
    pub ranks: RankSet,
    /// What, and what would help: a sentence that goes with its ranks before it.
    pub words: String,
}

impl Unseen {
    /// Whether nothing is hidden.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// Takes the word of a rank in.
    pub fn take(&mut self, told: &RankUnseen) {
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

    /// For people, what hides most first.
    #[must_use]
    pub fn lines(&self) -> Vec<UnseenLine> {
        let line = |ranks: &RankSet, words: &str| {
            (!ranks.is_empty()).then(|| UnseenLine {
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

/// What a process says, as it can be shown in one line.
#[must_use]
pub fn one_line(note: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    note.chars().take(NOTE_CHARS_MAX).map(plain).collect()
}

impl UnseenLine {
    /// The whole sentence.
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

    fn told(rank: u32, notes: &[&str]) -> RankUnseen {
        RankUnseen {
            rank: Rank(rank),
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
            ..RankUnseen::default()
        }
    }

    fn sentences(unseen: &Unseen) -> Vec<String> {
        unseen.lines().iter().map(UnseenLine::sentence).collect()
    }

    #[test]
    fn ranks_that_hide_the_same_share_a_line_and_the_newest_word_counts() {
        let mut unseen = Unseen::default();
        for rank in [0, 2, 1] {
            unseen.take(&told(rank, &["FSDP: waiting is not measured"]));
        }
        unseen.take(&told(7, &["FSDP: waiting is not measured", "two\nlines"]));
        assert_eq!(
            sentences(&unseen),
            [
                "Ranks 0–2, 7: FSDP: waiting is not measured.",
                "Rank 7: two lines."
            ]
        );
        unseen.take(&told(7, &["two\nlines"]));
        assert_eq!(
            sentences(&unseen),
            ["Ranks 0–2: FSDP: waiting is not measured.", "Rank 7: two lines."]
        );
        for rank in [0, 1, 2, 7] {
            unseen.take(&told(rank, &[]));
        }
        assert!(unseen.is_empty());
    }

    #[test]
    fn a_rank_that_was_silent_may_speak_late() {
        let mut unseen = Unseen::default();
        for rank in [0, 1] {
            unseen.take(&RankUnseen {
                silent: true,
                ..told(rank, &[])
            });
        }
        let [line] = sentences(&unseen).try_into().expect("one line");
        assert!(
            line.starts_with("Ranks 0, 1: not watched from inside: Python ignores PYTHONPATH there"),
            "{line}"
        );
        unseen.take(&told(1, &[]));
        unseen.take(&RankUnseen {
            stepless: true,
            ..told(2, &["it starts others"])
        });
        let [silent, stepless, note] = sentences(&unseen).try_into().expect("three lines");
        assert!(silent.starts_with("Rank 0: not watched"), "{silent}");
        assert!(
            stepless.starts_with("Rank 2: no step was seen: ") && stepless.contains("lockstep_probe.step()"),
            "{stepless}"
        );
        assert_eq!(note, "Rank 2: it starts others.");
    }

    #[test]
    fn what_processes_say_is_bounded() {
        let mut unseen = Unseen::default();
        for rank in 0..100 {
            let notes: Vec<String> = (0..20)
                .map(|n| format!("{rank} {n} {}", "x".repeat(1_000)))
                .collect();
            let notes: Vec<&str> = notes.iter().map(String::as_str).collect();
            unseen.take(&told(rank, &notes));
        }
        let lines = unseen.lines();
        assert_eq!(lines.len(), ATTEMPT_NOTES_MAX);
        assert!(
            lines
                .iter()
                .all(|line| line.words.chars().count() == NOTE_CHARS_MAX)
        );
        let stored = serde_json::to_string(&unseen).expect("JSON");
        assert_eq!(serde_json::from_str::<Unseen>(&stored).expect("the same"), unseen);
    }
}
