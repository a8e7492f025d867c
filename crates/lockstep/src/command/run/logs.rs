//! `lockstep run logs RUN`: prints the logs of one rank or all ranks, one by one or in one list, follows them across attempts, or searches
//! them.
//!
//! The output of a script must not control the terminal that shows it. On a terminal, colours pass and all other escape sequences are
//! removed ([`domain::run::log_text`]). A progress bar is redrawn on a terminal; in other outputs, only its last state is printed.

mod grep;
mod level;
mod printer;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, ValueEnum};
use domain::api::runs::{AttemptView, LogPiece, RunView};
use tokio::time::Instant;

use self::grep::Pattern;
use self::level::Level;
use self::printer::LogPrinter;
use super::run_path;
use crate::client::Client;
use crate::failure::Failure;

const PERIOD: Duration = Duration::from_millis(500);
/// How long to wait for a collector that restarts.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// The end of a run is reported at once, but its last log lines arrive later. The command exits after this many reads without new text.
const IDLE_READS_MAX: u32 = 3;
/// How many bytes before the end of a log to read first when looking for the last lines; see also [`TAIL_BYTES_MAX`].
const TAIL_BYTES_MIN: u64 = 64 << 10;
const TAIL_BYTES_MAX: u64 = 16 << 20;

/// Print the output of a run.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep run logs RUN                          rank 0 of the last attempt
  lockstep run logs -f --all-ranks RUN           all ranks, until the run ends, restarts included
  lockstep run logs --tail 50 --stream stderr --rank 3 RUN
  lockstep run logs --grep 'out of memory' -i RUN
  lockstep run logs --grep 'loss.*(nan|inf)' --regex --attempt 2 RUN
  lockstep run logs --level warning -f RUN       warnings and errors of all ranks by time

There is no --since. With --level, each line begins with the time at which the collector received it.")]
pub(super) struct Logs {
    /// ID of the run.
    run: String,
    /// Print new output until the run ends, including later attempts after a restart.
    #[arg(short, long, conflicts_with = "grep")]
    follow: bool,
    /// Print only this rank. Default: rank 0; with --grep or --level, all ranks.
    #[arg(long, conflicts_with_all = ["launcher", "all_ranks"])]
    rank: Option<u32>,
    /// Print all ranks, each line with its rank in front.
    #[arg(long, conflicts_with = "launcher")]
    all_ranks: bool,
    /// Print the output of torchrun itself instead of a rank's output.
    #[arg(long, conflicts_with = "grep")]
    launcher: bool,
    /// Number of the attempt. Default: the last attempt; with --grep, all attempts.
    #[arg(long)]
    attempt: Option<u32>,
    /// Which output to print. Default: stdout; with --grep or --level, both.
    #[arg(long, value_enum)]
    stream: Option<Stream>,
    /// Print only the last LINES lines of each log, and then what follows. With --level: of the list, at most 2000.
    #[arg(long, value_name = "LINES", conflicts_with = "grep")]
    tail: Option<usize>,
    /// Print the lines of at least this level, of all ranks and launchers in one list by time. Without this option, logs are printed one by
    /// one. The level is read from the beginning of a line; many lines have none.
    #[arg(long, value_enum)]
    level: Option<Level>,
    #[command(flatten)]
    pattern: Pattern,
}

#[derive(Clone, Copy, ValueEnum)]
enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// The writer of a log: a rank, or `None` for the launcher on the first node.
type LogWriter = Option<u32>;

impl Logs {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        if let Some(level) = self.level {
            return level::print(&self, level, client).await;
        }
        if self.pattern.is_given() {
            return grep::grep(&self, client).await;
        }
        let path = run_path(&self.run)?;
        let mut reader = LogReader {
            client,
            path,
            stream: self.stream.unwrap_or(Stream::Stdout),
            printer: LogPrinter::new(self.all_ranks),
            offsets: BTreeMap::new(),
        };
        let mut view = reader.view().await?;
        let last = view.summary.attempt.0;
        let mut attempt = self.attempt.unwrap_or(last);
        if let Some(lines) = self.tail {
            for writer in self.writers(&view, attempt) {
                reader.skip_to_tail(attempt, writer, lines).await?;
            }
        }
        let mut idle_reads = 0;
        loop {
            let mut fresh = false;
            for writer in self.writers(&view, attempt) {
                fresh |= reader.read_on(attempt, writer).await?;
            }
            idle_reads = if fresh { 0 } else { idle_reads + 1 };
            let over = is_over(&view, attempt);
            if !self.follow || (over && idle_reads >= IDLE_READS_MAX) {
                reader.printer.finish();
                let next = view
                    .attempts
                    .iter()
                    .map(|view| view.attempt.0)
                    .find(|n| *n > attempt);
                match next.filter(|_| self.follow && self.attempt.is_none()) {
                    Some(next) => {
                        (attempt, idle_reads) = (next, 0);
                        eprintln!("--- attempt {attempt} ---");
                    }
                    None if self.follow && !view.summary.state.is_final() && self.attempt.is_none() => {}
                    None => {
                        if reader.offsets.values().all(|offset| *offset == 0) {
                            eprintln!("{}", self.empty_log_hint(attempt));
                        }
                        return Ok(());
                    }
                }
            }
            tokio::time::sleep(PERIOD).await;
            view = reader.view().await?;
        }
    }

    /// Returns a hint where else to look if the log is empty.
    fn empty_log_hint(&self, attempt: u32) -> String {
        let elsewhere = match (self.launcher, self.stream) {
            (_, Some(Stream::Stderr)) => "omit --stream stderr, or choose another rank",
            (true, _) => "--stream stderr shows its warnings and errors",
            (false, _) => "--stream stderr shows warnings and errors, --launcher shows torchrun's output",
        };
        format!("no output in attempt {attempt}; {elsewhere}")
    }

    fn writers(&self, view: &RunView, attempt: u32) -> Vec<LogWriter> {
        if self.launcher {
            return vec![None];
        }
        if !self.all_ranks {
            return vec![Some(self.rank.unwrap_or(0))];
        }
        let attempts = view.attempts.iter().filter(|view| view.attempt.0 == attempt);
        let nodes = attempts.flat_map(|attempt: &AttemptView| &attempt.nodes);
        nodes
            .flat_map(|node| &node.ranks)
            .map(|rank| Some(rank.rank.0))
            .collect()
    }
}

/// Returns true if an attempt writes no more output.
fn is_over(view: &RunView, attempt: u32) -> bool {
    let ended = view
        .attempts
        .iter()
        .any(|view| view.attempt.0 == attempt && view.ended_ms.is_some());
    ended || view.summary.state.is_final()
}

/// The position in each log, and the output it is printed to.
struct LogReader<'a> {
    client: &'a Client,
    path: String,
    stream: Stream,
    printer: LogPrinter,
    offsets: BTreeMap<(u32, LogWriter), u64>,
}

impl LogReader<'_> {
    async fn view(&self) -> Result<RunView, Failure> {
        self.get_with_retry(&self.path, &[]).await
    }

    /// Prints the new text of a log. Returns true if there was any.
    async fn read_on(&mut self, attempt: u32, writer: LogWriter) -> Result<bool, Failure> {
        let mut fresh = false;
        loop {
            let offset = self.offsets.get(&(attempt, writer)).copied().unwrap_or(0);
            let piece = self.piece(attempt, writer, offset, None).await?;
            self.printer.write(writer, &piece.text);
            self.offsets.insert((attempt, writer), piece.next_offset);
            fresh |= piece.next_offset > offset;
            if piece.next_offset >= piece.length || piece.next_offset == offset {
                return Ok(fresh);
            }
        }
    }

    /// Prints the last lines of a log, and sets its position to the end.
    async fn skip_to_tail(&mut self, attempt: u32, writer: LogWriter, lines: usize) -> Result<(), Failure> {
        let length = self.piece(attempt, writer, u64::MAX, Some(1)).await?.length;
        let mut back = TAIL_BYTES_MIN;
        loop {
            let from = length.saturating_sub(back);
            let text = self.text(attempt, writer, from, length).await?;
            let newlines = text.trim_end_matches('\n').matches('\n').count();
            if newlines >= lines || from == 0 || back >= TAIL_BYTES_MAX {
                self.printer.write(writer, last_lines(&text, lines));
                self.offsets.insert((attempt, writer), length);
                return Ok(());
            }
            back *= 4;
        }
    }

    async fn text(&self, attempt: u32, writer: LogWriter, from: u64, until: u64) -> Result<String, Failure> {
        let (mut text, mut at) = (String::new(), from);
        while at < until {
            let piece = self.piece(attempt, writer, at, Some(until - at)).await?;
            if piece.next_offset <= at {
                break;
            }
            at = piece.next_offset;
            text.push_str(&piece.text);
        }
        Ok(text)
    }

    async fn piece(
        &self,
        attempt: u32,
        writer: LogWriter,
        offset: u64,
        limit: Option<u64>,
    ) -> Result<LogPiece, Failure> {
        let mut parameters = vec![
            ("stream", self.stream.as_str().to_owned()),
            ("offset", offset.to_string()),
            ("attempt", attempt.to_string()),
        ];
        parameters.extend(writer.map(|rank| ("rank", rank.to_string())));
        parameters.extend(limit.map(|limit| ("limit", limit.to_string())));
        self.get_with_retry(&format!("{}/logs", self.path), &parameters)
            .await
    }

    async fn get_with_retry<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[(&str, String)],
    ) -> Result<T, Failure> {
        get_with_retry(self.client, path, parameters, !self.offsets.is_empty()).await
    }
}

/// `GET path`. Waits for a collector that restarts only if something has been read before: a wrong address must fail at once.
async fn get_with_retry<T: serde::de::DeserializeOwned>(
    client: &Client,
    path: &str,
    parameters: &[(&str, String)],
    has_read: bool,
) -> Result<T, Failure> {
    let began = Instant::now();
    loop {
        match client.get(path, parameters).await {
            Err(Failure::Unreachable(_)) if has_read && began.elapsed() < RECONNECT_TIMEOUT => {
                tokio::time::sleep(PERIOD).await;
            }
            answer => return answer,
        }
    }
}

fn last_lines(text: &str, lines: usize) -> &str {
    if lines == 0 {
        return "";
    }
    let body = text.strip_suffix('\n').unwrap_or(text);
    let start = body
        .rmatch_indices('\n')
        .nth(lines - 1)
        .map_or(0, |(at, _)| at + 1);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole_and_as_many_as_asked_for() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last_lines("a\nb\nc", 2), "b\nc");
        assert_eq!(last_lines("a\n", 5), "a\n");
        assert_eq!((last_lines("a\nb", 0), last_lines("", 3)), ("", ""));
    }
}
