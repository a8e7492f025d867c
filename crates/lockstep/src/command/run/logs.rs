//! `lockstep run logs RUN`: one rank or all, followed over attempts, searched.
//!
//! What a script prints must not steer the terminal it is read on: colours pass where there is a terminal, all else that begins
//! with an escape does not ([`domain::run::log_text`]). A progress bar is drawn anew where there is a terminal; elsewhere its
//! last state is the line.

mod grep;
mod paper;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, ValueEnum};
use domain::api::runs::{AttemptView, LogPiece, RunView};
use tokio::time::Instant;

use self::grep::Pattern;
use self::paper::Paper;
use super::run_path;
use crate::client::Client;
use crate::failure::Failure;

const PERIOD: Duration = Duration::from_millis(500);
/// A collector that restarts is waited for this long.
const PATIENCE: Duration = Duration::from_secs(120);
/// The end of a run is told at once, the last of its logs comes behind it: so often nothing new must have come.
const QUIET_LOOKS: u32 = 3;
/// The first look back from the end for the last lines, and the last.
const TAIL_BYTES_MIN: u64 = 64 << 10;
const TAIL_BYTES_MAX: u64 = 16 << 20;

/// Print a run's output.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep run logs RUN                          rank 0 of the last attempt
  lockstep run logs -f --all-ranks RUN           all ranks, until the run ends, restarts included
  lockstep run logs --tail 50 --stream stderr --rank 3 RUN
  lockstep run logs --grep 'out of memory' -i RUN
  lockstep run logs --grep 'loss.*(nan|inf)' --regex --attempt 2 RUN

Lines have no times of their own, so there is no --since; --grep finds a time stamp that the script prints.")]
pub(super) struct Logs {
    /// The run's id.
    run: String,
    /// Go on printing until the run ends; into the next attempt when it is restarted.
    #[arg(short, long, conflicts_with = "grep")]
    follow: bool,
    /// Only this rank. Default: rank 0; with --grep, all.
    #[arg(long, conflicts_with_all = ["launcher", "all_ranks"])]
    rank: Option<u32>,
    /// All ranks, each line behind its rank.
    #[arg(long, conflicts_with = "launcher")]
    all_ranks: bool,
    /// The output of torchrun itself instead of a rank's.
    #[arg(long, conflicts_with = "grep")]
    launcher: bool,
    /// Which attempt. Default: the last; with --grep, all.
    #[arg(long)]
    attempt: Option<u32>,
    /// Which output. Default: stdout; with --grep, both.
    #[arg(long, value_enum)]
    stream: Option<Stream>,
    /// Begin with the last so many lines of each log.
    #[arg(long, value_name = "LINES", conflicts_with = "grep")]
    tail: Option<usize>,
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

/// Whose output: a rank's, or the launcher's on the first node.
type Who = Option<u32>;

impl Logs {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        if self.pattern.is_given() {
            return grep::grep(&self, client).await;
        }
        let path = run_path(&self.run)?;
        let mut reading = Reading {
            client,
            path,
            stream: self.stream.unwrap_or(Stream::Stdout),
            paper: Paper::new(self.all_ranks),
            offsets: BTreeMap::new(),
        };
        let mut view = reading.view().await?;
        let last = view.summary.attempt.0;
        let mut attempt = self.attempt.unwrap_or(last);
        if let Some(lines) = self.tail {
            for who in self.who(&view, attempt) {
                reading.skip_to_tail(attempt, who, lines).await?;
            }
        }
        let mut quiet = 0;
        loop {
            let mut fresh = false;
            for who in self.who(&view, attempt) {
                fresh |= reading.read_on(attempt, who).await?;
            }
            quiet = if fresh { 0 } else { quiet + 1 };
            let over = is_over(&view, attempt);
            if !self.follow || (over && quiet >= QUIET_LOOKS) {
                reading.paper.finish();
                let next = view
                    .attempts
                    .iter()
                    .map(|view| view.attempt.0)
                    .find(|n| *n > attempt);
                match next.filter(|_| self.follow && self.attempt.is_none()) {
                    Some(next) => {
                        (attempt, quiet) = (next, 0);
                        eprintln!("--- attempt {attempt} ---");
                    }
                    None if self.follow && !view.summary.state.is_final() && self.attempt.is_none() => {}
                    None => {
                        if reading.offsets.values().all(|offset| *offset == 0) {
                            eprintln!("{}", self.nothing(attempt));
                        }
                        return Ok(());
                    }
                }
            }
            tokio::time::sleep(PERIOD).await;
            view = reading.view().await?;
        }
    }

    /// An empty log is no dead end.
    fn nothing(&self, attempt: u32) -> String {
        let elsewhere = match (self.launcher, self.stream) {
            (_, Some(Stream::Stderr)) => "leave out --stream stderr, or ask for another rank",
            (true, _) => "--stream stderr shows its warnings and errors",
            (false, _) => "--stream stderr shows warnings and errors, --launcher what torchrun itself says",
        };
        format!("nothing was printed there in attempt {attempt}; {elsewhere}")
    }

    fn who(&self, view: &RunView, attempt: u32) -> Vec<Who> {
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

/// Whether an attempt will write no more.
fn is_over(view: &RunView, attempt: u32) -> bool {
    let ended = view
        .attempts
        .iter()
        .any(|view| view.attempt.0 == attempt && view.ended_ms.is_some());
    ended || view.summary.state.is_final()
}

/// How far each log has been read, and where it is printed.
struct Reading<'a> {
    client: &'a Client,
    path: String,
    stream: Stream,
    paper: Paper,
    offsets: BTreeMap<(u32, Who), u64>,
}

impl Reading<'_> {
    async fn view(&self) -> Result<RunView, Failure> {
        self.patiently(&self.path, &[]).await
    }

    /// Prints what is new of a log; whether there was anything.
    async fn read_on(&mut self, attempt: u32, who: Who) -> Result<bool, Failure> {
        let mut fresh = false;
        loop {
            let offset = self.offsets.get(&(attempt, who)).copied().unwrap_or(0);
            let piece = self.piece(attempt, who, offset, None).await?;
            self.paper.write(who, &piece.text);
            self.offsets.insert((attempt, who), piece.next_offset);
            fresh |= piece.next_offset > offset;
            if piece.next_offset >= piece.length || piece.next_offset == offset {
                return Ok(fresh);
            }
        }
    }

    /// Prints the last lines of a log; what is read on comes behind them.
    async fn skip_to_tail(&mut self, attempt: u32, who: Who, lines: usize) -> Result<(), Failure> {
        let length = self.piece(attempt, who, u64::MAX, Some(1)).await?.length;
        let mut back = TAIL_BYTES_MIN;
        loop {
            let from = length.saturating_sub(back);
            let text = self.text(attempt, who, from, length).await?;
            let newlines = text.trim_end_matches('\n').matches('\n').count();
            if newlines >= lines || from == 0 || back >= TAIL_BYTES_MAX {
                self.paper.write(who, last_lines(&text, lines));
                self.offsets.insert((attempt, who), length);
                return Ok(());
            }
            back *= 4;
        }
    }

    async fn text(&self, attempt: u32, who: Who, from: u64, until: u64) -> Result<String, Failure> {
        let (mut text, mut at) = (String::new(), from);
        while at < until {
            let piece = self.piece(attempt, who, at, Some(until - at)).await?;
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
        who: Who,
        offset: u64,
        limit: Option<u64>,
    ) -> Result<LogPiece, Failure> {
        let mut parameters = vec![
            ("stream", self.stream.as_str().to_owned()),
            ("offset", offset.to_string()),
            ("attempt", attempt.to_string()),
        ];
        parameters.extend(who.map(|rank| ("rank", rank.to_string())));
        parameters.extend(limit.map(|limit| ("limit", limit.to_string())));
        self.patiently(&format!("{}/logs", self.path), &parameters).await
    }

    async fn patiently<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[(&str, String)],
    ) -> Result<T, Failure> {
        let began = Instant::now();
        loop {
            match self.client.get(path, parameters).await {
                // Only what was being read already is waited for: a wrong address is said at once.
                Err(Failure::Unreachable(_)) if !self.offsets.is_empty() && began.elapsed() < PATIENCE => {
                    tokio::time::sleep(PERIOD).await;
                }
                answer => return answer,
            }
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
