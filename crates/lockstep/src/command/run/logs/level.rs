//! `--level`: the lines of all ranks in one list, in the order in which the collector received them.

use clap::ValueEnum;
use domain::api::runs::{LogLine, LogLines, RunView};

use super::{IDLE_READS_MAX, Logs, PERIOD, get_with_retry, is_over};
use crate::client::Client;
use crate::command::run::run_path;
use crate::command::run::show::time;
use crate::failure::Failure;

/// Most lines of one request, equal to the collector's own limit.
const LINES_MAX: usize = 2_000;

/// Which lines are printed.
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Level {
    /// Errors and tracebacks.
    Error,
    /// Warnings and errors.
    Warning,
    /// All lines that have a level.
    Info,
    /// All lines.
    All,
}

impl Level {
    fn parameter(self) -> Option<&'static str> {
        match self {
            Self::Error => Some("error"),
            Self::Warning => Some("warning"),
            Self::Info => Some("info"),
            Self::All => None,
        }
    }
}

/// Prints the lines, each with its time, rank and node in front.
pub(super) async fn print(logs: &Logs, level: Level, client: &Client) -> Result<(), Failure> {
    let run = run_path(&logs.run)?;
    let path = format!("{run}/logs/lines");
    let view: RunView = client.get(&run, &[]).await?;
    let mut attempt = logs.attempt.unwrap_or(view.summary.attempt.0);
    // Without a position, the last lines are returned.
    let mut position = logs.tail.is_none().then(|| ("at_ms", "0".to_owned()));
    let (mut is_first, mut is_empty, mut idle_reads) = (true, true, 0);
    loop {
        let mut parameters = parameters(logs, level);
        parameters.push(("attempt", attempt.to_string()));
        parameters.extend(position.take());
        let mut page: LogLines = get_with_retry(client, &path, &parameters, !is_empty).await?;
        if is_first && logs.tail.is_some() {
            read_earlier(client, &path, (parameters.as_slice(), lines_max(logs)), &mut page).await?;
        }
        for line in &page.lines {
            say!("{}", shown(line));
        }
        if page.untimed_logs > 0 && is_first {
            eprintln!(
                "lines of an earlier version of the collector have no time; omit --level to print them"
            );
        }
        is_first = false;
        is_empty &= page.lines.is_empty();
        idle_reads = if page.lines.is_empty() { idle_reads + 1 } else { 0 };
        position = Some(("after", page.later));
        if !page.at_end {
            continue;
        }
        if !logs.follow {
            break;
        }
        let view: RunView = get_with_retry(client, &run, &[], true).await?;
        if is_over(&view, attempt) && idle_reads >= IDLE_READS_MAX {
            let mut numbers = view.attempts.iter().map(|view| view.attempt.0);
            let next = numbers.find(|number| *number > attempt);
            match next.filter(|_| logs.attempt.is_none()) {
                Some(next) => {
                    (attempt, idle_reads) = (next, 0);
                    position = Some(("at_ms", "0".to_owned()));
                    eprintln!("--- attempt {attempt} ---");
                }
                None if !view.summary.state.is_final() && logs.attempt.is_none() => {}
                None => break,
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
    if is_empty && logs.pattern.is_given() {
        return Err(Failure::Failed(anyhow::anyhow!("no line matches")));
    }
    if is_empty {
        eprintln!("no such lines in attempt {attempt}; --level all prints the lines of every level");
    }
    Ok(())
}

/// Reads backwards until the page has as many lines as requested: one request searches only a part of the logs.
async fn read_earlier(
    client: &Client,
    path: &str,
    (parameters, lines_max): (&[(&str, String)], usize),
    page: &mut LogLines,
) -> Result<(), Failure> {
    while page.lines.len() < lines_max
        && let Some(earlier) = page.earlier.take()
    {
        let mut before = parameters.to_vec();
        before.push(("before", earlier));
        let part: LogLines = client.get(path, &before).await?;
        put_before(page, part, lines_max);
    }
    Ok(())
}

/// Puts earlier lines before those of the page, and keeps the last ones.
fn put_before(page: &mut LogLines, part: LogLines, lines_max: usize) {
    let kept = lines_max.saturating_sub(page.lines.len());
    let skipped = part.lines.len().saturating_sub(kept);
    let mut lines: Vec<LogLine> = part.lines.into_iter().skip(skipped).collect();
    lines.append(&mut page.lines);
    page.lines = lines;
    page.earlier = part.earlier;
}

fn lines_max(logs: &Logs) -> usize {
    logs.tail.map_or(LINES_MAX, |lines| lines.clamp(1, LINES_MAX))
}

fn parameters(logs: &Logs, level: Level) -> Vec<(&'static str, String)> {
    let mut parameters = logs.pattern.parameters();
    parameters.push(("limit", lines_max(logs).to_string()));
    parameters.extend(level.parameter().map(|level| ("level", level.to_owned())));
    parameters.extend(logs.stream.map(|stream| ("stream", stream.as_str().to_owned())));
    if logs.launcher {
        parameters.push(("ranks", "launcher".to_owned()));
    }
    parameters.extend(logs.rank.map(|rank| ("ranks", rank.to_string())));
    parameters
}

fn shown(line: &LogLine) -> String {
    let source = &line.source;
    let writer = source
        .rank
        .map_or("launcher".to_owned(), |rank| format!("rank {rank}"));
    format!("{} [{writer} {}] {}", time(line.time_ms), source.node, line.text)
}

#[cfg(test)]
mod tests {
    use domain::api::runs::LogSource;
    use domain::ident::{AttemptNo, Rank};

    use super::*;

    fn line(text: &str) -> LogLine {
        LogLine {
            source: LogSource {
                attempt: AttemptNo(1),
                node: "n1".to_owned(),
                rank: Some(Rank(3)),
                stream: "stderr".to_owned(),
            },
            time_ms: 1_764_375_441_500,
            offset: 0,
            level: None,
            text: text.to_owned(),
        }
    }

    fn page(lines: &[&str], earlier: Option<&str>) -> LogLines {
        LogLines {
            attempt: AttemptNo(1),
            lines: lines.iter().map(|text| line(text)).collect(),
            earlier: earlier.map(str::to_owned),
            later: "9.9".to_owned(),
            at_end: true,
            searched_from_ms: 0,
            searched_to_ms: 0,
            untimed_logs: 0,
        }
    }

    #[test]
    fn the_last_lines_are_collected_from_several_answers() {
        let mut shown = page(&["d"], Some("2.1"));
        put_before(&mut shown, page(&[], Some("1.1")), 3);
        assert_eq!(shown, page(&["d"], Some("1.1")));
        put_before(&mut shown, page(&["a", "b", "c"], None), 3);
        assert_eq!(shown, page(&["b", "c", "d"], None));
    }

    #[test]
    fn each_line_begins_with_its_time_rank_and_node() {
        let mut line = line("a");
        assert_eq!(shown(&line), "2025-11-29T00:17:21.5Z [rank 3 n1] a");
        line.source.rank = None;
        assert_eq!(shown(&line), "2025-11-29T00:17:21.5Z [launcher n1] a");
    }
}
