//! How high the rows of tables are. The browser stores the choice, and `style.css` has the heights; fingers always get the highest rows.

use leptos::prelude::*;

use super::memory;
use crate::language::marked;

/// The key of the choice in the browser's storage.
const KEY: &str = "lockstep-density";
/// The attribute of the page's root that `style.css` reads.
const ATTRIBUTE: &str = "data-density";

/// A height of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Density {
    /// Many rows on a page.
    Compact,
    /// Rows with space between them.
    Comfortable,
}

impl Density {
    /// Returns the stored choice, else `Compact`.
    pub(crate) fn stored() -> Self {
        Self::of(&memory::recall(KEY).unwrap_or_default())
    }

    /// Returns the density with this word, else `Compact`.
    pub(crate) fn of(word: &str) -> Self {
        if word == Self::Comfortable.word() {
            Self::Comfortable
        } else {
            Self::Compact
        }
    }

    /// Returns the word of the stored value and of the attribute.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Comfortable => "comfortable",
        }
    }

    /// Returns the name for users in English; show it with [`tr`](crate::language::tr).
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Compact => marked("Compact"),
            Self::Comfortable => marked("Comfortable"),
        }
    }

    /// Returns the other density.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Compact => Self::Comfortable,
            Self::Comfortable => Self::Compact,
        }
    }

    /// Gives the rows of the page this height.
    pub(crate) fn apply(self) {
        if let Some(page) = document().document_element() {
            // Fails only for an invalid name of an attribute.
            let _valid = page.set_attribute(ATTRIBUTE, self.word());
        }
    }

    /// Stores this density for the next visit.
    pub(crate) fn remember(self) {
        memory::keep(KEY, self.word());
    }
}

#[cfg(test)]
mod tests {
    use super::Density;

    #[test]
    fn a_density_is_read_from_its_word() {
        for density in [Density::Compact, Density::Comfortable] {
            assert_eq!(Density::of(density.word()), density);
            assert_ne!(density.other(), density);
        }
        for unknown in ["", "Comfortable", "spacious"] {
            assert_eq!(Density::of(unknown), Density::Compact, "{unknown}");
        }
    }
}
