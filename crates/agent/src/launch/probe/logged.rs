//! Values that a script logs under its own names: one series per name, with a limited number of names.
//!
//! The names come from a training process. The probe has already rejected and counted invalid names. They are checked here again, because
//! another program may write to the socket.

use std::collections::BTreeSet;

use crate::launch::probe::record::Logged;
use crate::sample::Samples;
use crate::sample::series::series;

/// Maximum number of names per run on this node; the probe has the same limit per rank. A script with generated names must not fill the
/// store.
const NAMES_MAX: usize = 64;
/// Maximum length of a name; the probe has the same limit.
const NAME_BYTES_MAX: usize = 64;

/// The names under which a run has logged values.
#[derive(Debug, Default)]
pub(crate) struct LoggedSeries {
    names: BTreeSet<String>,
}

impl LoggedSeries {
    pub(crate) fn take(&mut self, run: &str, logged: &Logged, samples: &Samples) {
        let (at_ms, rank) = (logged.wall_ns / 1_000_000, logged.rank.to_string());
        for (name, value) in &logged.values {
            if let Some(value) = value.0
                && self.knows(name)
            {
                let labels = [("run", run), ("rank", rank.as_str()), ("name", name.as_str())];
                samples.push(&series("train_logged_value", &labels), at_ms, value);
            }
        }
    }

    /// Returns true if the name exists or can be added.
    fn knows(&mut self, name: &str) -> bool {
        if self.names.contains(name) {
            return true;
        }
        let fits = self.names.len() < NAMES_MAX && is_name(name);
        if fits {
            self.names.insert(name.to_owned());
        }
        fits
    }
}

/// Returns true if the name contains no control characters and none that are invisible or change the direction of the text around them.
fn is_name(name: &str) -> bool {
    let hides = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(hides)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::launch::probe::record::Value;

    fn names(samples: &Samples) -> BTreeSet<String> {
        let latest = samples.latest().into_iter();
        latest
            .map(|sample| sample.series.get("name").unwrap().to_owned())
            .collect()
    }

    #[test]
    fn a_run_has_so_many_names_and_no_hostile_ones() {
        let (mut logged, samples) = (LoggedSeries::default(), Samples::new());
        let take = |logged: &mut LoggedSeries, name: &str, value: Option<f64>| {
            let record = Logged {
                rank: 2,
                wall_ns: 5_000_000_000,
                values: [(name.to_owned(), Value(value))].into(),
            };
            logged.take("r", &record, &samples);
        };
        take(&mut logged, "val/acc", Some(0.5));
        for hostile in ["", "a\nb", "\u{1b}[2J", "abc\u{202e}def", &"x".repeat(65)] {
            take(&mut logged, hostile, Some(1.0));
        }
        take(&mut logged, "unknown", None);
        assert_eq!(names(&samples), ["val/acc".to_owned()].into());
        let [sample] = &samples.latest()[..] else {
            panic!("one series")
        };
        assert_eq!(
            sample.series.to_string(),
            r#"train_logged_value{name="val/acc", rank="2", run="r"}"#
        );
        for n in 0..100 {
            take(&mut logged, &format!("n{n}"), Some(1.0));
        }
        take(&mut logged, "val/acc", Some(0.7));
        assert_eq!(names(&samples).len(), NAMES_MAX);
    }
}
