//! One thing that was looked at.

use std::borrow::Cow;

use serde::Serialize;

/// How it stands with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// It is there and works.
    Works,
    /// It is not there; all else works without it.
    Absent,
    /// It is there, or was asked for, and does not work.
    Fails,
}

impl State {
    /// At the start of a line, where the eye runs down.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Works => "ok",
            Self::Absent => "-",
            Self::Fails => "FAILS",
        }
    }
}

/// What was found, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// A stable word for programs.
    pub(super) name: Cow<'static, str>,
    pub(super) state: State,
    /// A sentence for people.
    pub(super) found: String,
    /// What would help, where something would.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

impl Check {
    pub(super) fn works(name: impl Into<Cow<'static, str>>, found: impl Into<String>) -> Self {
        Self::new(name, State::Works, found, None)
    }

    pub(super) fn absent(
        name: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self::new(name, State::Absent, found, Some(next.into()))
    }

    pub(super) fn fails(
        name: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self::new(name, State::Fails, found, Some(next.into()))
    }

    fn new(
        name: impl Into<Cow<'static, str>>,
        state: State,
        found: impl Into<String>,
        next: Option<String>,
    ) -> Self {
        Self {
            name: name.into(),
            state,
            found: found.into(),
            next: next.filter(|next| !next.is_empty()),
        }
    }
}

/// What tests look at.
#[cfg(test)]
pub(super) fn named(checks: &[Check]) -> Vec<(&str, State)> {
    checks.iter().map(|check| (&*check.name, check.state)).collect()
}
