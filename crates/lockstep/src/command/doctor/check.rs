//! The result of one check.

use std::borrow::Cow;

use serde::Serialize;

/// The state of the checked part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Present and works.
    Works,
    /// Not present. Everything else works without it.
    Absent,
    /// Present, or requested by the user, and does not work.
    Fails,
}

impl State {
    /// The word in the first column of the table.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Works => "ok",
            Self::Absent => "-",
            Self::Fails => "FAILS",
        }
    }
}

/// What a check found, and what the user can do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// A stable name for programs.
    pub(super) name: Cow<'static, str>,
    pub(super) state: State,
    /// A sentence for people.
    pub(super) found: String,
    /// The next step, if there is one.
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

/// The name and state of each check, for tests.
#[cfg(test)]
pub(super) fn named(checks: &[Check]) -> Vec<(&str, State)> {
    checks.iter().map(|check| (&*check.name, check.state)).collect()
}
