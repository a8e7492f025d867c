//! Splits a report of checkpoints that is too large for one message into several reports with the same meaning.
//!
//! ```text
//! complete report of 200 checkpoints ─▶ partial: 1–80 │ partial: 81–160 │ partial: 161–200, gone, listed = hashes of all 200
//! ```
//! Each part repeats folder, free space and failure. A part may arrive without the others (the connection broke, or a newer report replaced
//! them), so each part is true on its own. Only the last part says what is gone.

use serde::Serialize;

use crate::run::checkpoint::report::path_hash;
use crate::run::checkpoint::{Checkpoint, CheckpointOnNode, CheckpointReport};
use crate::text::truncate_end;

/// Maximum size of the JSON of one part, in bytes. Collectors of protocol 1 drop reports of more than 64 KiB; `[redacted]` in place of
/// short secrets may lengthen a part after it was measured.
pub const PART_BYTES_MAX: usize = 48 << 10;
/// Maximum size of the JSON of one checkpoint, in bytes, so that it fits into a part together with what each part repeats. 1,024 usual
/// names of shards take 20 KiB.
const CHECKPOINT_BYTES_MAX: usize = 32 << 10;
/// Maximum size of an error text in the report, in bytes.
const TEXT_BYTES_MAX: usize = 2 << 10;

/// Returns true if [`split`] returns the report as one part.
#[must_use]
pub fn fits_one_part(report: &CheckpointReport) -> bool {
    json_bytes(report) <= PART_BYTES_MAX
}

/// Returns the report with bounded texts and lists of shards, as one part if it fits, otherwise as several. A checkpoint that needs the
/// files of hundreds of others may make its part larger than [`PART_BYTES_MAX`]: those names are never left out, because retention depends
/// on them.
#[must_use]
pub fn split(mut report: CheckpointReport) -> Vec<CheckpointReport> {
    bound_texts(&mut report);
    report.checkpoints.iter_mut().for_each(bound_shards);
    if fits_one_part(&report) {
        return vec![report];
    }
    let listed = (!report.partial).then(|| {
        let paths = report.checkpoints.iter().map(|one| path_hash(&one.path));
        paths.collect::<Vec<_>>()
    });
    let (checkpoints, gone) = (
        std::mem::take(&mut report.checkpoints),
        std::mem::take(&mut report.gone),
    );
    report.partial = true;
    let mut parts = Parts::new(report);
    for checkpoint in checkpoints {
        parts.make_room(json_bytes(&checkpoint));
        parts.last.checkpoints.push(checkpoint);
    }
    // From here on, all checkpoints have been named, so no existing checkpoint can be taken for gone.
    for path in gone {
        parts.make_room(json_bytes(&path));
        parts.last.gone.push(path);
    }
    if let Some(listed) = listed {
        parts.make_room(json_bytes(&listed));
        parts.last.listed = Some(listed);
    }
    parts.finish()
}

struct Parts {
    /// The fields that each part repeats.
    head: CheckpointReport,
    head_bytes: usize,
    done: Vec<CheckpointReport>,
    last: CheckpointReport,
    last_bytes: usize,
}

impl Parts {
    fn new(head: CheckpointReport) -> Self {
        // The names and brackets of the fields that are empty in the head.
        const FIELDS_BYTES: usize = 64;
        let head_bytes = json_bytes(&head) + FIELDS_BYTES;
        Self {
            last: head.clone(),
            last_bytes: head_bytes,
            done: Vec::new(),
            head,
            head_bytes,
        }
    }

    /// Begins another part if this many more bytes do not fit into the last one.
    fn make_room(&mut self, bytes: usize) {
        let with_comma = bytes + 1;
        if self.last_bytes + with_comma > PART_BYTES_MAX && self.last_bytes > self.head_bytes {
            self.done
                .push(std::mem::replace(&mut self.last, self.head.clone()));
            self.last_bytes = self.head_bytes;
        }
        self.last_bytes += with_comma;
    }

    fn finish(mut self) -> Vec<CheckpointReport> {
        self.done.push(self.last);
        self.done
    }
}

fn bound_texts(report: &mut CheckpointReport) {
    let problem = report.problem.as_mut();
    let error = report.failure.as_mut().map(|failure| &mut failure.error);
    let views = report
        .checkpoints
        .iter_mut()
        .flat_map(|one| one.seen.values_mut());
    let reasons = views.filter_map(|view| view.not_removed.as_mut());
    for text in problem.into_iter().chain(error).chain(reasons) {
        truncate_end(text, TEXT_BYTES_MAX);
    }
}

/// Leaves out names of shards that do not fit, and counts the missing ones among them.
fn bound_shards(checkpoint: &mut Checkpoint) {
    if json_bytes(checkpoint) <= CHECKPOINT_BYTES_MAX {
        return;
    }
    let views = checkpoint.seen.len().max(1);
    for view in checkpoint.seen.values_mut() {
        view.bound_shards(CHECKPOINT_BYTES_MAX / 2 / views);
    }
}

impl CheckpointOnNode {
    /// Existing shards whose names are left out only make a checkpoint look less complete than it is, so they are not counted.
    fn bound_shards(&mut self, bytes_max: usize) {
        let left_out = shorten(&mut self.missing, bytes_max);
        self.missing_more += left_out as u64;
        shorten(&mut self.parts, bytes_max);
    }
}

/// Keeps the first names that fit. Returns the number of names left out.
fn shorten(names: &mut Vec<String>, bytes_max: usize) -> usize {
    let mut bytes = 0;
    let fits = |name: &&String| {
        bytes += json_bytes(*name) + 1;
        bytes <= bytes_max
    };
    let kept = names.iter().take_while(fits).count();
    let left_out = names.len() - kept;
    names.truncate(kept);
    left_out
}

fn json_bytes(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(0, |json| json.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Before everything that is reported.
    const SUBMITTED_MS: i64 = 0;
    use crate::run::checkpoint::merge::merge;
    use crate::run::checkpoint::resume_point;

    fn view(mark: &str) -> CheckpointOnNode {
        CheckpointOnNode {
            mark: mark.into(),
            complete: true,
            ..CheckpointOnNode::default()
        }
    }

    fn checkpoint(folder: &str, step: u64, view: CheckpointOnNode) -> Checkpoint {
        Checkpoint {
            path: format!("{folder}/step-{step}"),
            step: Some(step),
            complete: view.complete,
            seen: BTreeMap::from([("a".to_owned(), view)]),
            ..Checkpoint::default()
        }
    }

    fn of(checkpoints: Vec<Checkpoint>) -> CheckpointReport {
        CheckpointReport {
            folder: Some("/c".into()),
            checkpoints,
            ..CheckpointReport::default()
        }
    }

    #[test]
    fn a_report_that_fits_stays_as_it_is() {
        let report = of(vec![checkpoint("/c", 1, view("m"))]);
        assert_eq!(split(report.clone()), [report]);
    }

    /// Was dropped and acknowledged before: 200 checkpoints below a long path.
    #[test]
    fn two_hundred_checkpoints_of_a_long_path_come_in_parts_that_say_the_same() {
        let folder = format!("/{}", "long-name/".repeat(60));
        let all: Vec<_> = (0..200)
            .rev()
            .map(|step| checkpoint(&folder, step, view(&step.to_string())))
            .collect();
        let whole = of(all);
        assert!(json_bytes(&whole) > 64 << 10);
        let parts = split(whole.clone());
        assert!(parts.len() > 1);
        for part in &parts {
            assert!(json_bytes(part) <= PART_BYTES_MAX, "{}", json_bytes(part));
            assert!(part.partial && part.folder == whole.folder);
        }
        let gone = checkpoint(&folder, 777, view("gone"));
        let mut by_parts = vec![gone.clone()];
        parts
            .iter()
            .for_each(|part| merge(&mut by_parts, "a", part, SUBMITTED_MS));
        let mut at_once = vec![gone];
        merge(&mut at_once, "a", &whole, SUBMITTED_MS);
        assert_eq!(by_parts, at_once, "also that step 777 is gone");
        assert_eq!(resume_point(&by_parts).and_then(|at| at.step), Some(199));
    }

    /// Was dropped and acknowledged before: shards with long names, all of them missing.
    #[test]
    fn missing_shards_beyond_the_bound_are_counted_and_cannot_be_found_elsewhere() {
        let name = |n: usize| format!("{}-{n:04}.distcp", "x".repeat(150));
        let torn = CheckpointOnNode {
            complete: false,
            missing: (0..512).map(name).collect(),
            problem: Some("shard x and 511 more are missing".into()),
            ..view("disk-a")
        };
        let parts = split(of(vec![checkpoint("/c", 1, torn)]));
        assert_eq!(parts.len(), 1);
        let bounded = &parts[0].checkpoints[0].seen["a"];
        assert!(bounded.missing.len() > 50 && bounded.missing_more > 0);
        assert_eq!(bounded.missing.len() as u64 + bounded.missing_more, 512);
        // The other disk has all shards that are named, but it is not known to have the others.
        let other = CheckpointOnNode {
            complete: false,
            parts: bounded.missing.clone(),
            ..view("disk-b")
        };
        let mut seen_by_b = checkpoint("/c", 1, other.clone());
        seen_by_b.seen = BTreeMap::from([("b".to_owned(), other)]);
        let mut known = Vec::new();
        merge(&mut known, "a", &parts[0], SUBMITTED_MS);
        merge(&mut known, "b", &of(vec![seen_by_b]), SUBMITTED_MS);
        assert!(!known[0].complete);
    }

    #[test]
    fn a_list_of_what_is_gone_and_long_texts_are_bounded_too() {
        let report = CheckpointReport {
            partial: true,
            gone: (0..300)
                .map(|n| format!("/{}/{n}", "deep/".repeat(100)))
                .collect(),
            problem: Some("p".repeat(1 << 20)),
            ..of(vec![])
        };
        let parts = split(report.clone());
        assert!(parts.iter().all(|part| json_bytes(part) <= PART_BYTES_MAX));
        let gone: Vec<_> = parts.iter().flat_map(|part| part.gone.clone()).collect();
        assert_eq!(gone, report.gone);
        assert!(parts.iter().all(|part| part.listed.is_none()));
    }

    proptest! {
        /// Whatever was known before, the parts have the same effect as the whole report.
        #[test]
        fn parts_say_what_the_whole_says(
            known in proptest::collection::btree_set(0_u64..120, 0..60),
            told in proptest::collection::btree_set(0_u64..120, 0..60),
            deep in 1_usize..220,
            partial in any::<bool>(),
        ) {
            let folder = format!("/{}", "sub/".repeat(deep));
            let named = |step: &u64| checkpoint(&folder, *step, view(&step.to_string()));
            let gone = known.difference(&told).map(|step| named(step).path);
            let whole = CheckpointReport {
                partial,
                gone: if partial { gone.collect() } else { Vec::new() },
                ..of(told.iter().map(named).collect())
            };
            let mut at_once = Vec::new();
            merge(&mut at_once, "a", &of(known.iter().map(named).collect()), SUBMITTED_MS);
            let mut by_parts = at_once.clone();
            merge(&mut at_once, "a", &whole, SUBMITTED_MS);
            for part in split(whole) {
                prop_assert!(json_bytes(&part) <= PART_BYTES_MAX);
                merge(&mut by_parts, "a", &part, SUBMITTED_MS);
            }
            prop_assert_eq!(by_parts, at_once);
        }
    }
}
