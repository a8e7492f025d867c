//! Why an attempt was made, in the reader's language.

use crate::language::{marked, tr};

/// The causes that are not made of values. The collector sends them in English.
const CAUSES: [&str; 7] = [
    marked("submitted"),
    marked("knob applied"),
    marked("knob reverted"),
    marked("knob reverted by itself"),
    marked("larger micro_batch tried by itself"),
    marked("node excluded by a person"),
    marked("restarted by a person"),
];

/// Returns the cause in the reader's language. A cause with values, such as a restart after an error, stays as the collector wrote it.
pub(super) fn cause(english: &str) -> &str {
    match CAUSES.into_iter().find(|known| *known == english) {
        Some(known) => tr(known),
        None => english,
    }
}

#[cfg(test)]
mod tests {
    use domain::run::knob::Change;

    use super::*;

    #[test]
    fn the_causes_of_changes_are_known() {
        let change = Change::default();
        let restart = Change {
            restart: true,
            ..change.clone()
        };
        let exclusion = Change {
            without: vec!["node-7".into()],
            ..restart.clone()
        };
        for change in [change, restart, exclusion] {
            assert!(CAUSES.contains(&change.cause()), "{}", change.cause());
        }
        assert_eq!(cause("restart after exit code 1"), "restart after exit code 1");
    }
}
