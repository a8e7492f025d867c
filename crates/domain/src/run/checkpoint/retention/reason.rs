//! Why a checkpoint is kept or removed.

use std::fmt;

/// A reason. [`Reason::kind`] names it in the API; its text is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    // === kept ===
    /// It does not lie in the run's checkpoint folder.
    OutsideFolder,
    /// A person pinned it.
    Pinned,
    /// A person pinned its path in another run.
    PinnedByAnotherRun,
    /// An attempt of a run that has not ended went on from it.
    InUse,
    /// At least one file is not known to be written by this run: some of those files.
    NotProven(Vec<String>),
    /// Training would go on from it, or it was finished last.
    LastComplete,
    /// There is no complete full checkpoint of this run, so everything is kept.
    NoComplete,
    /// Whether it is complete cannot be told without running what is in it.
    Uncertain,
    /// An attempt could not go on from it.
    Doubted,
    /// It is newer than the last complete one.
    NewerThanLastComplete,
    /// It is being written.
    Writing,
    /// The run has no rule for what to keep.
    KeepsAll,
    /// It has the lowest validation loss.
    Best,
    /// Its step is a multiple of this.
    Every(u64),
    /// It is one of the last full ones, of this number.
    OneOfLast(u32),
    /// It holds the model only, and lies between full ones that are kept.
    ModelOnlyBetweenKept,
    /// It holds the model only, and its name tells no step: a script's `best.pth`.
    NoStep,
    /// A kept checkpoint has symbolic links into it.
    Needed,
    // === removed ===
    /// It is incomplete and older than a complete one: what is missing, where that is known.
    Incomplete(Option<String>),
    /// It holds the model only, and is older than the full ones that are kept.
    OldModelOnly,
    /// It is older than the last full ones, of this number.
    OlderThanLast(u32),
    /// None of the run's rules keeps it.
    NoRule,
}

impl Reason {
    /// Whether it is a reason to remove a checkpoint.
    #[must_use]
    pub fn removes(&self) -> bool {
        matches!(
            self,
            Self::Incomplete(_) | Self::OldModelOnly | Self::OlderThanLast(_) | Self::NoRule
        )
    }

    /// Its name in the API.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::OutsideFolder => "outside_folder",
            Self::Pinned => "pinned",
            Self::PinnedByAnotherRun => "pinned_by_another_run",
            Self::InUse => "in_use",
            Self::NotProven(_) => "not_proven",
            Self::LastComplete => "last_complete",
            Self::NoComplete => "no_complete",
            Self::Uncertain => "uncertain",
            Self::Doubted => "doubted",
            Self::NewerThanLastComplete => "newer_than_last_complete",
            Self::Writing => "writing",
            Self::KeepsAll => "keeps_all",
            Self::Best => "best",
            Self::Every(_) => "every",
            Self::OneOfLast(_) => "one_of_last",
            Self::ModelOnlyBetweenKept => "model_only_between_kept",
            Self::NoStep => "no_step",
            Self::Needed => "needed",
            Self::Incomplete(_) => "incomplete",
            Self::OldModelOnly => "old_model_only",
            Self::OlderThanLast(_) => "older_than_last",
            Self::NoRule => "no_rule",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::OutsideFolder => "it is outside of the run's checkpoint folder",
            Self::Pinned => "pinned",
            Self::PinnedByAnotherRun => "pinned by another run",
            Self::InUse => "the run goes on from it",
            Self::NotProven(files) => return write_not_proven(f, files),
            Self::LastComplete => "the last complete one",
            Self::NoComplete => "there is no complete full checkpoint of this run",
            Self::Uncertain => "it cannot be told what is in it",
            Self::Doubted => "an attempt could not go on from it: it is kept for a person to look at",
            Self::NewerThanLastComplete => "newer than the last complete one",
            Self::Writing => "it may still be in writing",
            Self::KeepsAll => "the run keeps all",
            Self::Best => "the best by validation loss",
            Self::Every(every) => return write!(f, "every {every} steps"),
            Self::OneOfLast(last) => return write!(f, "one of the last {last}"),
            Self::ModelOnlyBetweenKept => "model-only, between full ones that are kept",
            Self::NoStep => "model-only, without a step in its name",
            Self::Needed => "files of one that is kept are in it",
            Self::Incomplete(Some(problem)) => {
                return write!(f, "incomplete, and older than a complete one: {problem}");
            }
            Self::Incomplete(None) => "incomplete, and older than a complete one",
            Self::OldModelOnly => "model-only, and older than the full ones that are kept",
            Self::OlderThanLast(last) => return write!(f, "older than the last {last}"),
            Self::NoRule => "no rule keeps it",
        };
        f.write_str(text)
    }
}

fn write_not_proven(f: &mut fmt::Formatter<'_>, files: &[String]) -> fmt::Result {
    f.write_str("not proven to be this run's")?;
    let names = files.iter().filter(|name| !name.is_empty());
    for (n, name) in names.enumerate() {
        write!(f, "{} {name}", if n == 0 { ":" } else { "," })?;
    }
    Ok(())
}
