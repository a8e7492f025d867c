//! `--grep`: the collector searches the logs, and this command prints the matching lines.

use clap::Args;
use domain::api::runs::{LogMatch, LogMatches};

use super::Logs;
use crate::client::Client;
use crate::command::run::run_path;
use crate::failure::Failure;

/// Most lines requested, equal to the collector's own limit.
const LINES_MAX: usize = 2_000;

/// The text to search for.
#[derive(Args)]
pub(super) struct Pattern {
    /// Print only lines that contain this text.
    #[arg(long, value_name = "PATTERN")]
    grep: Option<String>,
    /// The pattern is a regular expression.
    #[arg(long, requires = "grep")]
    regex: bool,
    /// Ignore upper and lower case.
    #[arg(short, long, requires = "grep")]
    ignore_case: bool,
}

impl Pattern {
    pub(super) fn is_given(&self) -> bool {
        self.grep.is_some()
    }

    /// Returns the parameters of a request for matching lines.
    pub(super) fn parameters(&self) -> Vec<(&'static str, String)> {
        let Some(text) = &self.grep else {
            return vec![];
        };
        vec![
            ("q", text.clone()),
            ("regex", self.regex.to_string()),
            ("ignore_case", self.ignore_case.to_string()),
        ]
    }
}

/// Prints the matching lines, each with its attempt, rank and stream in front.
pub(super) async fn grep(logs: &Logs, client: &Client) -> Result<(), Failure> {
    let mut parameters = logs.pattern.parameters();
    parameters.push(("limit", LINES_MAX.to_string()));
    parameters.extend(logs.rank.map(|rank| ("rank", rank.to_string())));
    parameters.extend(logs.attempt.map(|attempt| ("attempt", attempt.to_string())));
    parameters.extend(logs.stream.map(|stream| ("stream", stream.as_str().to_owned())));
    let path = format!("{}/logs/search", run_path(&logs.run)?);
    let found: LogMatches = client.get(&path, &parameters).await?;
    for line in &found.matches {
        say!("{}", shown(line));
    }
    if found.truncated {
        eprintln!("more lines match; narrow the search with --rank, --attempt, --stream or a longer pattern");
    }
    if found.matches.is_empty() && !found.truncated {
        return Err(Failure::Failed(anyhow::anyhow!("no line matches")));
    }
    Ok(())
}

fn shown(found: &LogMatch) -> String {
    let source = &found.source;
    let writer = source
        .rank
        .map_or("launcher".to_owned(), |rank| format!("rank {rank}"));
    format!(
        "[attempt {} {writer} {}] {}",
        source.attempt, source.stream, found.line
    )
}
