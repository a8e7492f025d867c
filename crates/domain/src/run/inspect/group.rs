//! Groups ranks that are at the same place in the code: one thousand ranks in an all-reduce and one that loads data become two lines.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::stacks::{Frame, Thread};
use crate::ident::Rank;

/// What a call in these files means, as text for users. The first match counts, from the innermost call outwards.
const KINDS: &[(&str, &str)] = &[
    ("/torch/distributed/checkpoint/", "a checkpoint"),
    ("/torch/serialization.py", "a checkpoint"),
    (
        "/torch/distributed/rendezvous.py",
        "waiting for the other ranks to start",
    ),
    ("/torch/utils/data/", "data loading"),
    ("/torch/autograd/", "backward pass"),
    ("/torch/optim/", "optimizer step"),
];
/// Each function in this file is a collective, shown under its own name.
const COLLECTIVES: &str = "/torch/distributed/distributed_c10d.py";
/// Frames of the probe, between the script and what it calls.
const OURS: &str = "/lockstep_probe/";
/// Paths of library code, as opposed to the user's own code.
const LIBRARIES: &[&str] = &["/site-packages/", "/dist-packages/", "/lib/python3", "<frozen "];

/// Ranks whose main threads are at the same place, or that did not answer for the same reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StackGroup {
    /// The ranks.
    pub ranks: Vec<Rank>,
    /// What they do and where, or why there is no answer.
    pub doing: String,
    /// The stack of the main thread, innermost call first; empty if there is no answer.
    pub frames: Vec<Frame>,
}

/// Groups ranks by the stack of their main thread, which is the last of their threads, or by the reason why it is missing. The largest
/// group comes first, then the one with the lowest rank.
pub fn group<'a>(ranks: impl IntoIterator<Item = (Rank, Result<&'a [Thread], &'a str>)>) -> Vec<StackGroup> {
    let mut groups: BTreeMap<Result<Vec<Frame>, &str>, Vec<Rank>> = BTreeMap::new();
    for (rank, threads) in ranks {
        let main = |threads: &[Thread]| threads.last().map(|main| without_ours(&main.frames));
        let key = threads.map(|threads| main(threads).unwrap_or_default());
        groups.entry(key).or_default().push(rank);
    }
    let mut groups: Vec<StackGroup> = groups
        .into_iter()
        .map(|(stack, mut ranks)| {
            ranks.sort_unstable();
            let doing = match &stack {
                Ok(frames) => doing(frames),
                Err(problem) => (*problem).to_owned(),
            };
            let frames = stack.unwrap_or_default();
            StackGroup { ranks, doing, frames }
        })
        .collect();
    groups.sort_by_key(|group| (usize::MAX - group.ranks.len(), group.ranks.first().copied()));
    groups
}

/// Returns the ranks as text: `rank 3`, `ranks 0-2, 5`.
#[must_use]
pub fn rank_list(ranks: &[Rank]) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for Rank(rank) in ranks {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => spans.push((*rank, *rank)),
        }
    }
    let text = |(first, last): &(u32, u32)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    let list: Vec<String> = spans.iter().map(text).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", list.join(", "))
}

fn without_ours(frames: &[Frame]) -> Vec<Frame> {
    let others = frames.iter().filter(|frame| !frame.file.contains(OURS));
    others.cloned().collect()
}

/// Returns what a stack does, and the innermost line of the user's own code: `all_reduce at train.py:57`.
fn doing(frames: &[Frame]) -> String {
    let Some(innermost) = frames.first() else {
        return "no Python code in the main thread".to_owned();
    };
    let own = frames.iter().find(|frame| !is_library(&frame.file));
    let what = frames
        .iter()
        .filter(|frame| is_library(&frame.file))
        .find_map(kind)
        .unwrap_or(&innermost.function);
    let at = own.unwrap_or(innermost);
    format!("{what} at {}:{}", file_name(&at.file), at.line)
}

fn kind(frame: &Frame) -> Option<&str> {
    if frame.file.ends_with(COLLECTIVES) {
        return Some(&frame.function);
    }
    let fits = |(file, _): &&(&str, &str)| frame.file.contains(file);
    KINDS.iter().find(fits).map(|(_, what)| *what)
}

fn is_library(file: &str) -> bool {
    LIBRARIES.iter().any(|part| file.contains(part))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TORCH: &str = "/venv/lib/python3.11/site-packages/torch";

    fn thread(frames: &[(&str, u32, &str)]) -> Thread {
        let frame = |(file, line, function): &(&str, u32, &str)| Frame {
            file: file.replace("TORCH", TORCH),
            line: *line,
            function: (*function).into(),
        };
        Thread {
            frames: frames.iter().map(frame).collect(),
            ..Thread::default()
        }
    }

    #[test]
    fn the_activity_of_a_rank_is_described_with_the_scripts_own_line() {
        for (frames, expected) in [
            (
                &[
                    ("TORCH/distributed/distributed_c10d.py", 3004, "all_reduce"),
                    ("TORCH/distributed/c10d_logger.py", 83, "wrapper"),
                    ("/data/lib/x/inject/lockstep_probe/hooks.py", 250, "collective"),
                    ("/home/a/train.py", 57, "average"),
                    ("/home/a/train.py", 80, "<module>"),
                ][..],
                "all_reduce at train.py:57",
            ),
            (
                &[
                    ("/usr/lib/python3.11/selectors.py", 415, "select"),
                    ("TORCH/utils/data/dataloader.py", 1133, "_try_get_data"),
                    ("/home/a/train.py", 60, "<module>"),
                ],
                "data loading at train.py:60",
            ),
            (
                &[
                    ("/home/a/data.py", 9, "__getitem__"),
                    ("TORCH/utils/data/_utils/fetch.py", 52, "fetch"),
                    ("/home/a/train.py", 60, "<module>"),
                ],
                "data loading at data.py:9",
            ),
            (
                &[
                    ("TORCH/autograd/graph.py", 824, "_engine_run_backward"),
                    ("/home/a/train.py", 61, "<module>"),
                ],
                "backward pass at train.py:61",
            ),
            (&[("/home/a/train.py", 5, "prepare")], "prepare at train.py:5"),
            (
                &[("/usr/lib/python3.11/socket.py", 7, "accept")],
                "accept at socket.py:7",
            ),
            (&[], "no Python code in the main thread"),
        ] {
            let threads = [thread(&[("/x/other.py", 1, "watch")]), thread(frames)];
            let [group] = &group([(Rank(0), Ok(&threads[..]))])[..] else {
                panic!("one rank, one group")
            };
            assert_eq!(group.doing, expected);
            assert!(
                group
                    .frames
                    .iter()
                    .all(|frame| !frame.file.contains("lockstep_probe"))
            );
        }
    }

    #[test]
    fn equal_stacks_are_one_group_and_the_odd_one_out_comes_last() {
        let waits = [thread(&[
            ("TORCH/distributed/distributed_c10d.py", 9, "all_reduce"),
            ("/t.py", 3, "f"),
        ])];
        let loads = [thread(&[
            ("TORCH/utils/data/dataloader.py", 7, "__next__"),
            ("/t.py", 2, "f"),
        ])];
        let slow = "did not answer within 5 s";
        let of = |rank: u32| match rank {
            0 => Ok(&loads[..]),
            4 | 7 => Err(slow),
            _ => Ok(&waits[..]),
        };
        let groups = group([6, 7, 1, 2, 0, 3, 4].map(|rank| (Rank(rank), of(rank))));
        let lines: Vec<String> = groups
            .iter()
            .map(|group| format!("{}: {}", rank_list(&group.ranks), group.doing))
            .collect();
        assert_eq!(
            lines,
            [
                "ranks 1-3, 6: all_reduce at t.py:3",
                "ranks 4, 7: did not answer within 5 s",
                "rank 0: data loading at t.py:2"
            ]
        );
        assert_eq!(group([]), []);
    }
}
