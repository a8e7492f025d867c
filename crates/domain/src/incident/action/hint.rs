//! Actions that a rule suggests in its annotation `actions`.

use crate::run::knob::known;

/// Name of the annotation. Its value is a list of words separated by commas, the most likely action first.
pub const ACTIONS_ANNOTATION: &str = "actions";

/// An action that a rule suggests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// `exclude_node`: exclude the node that is the culprit.
    ExcludeNode,
    /// `restart`: start an attempt from the last complete checkpoint.
    Restart,
    /// `prune_checkpoints`: free disk space.
    PruneCheckpoints,
    /// `trace`: record a trace of the culprit.
    Trace,
    /// Name of a knob: set it to a value computed from measurements.
    Knob(&'static str),
}

impl Hint {
    /// Parses the annotation.
    ///
    /// # Errors
    /// Returns the first word that is neither an action nor a knob.
    pub fn read(annotation: &str) -> Result<Vec<Self>, String> {
        let words = annotation
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty());
        let hint = |word: &str| match word {
            "exclude_node" => Ok(Self::ExcludeNode),
            "restart" => Ok(Self::Restart),
            "prune_checkpoints" => Ok(Self::PruneCheckpoints),
            "trace" => Ok(Self::Trace),
            name => known(name)
                .map(|knob| Self::Knob(knob.name))
                .map_err(|_| format!("{name:?} is neither an action nor a knob")),
        };
        words.map(hint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_actions_and_knobs() {
        assert_eq!(
            Hint::read("num_workers, exclude_node,restart"),
            Ok(vec![Hint::Knob("num_workers"), Hint::ExcludeNode, Hint::Restart])
        );
        assert_eq!(Hint::read(""), Ok(vec![]));
        assert!(Hint::read("reboot").is_err());
    }
}
