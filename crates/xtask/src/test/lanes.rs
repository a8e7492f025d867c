//! Two lanes of test files that run at once, for two cores.

use std::path::PathBuf;
use std::thread;

use anyhow::Result;

use crate::test::table::Count;

/// The number of lanes.
pub(super) const LANES: usize = 2;

/// Deals the files out to the lanes in turn.
pub(super) fn dealt(files: &[PathBuf]) -> Vec<Vec<PathBuf>> {
    let lane = |first: usize| -> Vec<PathBuf> { files.iter().skip(first).step_by(LANES).cloned().collect() };
    (0..LANES).map(lane).collect()
}

/// Runs the lanes at once, each with its number, which begins at 1. Returns the sum of their counts.
pub(super) fn run(
    lanes: &[Vec<PathBuf>],
    run_lane: impl Fn(usize, &[PathBuf]) -> Result<Count> + Sync,
) -> Result<Count> {
    let run_lane = &run_lane;
    thread::scope(|scope| {
        let running: Vec<_> = lanes
            .iter()
            .zip(1..)
            .map(|(files, lane)| scope.spawn(move || run_lane(lane, files)))
            .collect();
        let counts = running.into_iter().map(|lane| {
            lane.join()
                .expect("a lane says what went wrong and does not panic")
        });
        counts
            .collect::<Vec<_>>()
            .into_iter()
            .try_fold(Count::default(), |sum, count| Ok(sum.plus(count?)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use anyhow::bail;

    use super::*;

    fn files(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn each_file_is_in_one_lane() {
        let lanes = dealt(&files(&["a", "b", "c"]));
        assert_eq!(lanes, [files(&["a", "c"]), files(&["b"])]);
    }

    #[test]
    fn the_counts_of_all_lanes_are_added_and_an_error_of_one_is_an_error() {
        let lanes = dealt(&files(&["a", "b", "c"]));
        let count = |lane: usize, files: &[PathBuf]| Count {
            passed: files.len() as u64,
            skipped: lane as u64,
            ..Count::default()
        };
        let sum = run(&lanes, |lane, files| Ok(count(lane, files))).unwrap();
        assert_eq!((sum.passed, sum.skipped), (3, 3));
        let failed = run(&lanes, |lane, files| match lane {
            1 => Ok(count(lane, files)),
            _ => bail!("it could not start"),
        });
        assert_eq!(failed.unwrap_err().to_string(), "it could not start");
    }
}
