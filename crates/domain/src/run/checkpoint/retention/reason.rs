//! Why a checkpoint is kept or removed.

use std::fmt;

/// Why a checkpoint is kept or removed. [`Reason::kind`] is its name in the API; its text is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    // === kept ===
    /// It is not in the run's checkpoint folder.
    OutsideFolder,
    /// A person pinned it.
    Pinned,
    /// A person pinned its path in another run, or an attempt of another run that has not ended resumed from it.
    PinnedByAnotherRun,
    /// An attempt of a run that has not ended resumed from it.
    InUse,
    /// At least one file is not known to be written by this run; with examples of such files.
    NotProven(Vec<String>),
    /// No node that has it also sees the last complete one, so none can check that this one remains.
    NoNode,
    /// Training would resume from it, or it was finished last.
    LastComplete,
    /// There is no complete full checkpoint of this run, so everything is kept.
    NoComplete,
    /// Its contents cannot be determined without running them.
    Uncertain,
    /// An attempt could not resume from it.
    Doubted,
    /// It was saved after the loss had begun to diverge.
    Diverged,
    /// It is newer than the last complete one.
    NewerThanLastComplete,
    /// It is being written.
    Writing,
    /// The run has no retention rule.
    KeepsAll,
    /// It has the lowest validation loss.
    Best,
    /// Its step is a multiple of this number.
    Every(u64),
    /// It is one of this many last full checkpoints.
    OneOfLast(u32),
    /// It contains only the model, and is between full checkpoints that are kept.
    ModelOnlyBetweenKept,
    /// It contains only the model, and its name contains no step, for example a script's `best.pth`.
    NoStep,
    /// A kept checkpoint has symbolic links into it.
    Needed,
    // === removed ===
    /// It is incomplete and older than a complete one; with what is missing, if known.
    Incomplete(Option<String>),
    /// It contains only the model, and is older than the full checkpoints that are kept.
    OldModelOnly,
    /// It is older than this many last full checkpoints.
    OlderThanLast(u32),
    /// No rule of the run keeps it.
    NoRule,
}

impl Reason {
    /// Returns true if it is a reason to remove a checkpoint.
    #[must_use]
    pub fn removes(&self) -> bool {
        matches!(
            self,
            Self::Incomplete(_) | Self::OldModelOnly | Self::OlderThanLast(_) | Self::NoRule
        )
    }

    /// Returns the name in the API.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::OutsideFolder => "outside_folder",
            Self::Pinned => "pinned",
            Self::PinnedByAnotherRun => "pinned_by_another_run",
            Self::InUse => "in_use",
            Self::NotProven(_) => "not_proven",
            Self::NoNode => "no_node",
            Self::LastComplete => "last_complete",
            Self::NoComplete => "no_complete",
            Self::Uncertain => "uncertain",
            Self::Doubted => "doubted",
            Self::Diverged => "diverged",
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
            Self::PinnedByAnotherRun => "pinned by another run, or another run resumed from it",
            Self::InUse => "the run resumed from it",
            Self::NotProven(files) => return write_not_proven(f, files),
            Self::NoNode => "no node that has it also sees the last complete one, which must remain",
            Self::LastComplete => "the last complete one",
            Self::NoComplete => "there is no complete full checkpoint of this run",
            Self::Uncertain => "its contents cannot be determined",
            Self::Doubted => "an attempt could not resume from it; it is kept so that you can examine it",
            Self::Diverged => {
                "saved after the loss had begun to diverge; it is kept so that you can examine it"
            }
            Self::NewerThanLastComplete => "newer than the last complete one",
            Self::Writing => "it may still be being written",
            Self::KeepsAll => "the run keeps all checkpoints",
            Self::Best => "the best by validation loss",
            Self::Every(every) => return write!(f, "every {every} steps"),
            Self::OneOfLast(last) => return write!(f, "one of the last {last}"),
            Self::ModelOnlyBetweenKept => "model-only, between full ones that are kept",
            Self::NoStep => "model-only, without a step in its name",
            Self::Needed => "a kept checkpoint links to its files",
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
