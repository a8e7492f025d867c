//! Two lanes that run test files at once, for two cores.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Result;

use crate::test::table::Count;

/// The number of lanes.
const LANES: usize = 2;

/// Runs each file in one of the lanes, which have numbers from 1 on. A lane takes the next file when it has ended one, so that both end at
/// about the same time. Returns the sum of the counts.
pub(super) fn run(
    files: &[PathBuf],
    run_file: impl Fn(usize, &Path) -> Result<Count> + Sync,
) -> Result<Count> {
    let next = AtomicUsize::new(0);
    let run_lane = |lane: usize| -> Result<Count> {
        let mut sum = Count::default();
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            sum = sum.plus(run_file(lane, file)?);
        }
        Ok(sum)
    };
    let run_lane = &run_lane;
    thread::scope(|scope| {
        let running: Vec<_> = (1..=LANES)
            .map(|lane| scope.spawn(move || run_lane(lane)))
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

    use std::sync::{Condvar, Mutex};

    use anyhow::bail;

    use super::*;

    fn files(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn each_file_runs_once_and_the_counts_are_added() {
        let ran = Mutex::new(Vec::new());
        let sum = run(&files(&["a", "b", "c"]), |_, file| {
            ran.lock().unwrap().push(file.to_owned());
            Ok(Count::one_passed())
        });
        assert_eq!(sum.unwrap().passed, 3);
        let mut ran = ran.into_inner().unwrap();
        ran.sort();
        assert_eq!(ran, files(&["a", "b", "c"]));
    }

    #[test]
    fn a_lane_that_has_ended_a_file_takes_the_next_one() {
        // The first file ends after all others, which the other lane runs meanwhile.
        let (others, changed) = (Mutex::new(Vec::new()), Condvar::new());
        let sum = run(&files(&["long", "a", "b", "c"]), |lane, file| {
            let mut others = others.lock().unwrap();
            if file == Path::new("long") {
                let _all = changed.wait_while(others, |others| others.len() < 3).unwrap();
            } else {
                others.push(lane);
                changed.notify_all();
            }
            Ok(Count::one_passed())
        });
        assert_eq!(sum.unwrap().passed, 4);
        let others = others.into_inner().unwrap();
        assert!(others.windows(2).all(|pair| pair[0] == pair[1]), "{others:?}");
    }

    #[test]
    fn an_error_of_one_file_is_an_error() {
        let failed = run(&files(&["a", "b", "c"]), |_, file| {
            if file == Path::new("b") {
                bail!("it could not start");
            }
            Ok(Count::default())
        });
        assert_eq!(failed.unwrap_err().to_string(), "it could not start");
    }
}
