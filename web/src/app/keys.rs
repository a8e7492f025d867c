//! Maps key presses to commands, as a pure function.

use domain::time::TimestampMs;

use crate::language::marked;

/// The longest time between `g` and `o` in `g o`.
const SEQUENCE_MS: i64 = 1_500;

/// A command of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// Opens the command palette.
    Palette,
    /// Shows the list of keys.
    Help,
    /// Moves the focus to the page's filter.
    Filter,
    /// Pauses or resumes updates.
    Pause,
    /// Opens a page.
    Go(&'static str),
}

/// The second key of a sequence that starts with `g`, the page that it opens, and the page's name.
pub(super) const PAGES: [(&str, &str, &str); 5] = [
    ("o", "/", marked("Overview")),
    ("r", "/runs", marked("Runs")),
    ("d", "/diagnoses", marked("Diagnoses")),
    ("n", "/runs/new", marked("New run")),
    ("a", "/rules", marked("Rules and alerts")),
];

/// A key press.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Press<'a> {
    pub(super) key: &'a str,
    /// Control, or ⌘.
    pub(super) control: bool,
    pub(super) alt: bool,
    /// Whether a field has the focus or a dialog is open: single keys are text there.
    pub(super) typing: bool,
}

/// The keys of a sequence that is not complete.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Keys {
    /// When `g` was pressed.
    began_ms: Option<TimestampMs>,
}

impl Keys {
    /// Returns the command that this key completes. Single keys count only if `enabled`.
    pub(super) fn press(&mut self, press: Press<'_>, at_ms: TimestampMs, enabled: bool) -> Option<Command> {
        let began_ms = self.began_ms.take();
        if press.control && !press.alt && press.key.eq_ignore_ascii_case("k") {
            return Some(Command::Palette);
        }
        if press.control || press.alt || press.typing || !enabled {
            return None;
        }
        if began_ms.is_some_and(|began_ms| at_ms - began_ms <= SEQUENCE_MS) {
            let page = PAGES.iter().find(|(key, ..)| *key == press.key);
            return page.map(|(_, path, _)| Command::Go(path));
        }
        match press.key {
            "g" => {
                self.began_ms = Some(at_ms);
                None
            }
            "/" => Some(Command::Filter),
            "?" => Some(Command::Help),
            "p" => Some(Command::Pause),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str) -> Press<'_> {
        Press {
            key,
            ..Press::default()
        }
    }

    #[test]
    fn single_keys_and_sequences_are_commands() {
        let mut keys = Keys::default();
        for (press, at_ms, expected) in [
            (key("p"), 0, Some(Command::Pause)),
            (key("g"), 0, None),
            (key("o"), 1_000, Some(Command::Go("/"))),
            (key("o"), 1_100, None),
            (key("g"), 1_200, None),
            (key("r"), 1_300, Some(Command::Go("/runs"))),
            (key("g"), 2_000, None),
            (key("a"), 9_000, None),
            (key("?"), 9_100, Some(Command::Help)),
            (key("g"), 9_200, None),
            (key("x"), 9_300, None),
            (key("/"), 9_400, Some(Command::Filter)),
        ] {
            assert_eq!(keys.press(press, at_ms, true), expected, "{press:?} at {at_ms}");
        }
    }

    #[test]
    fn text_is_text_and_only_the_palette_is_left_when_keys_are_off() {
        let mut keys = Keys::default();
        let typed = Press {
            typing: true,
            ..key("p")
        };
        let palette = Press {
            control: true,
            typing: true,
            ..key("K")
        };
        assert_eq!(keys.press(typed, 0, true), None);
        assert_eq!(keys.press(key("p"), 0, false), None);
        assert_eq!(keys.press(palette, 0, false), Some(Command::Palette));
        assert_eq!(keys.press(Press { alt: true, ..palette }, 0, true), None);
    }
}
