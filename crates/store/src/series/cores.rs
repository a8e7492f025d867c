//! Work on as many cores as it is worth.

use std::sync::{Arc, Mutex, OnceLock};

use domain::series::SelectError;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::lock;

/// Things a core takes at once: often enough to end together, seldom enough that nobody waits for the queue.
const TAKEN_AT_ONCE: usize = 8;

/// Does the same with each thing, on this thread, which may block, and on others of the blocking pool: at most `cores` in all.
/// The answers come in no order. The first failure stops all.
pub(crate) fn on_cores<T: Send + 'static, R: Send + 'static>(
    runtime: &Handle,
    things: Vec<T>,
    cores: usize,
    work: impl Fn(T) -> Result<R, SelectError> + Send + Sync + 'static,
) -> Result<Vec<R>, SelectError> {
    let others = cores.min(available()).saturating_sub(1);
    let queue = Arc::new((Mutex::new(things.into_iter()), work));
    let other = |_| {
        let queue = Arc::clone(&queue);
        runtime.spawn_blocking(move || work_off(&queue.0, &queue.1))
    };
    let others: Vec<_> = (0..others).map(other).collect();
    let own = work_off(&queue.0, &queue.1);
    // Nothing is left to do: who has not begun need not.
    others.iter().for_each(JoinHandle::abort);
    let mut done = Ok(Vec::new());
    for other in others {
        match runtime.block_on(other) {
            Ok(some) => done = joined(done, some),
            Err(error) if error.is_cancelled() => {}
            Err(error) => done = Err(SelectError::Store(Box::new(error))),
        }
    }
    joined(done, own)
}

/// Cores there are, asked once: the answer is read from a dozen files, and a query would ask ten times.
pub(crate) fn available() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

fn joined<R>(
    done: Result<Vec<R>, SelectError>,
    more: Result<Vec<R>, SelectError>,
) -> Result<Vec<R>, SelectError> {
    let (mut done, more) = (done?, more?);
    if done.is_empty() {
        return Ok(more);
    }
    done.extend(more);
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

    #[test]
    fn everything_is_done_once_whatever_the_cores() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for cores in [0, 1, 2, 100] {
            let mut done =
                on_cores(runtime.handle(), (0..1_000).collect(), cores, |n: u32| Ok(n * 2)).unwrap();
            done.sort_unstable();
            assert_eq!(done, (0..1_000).map(|n| n * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_failure_stops_the_others() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let tried = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tried);
        let failing = move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(BudgetExceeded::Cancelled.into())
        };
        assert!(on_cores(runtime.handle(), vec![(); 100_000], 2, failing).is_err());
        assert!(tried.load(Ordering::Relaxed) <= 4, "{tried:?}");
    }
}
