//! The logs to choose from.

use domain::api::runs::LogSource;
use domain::ident::Rank;
use leptos::prelude::*;

use super::super::run_signal::RunSignal;
use crate::language::tr_with;
use crate::live::Run;

/// Returns the numbers of the attempts, oldest first; tracked.
pub(super) fn attempts(run: RunSignal) -> Vec<u32> {
    run.with(|run| {
        let all = run.iter().flat_map(|run| &run.more.attempts);
        all.map(|attempt| attempt.attempt.0).collect()
    })
}

/// Returns stdout and stderr of each rank, then those of the launcher, for an attempt; for the last attempt if the number is unknown.
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

/// Returns the first log of a rank, or the first of all if the rank is unknown.
pub(super) fn first_of(all: &[LogSource], rank: Option<&str>) -> Option<LogSource> {
    let rank = rank.and_then(|rank| rank.parse().ok()).map(Rank);
    let of_rank = all.iter().find(|source| rank.is_some() && source.rank == rank);
    of_rank.or(all.first()).cloned()
}

/// Returns `rank 0 stdout (node-1)`.
pub(super) fn title(source: &LogSource) -> String {
    match source.rank {
        Some(rank) => format!("rank {rank} {} ({})", source.stream, source.node),
        None => tr_with(
            "launcher {stream} ({node})",
            &[("stream", &source.stream), ("node", &source.node)],
        ),
    }
}

/// Returns the address parameters of a log.
pub(super) fn query(source: &LogSource) -> String {
    let rank = source.rank.map_or(String::new(), |rank| format!("&rank={rank}"));
    let node = js_sys::encode_uri_component(&source.node);
    format!(
        "attempt={}&node={node}{rank}&stream={}",
        source.attempt, source.stream
    )
}

#[cfg(test)]
mod tests {
    use domain::ident::AttemptNo;

    use super::*;

    #[test]
    fn the_log_of_a_rank_is_its_first_one() {
        let source = |rank: Option<u32>, stream: &str| LogSource {
            attempt: AttemptNo(1),
            node: "a".to_owned(),
            rank: rank.map(Rank),
            stream: stream.to_owned(),
        };
        let all = [
            source(Some(0), "stdout"),
            source(Some(1), "stdout"),
            source(Some(1), "stderr"),
            source(None, "stdout"),
        ];
        for (rank, expected) in [
            (Some("1"), Some(&all[1])),
            (Some("7"), Some(&all[0])),
            (Some("x"), Some(&all[0])),
            (None, Some(&all[0])),
        ] {
            assert_eq!(first_of(&all, rank).as_ref(), expected, "{rank:?}");
        }
        assert_eq!(first_of(&[], Some("1")), None);
    }
}
