//! An attempt in the address: `RUN@ATTEMPT`, or `RUN` for the last attempt of a run.

use std::fmt;

/// The choice for one side of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// The id of the run.
    pub(super) run: String,
    /// The number of the attempt. `None`: the last one.
    pub(super) attempt: Option<u32>,
}

impl Choice {
    /// Reads a choice. Text behind `@` that is not a number belongs to the id, so that the collector's error shows all of it.
    pub(super) fn read(text: &str) -> Option<Self> {
        let numbered = text.rsplit_once('@').and_then(|(run, attempt)| {
            Some(Self {
                run: run.to_owned(),
                attempt: Some(attempt.parse().ok()?),
            })
        });
        let last = || Self {
            run: text.to_owned(),
            attempt: None,
        };
        (!text.is_empty()).then(|| numbered.unwrap_or_else(last))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.attempt {
            Some(attempt) => write!(f, "{}@{attempt}", self.run),
            None => f.write_str(&self.run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_as_it_was_written() {
        for (text, run, attempt) in [
            ("ddp-1", "ddp-1", None),
            ("ddp-1@3", "ddp-1", Some(3)),
            ("ddp-1@last", "ddp-1@last", None),
        ] {
            let choice = Choice {
                run: run.to_owned(),
                attempt,
            };
            assert_eq!(choice.to_string(), text);
            assert_eq!(Choice::read(text), Some(choice));
        }
        assert_eq!(Choice::read(""), None);
    }
}
