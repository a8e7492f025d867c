//! Which logs there are to choose from.

use domain::api::runs::LogSource;
use domain::ident::Rank;
use leptos::prelude::*;

use super::super::known::Known;
use crate::live::Run;

/// The numbers of the attempts, oldest first; tracked.
pub(super) fn attempts(run: Known) -> Vec<u32> {
    run.with(|run| {
        let all = run.iter().flat_map(|run| &run.more.attempts);
        all.map(|attempt| attempt.attempt.0).collect()
    })
}

/// Each rank's stdout and stderr, then the launcher's, of an attempt; of the last one for a number that none has.
pub(super) fn sources(run: &Run, number: u32) -> Vec<LogSource> {
    let attempts = &run.more.attempts;
    let chosen = attempts.iter().find(|attempt| attempt.attempt.0 == number);
    let Some(attempt) = chosen.or(attempts.last()) else {
        return vec![];
    };
    let source = |node: &str, rank: Option<Rank>, stream: &str| LogSource {
        attempt: attempt.attempt,
        node: node.to_owned(),
        rank,
        stream: stream.to_owned(),
    };
    let mut all = Vec::new();
    for node in &attempt.nodes {
        for rank in &node.ranks {
            all.extend(["stdout", "stderr"].map(|stream| source(&node.node, Some(rank.rank), stream)));
        }
        all.extend(["stdout", "stderr"].map(|stream| source(&node.node, None, stream)));
    }
    all
}

/// `rank 0 stdout (node-1)`.
pub(super) fn title(source: &LogSource) -> String {
    match source.rank {
        Some(rank) => format!("rank {rank} {} ({})", source.stream, source.node),
        None => format!("launcher {} ({})", source.stream, source.node),
    }
}

/// A log in an address.
pub(super) fn query(source: &LogSource) -> String {
    let rank = source.rank.map_or(String::new(), |rank| format!("&rank={rank}"));
    let node = js_sys::encode_uri_component(&source.node);
    format!(
        "attempt={}&node={node}{rank}&stream={}",
        source.attempt, source.stream
    )
}
