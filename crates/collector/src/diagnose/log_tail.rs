//! The last log lines of a rank, as evidence of an alert that names it. The node has already removed the values of the run's secrets.

use std::time::Duration;

use domain::api::alerts::Evidence;
use domain::api::runs::{LogSource, RunView};
use domain::ident::{Rank, RunId};
use domain::run::log_text;
use domain::series::Labels;

use super::engine::Engine;

/// The annotation with which a rule requests them.
pub(super) const ANNOTATION: &str = "log_tail";
const TITLE: &str = "Last log lines";
/// Maximum number of bytes read from the end of a log.
const BYTES_MAX: u64 = 4 << 10;
const LINES_MAX: usize = 10;
/// Exceptions are written to stderr. A script that prints its own error may write it to stdout.
const STREAMS: [&str; 2] = ["stderr", "stdout"];
/// A node sends reports before logs, so the last lines may arrive a moment after the end that they explain.
const LOOKS_MAX: u32 = 4;
const LOOKS_APART: Duration = Duration::from_millis(250);

/// Returns the last lines of the rank that the labels name, or of the node's launcher. `None` if the labels name neither, or if nothing was
/// written.
pub(super) async fn evidence(engine: &Engine, labels: &Labels) -> Option<Evidence> {
    let run = RunId::new(labels.get("run")?).ok()?;
    let view = engine.runs.stored_view(&run).await.ok()?;
    for look in 0..LOOKS_MAX {
        if look > 0 {
            tokio::time::sleep(LOOKS_APART).await;
        }
        for stream in STREAMS {
            let source = source(&view, labels, stream)?;
            let lines = last_lines(engine, &run, &source).await;
            if !lines.is_empty() {
                return Some(Evidence {
                    title: format!("{TITLE} ({stream})"),
                    query: String::new(),
                    values: Vec::new(),
                    lines,
                });
            }
        }
    }
    None
}

fn source(view: &RunView, labels: &Labels, stream: &str) -> Option<LogSource> {
    Some(LogSource {
        attempt: view.attempts.last()?.attempt,
        node: labels.get("node")?.to_owned(),
        rank: labels.get("rank").and_then(|rank| rank.parse().ok()).map(Rank),
        stream: stream.to_owned(),
    })
}

async fn last_lines(engine: &Engine, run: &RunId, source: &LogSource) -> Vec<String> {
    let logs = &engine.runs.logs;
    let Ok(length) = logs.read(run, source, 0, 0).await.map(|piece| piece.length) else {
        return Vec::new();
    };
    let offset = length.saturating_sub(BYTES_MAX);
    let Ok(piece) = logs.read(run, source, offset, BYTES_MAX).await else {
        return Vec::new();
    };
    tail(&piece.text, offset > 0)
}

/// Returns the last lines of a text, without escape sequences. The first line is left out if its beginning may be missing.
fn tail(text: &str, is_cut: bool) -> Vec<String> {
    let plain = log_text::plain(text);
    let lines: Vec<&str> = plain
        .lines()
        .skip(usize::from(is_cut))
        .filter(|line| !line.trim().is_empty())
        .collect();
    let first = lines.len().saturating_sub(LINES_MAX);
    lines[first..].iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_has_whole_lines_without_colours_and_few_of_them() {
        assert_eq!(
            tail("half a line\n\u{1b}[31mValueError\u{1b}[0m: no\n\n", true),
            ["ValueError: no"]
        );
        let many: String = (0..100).map(|line| format!("line {line}\n")).collect();
        let kept = tail(&many, false);
        assert_eq!(
            (kept.len(), kept[0].as_str(), kept[9].as_str()),
            (10, "line 90", "line 99")
        );
        assert!(tail("", false).is_empty());
    }
}
