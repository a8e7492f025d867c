//! Work on the blocking pool, on as many cores as it is worth.

use std::sync::{Arc, Mutex};

use domain::series::SelectError;

use super::lock;

/// Things a core takes at once: often enough to end together, seldom enough that nobody waits for the queue.
const TAKEN_AT_ONCE: usize = 8;

/// Does one thing on the blocking pool.
pub(crate) async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, SelectError> + Send + 'static,
) -> Result<R, SelectError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| SelectError::Store(Box::new(error)))?
}

/// Does the same with each thing, on at most `cores` cores and at least one; the answers come in no order. The first failure
/// stops all.
pub(crate) async fn on_cores<T: Send + 'static, R: Send + 'static>(
    things: Vec<T>,
    cores: usize,
    work: impl Fn(T) -> Result<R, SelectError> + Send + Sync + 'static,
) -> Result<Vec<R>, SelectError> {
    if things.is_empty() {
        return Ok(Vec::new());
    }
    let there_are = std::thread::available_parallelism().map_or(1, usize::from);
    let queue = Arc::new((Mutex::new(things.into_iter()), work));
    let worker = || {
        let queue = Arc::clone(&queue);
        tokio::task::spawn_blocking(move || work_off(&queue.0, &queue.1))
    };
    let workers: Vec<_> = (0..cores.clamp(1, there_are)).map(|_| worker()).collect();
    let mut done = Vec::new();
    for worker in workers {
        let some = worker
            .await
            .map_err(|error| SelectError::Store(Box::new(error)))??;
        if done.is_empty() {
            done = some;
        } else {
            done.extend(some);
        }
    }
    Ok(done)
}

fn work_off<T, R>(
    queue: &Mutex<std::vec::IntoIter<T>>,
    work: &impl Fn(T) -> Result<R, SelectError>,
) -> Result<Vec<R>, SelectError> {
    let mut done = Vec::new();
    loop {
        let some: Vec<T> = lock(queue).by_ref().take(TAKEN_AT_ONCE).collect();
        if some.is_empty() {
            return Ok(done);
        }
        for thing in some {
            let one = work(thing).inspect_err(|_| lock(queue).by_ref().for_each(drop))?;
            done.push(one);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use domain::series::BudgetExceeded;

    use super::*;

    #[tokio::test]
    async fn everything_is_done_once_whatever_the_cores() {
        for cores in [0, 1, 2, 100] {
            let mut done = on_cores((0..1_000).collect(), cores, |n: u32| Ok(n * 2))
                .await
                .unwrap();
            done.sort_unstable();
            assert_eq!(done, (0..1_000).map(|n| n * 2).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn a_failure_stops_the_others() {
        let tried = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tried);
        let failing = move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(BudgetExceeded::Cancelled.into())
        };
        assert!(on_cores(vec![(); 100_000], 2, failing).await.is_err());
        assert!(tried.load(Ordering::Relaxed) <= 4, "{tried:?}");
    }
}
