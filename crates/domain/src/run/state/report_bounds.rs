//! Reports of bounded size: an agent must not send more than a collector accepts.

use std::borrow::Cow;

use crate::run::provenance::Provenance;
use crate::run::state::RankExit;
use crate::run::state::protocol::{NodeReport, Prepared};
use crate::text::{truncate_end, truncate_start};

/// Maximum size of the JSON of one report, in bytes. Collectors of protocol 1 drop reports of more than 64 KiB; `[redacted]` in place of
/// short secrets may lengthen a report after it was measured.
const REPORT_BYTES_MAX: usize = 48 << 10;
/// Maximum size of one text in a report that is too large, in bytes. A report has at most four texts.
const TEXT_BYTES_MAX: usize = 8 << 10;
/// Maximum size of a list of names in a report that is too large, in bytes.
const NAMES_BYTES_MAX: usize = 12 << 10;

impl NodeReport {
    /// Returns the report, with shortened texts and lists if it is larger than a collector accepts. Reports of checkpoints are split
    /// instead, see [`split`](crate::run::checkpoint::split()).
    #[must_use]
    pub fn bounded(&self) -> Cow<'_, Self> {
        let bytes = serde_json::to_string(self).map_or(0, |json| json.len());
        if bytes <= REPORT_BYTES_MAX {
            return Cow::Borrowed(self);
        }
        let mut report = self.clone();
        report.shorten();
        Cow::Owned(report)
    }

    fn shorten(&mut self) {
        match self {
            Self::Refused { reason: text, .. }
            | Self::PrepareFailed { message: text }
            | Self::StartFailed { message: text } => truncate_end(text, TEXT_BYTES_MAX),
            Self::ShimStarted { command, kept_by, .. } => {
                truncate_end(command, TEXT_BYTES_MAX);
                truncate_end(kept_by, TEXT_BYTES_MAX);
            }
            Self::Watched(watched) => {
                for text in [&mut watched.name, &mut watched.program, &mut watched.command] {
                    truncate_end(text, TEXT_BYTES_MAX);
                }
            }
            Self::Measured(measured) => truncate_end(&mut measured.problem, TEXT_BYTES_MAX),
            Self::KnobAnswered(answer) => {
                for text in [&mut answer.knob, &mut answer.value, &mut answer.detail] {
                    truncate_end(text, TEXT_BYTES_MAX);
                }
            }
            Self::RankExited(exit) => exit.shorten(),
            Self::Ended(end) => truncate_end(&mut end.message, TEXT_BYTES_MAX),
            Self::Prepared(found) => found.shorten(),
            // These are bounded by their own limits.
            Self::Accepted { .. }
            | Self::Looked { .. }
            | Self::RankStarted { .. }
            | Self::FirstStep { .. }
            | Self::Checkpoints(_)
            | Self::RankStalled { .. }
            | Self::RankRecovered { .. }
            | Self::StopStep { .. }
            | Self::RankMesh(_)
            | Self::RankUnobserved(_) => {}
        }
    }
}

impl RankExit {
    fn shorten(&mut self) {
        for text in [&mut self.error_type, &mut self.message].into_iter().flatten() {
            truncate_end(text, TEXT_BYTES_MAX);
        }
        if let Some(traceback) = &mut self.traceback {
            truncate_start(traceback, TEXT_BYTES_MAX);
        }
    }
}

impl Prepared {
    fn shorten(&mut self) {
        shorten_names(&mut self.doubtful_imports);
        if let Some(Provenance { packages, .. }) = &mut self.provenance {
            shorten_names(packages);
        }
    }
}

/// Keeps the first names that fit. The last entry then says how many names were left out.
fn shorten_names(names: &mut Vec<String>) {
    let mut bytes = 0;
    let fits = |name: &&String| {
        bytes += name.len() + 3;
        bytes <= NAMES_BYTES_MAX
    };
    let kept = names.iter().take_while(fits).count();
    let left_out = names.len() - kept;
    if left_out > 0 {
        names.truncate(kept);
        names.push(format!("… and {left_out} more"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::state::NodeEnd;

    #[test]
    fn reports_that_are_too_large_are_shortened_and_others_are_not() {
        let long = || "word ".repeat(40_000);
        let small = NodeReport::Looked { seen: true };
        assert!(matches!(small.bounded(), Cow::Borrowed(_)));
        let packages = (0..5_000).map(|n| format!("package-{n}==1.0")).collect();
        let provenance = Provenance {
            packages,
            ..Provenance::default()
        };
        for report in [
            NodeReport::Refused {
                command: 3,
                reason: long(),
            },
            NodeReport::PrepareFailed { message: long() },
            NodeReport::Ended(NodeEnd {
                code: Some(1),
                message: long(),
                ..NodeEnd::default()
            }),
            NodeReport::RankExited(RankExit {
                message: Some(long()),
                traceback: Some(format!("{}RuntimeError: last line", long())),
                ..RankExit::default()
            }),
            NodeReport::Prepared(Prepared {
                provenance: Some(provenance),
                ..Prepared::default()
            }),
        ] {
            let json = serde_json::to_string(&report.bounded()).expect("it is plain data");
            assert!(json.len() <= REPORT_BYTES_MAX, "{} bytes", json.len());
            let says = ["bytes are left out", "… and "];
            assert!(says.iter().any(|note| json.contains(note)), "{json:.200}");
            assert_eq!(json.contains("traceback"), json.contains("last line"));
        }
    }
}
