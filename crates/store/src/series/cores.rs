//! Work on as many cores as it is worth.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use domain::series::SelectError;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::lock;

/// Things a core takes at once, when there are many: often enough to end together, seldom enough that nobody waits for the
/// queue.
const TAKEN_AT_ONCE: usize = 8;
/// Work for which another core is asked to help: to wake one takes a third of it.
const HELP_WORTH: Duration = Duration::from_micros(150);

struct Queue<T, F> {
    things: Mutex<std::vec::IntoIter<T>>,
    work: F,
}

/// Does the same with each thing, on this thread, which may block, and on others of the blocking pool when what is done shows
/// that the rest is worth it. The answers come in no order. The first failure stops all.
pub(crate) fn on_cores<T: Send + 'static, R: Send + 'static>(
    runtime: &Handle,
    things: Vec<T>,
    work: impl Fn(T) -> Result<R, SelectError> + Send + Sync + 'static,
) -> Result<Vec<R>, SelectError> {
    let things = Mutex::new(things.into_iter());
    let queue = Arc::new(Queue { things, work });
    let mut others: Vec<JoinHandle<_>> = Vec::new();
    let begun = Instant::now();
    let mut done = queue.work_off(|done| {
        // Asked seldom: of small things a clock costs as much as one.
        if done.is_power_of_two() {
            let wanted = helpers(begun.elapsed(), done, lock(&queue.things).len());
            for _ in others.len()..wanted {
                let queue = Arc::clone(&queue);
                others.push(runtime.spawn_blocking(move || queue.work_off(|_| {})));
            }
        }
    });
    // Nothing is left to do: who has not begun need not.
    others.iter().for_each(JoinHandle::abort);
    for other in others {
        match runtime.block_on(other) {
            Ok(some) => done = joined(done, some),
            Err(error) if error.is_cancelled() => {}
            Err(error) => done = Err(SelectError::Store(Box::new(error))),
        }
    }
    done
}

/// Other cores that are worth it for what is left, when some things took so long here.
fn helpers(elapsed: Duration, done: usize, left: usize) -> usize {
    let rest = elapsed.mul_f64(left as f64 / done as f64);
    let worth = (rest.as_micros() / HELP_WORTH.as_micros()) as usize;
    worth.min(left).min(available() - 1)
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
    done.extend(more);
    Ok(done)
}

impl<T, R, F: Fn(T) -> Result<R, SelectError>> Queue<T, F> {
    /// Works until nothing is left; `after` hears how many are done here.
    fn work_off(&self, mut after: impl FnMut(usize)) -> Result<Vec<R>, SelectError> {
        let mut done = Vec::new();
        loop {
            let some = self.take();
            if some.is_empty() {
                return Ok(done);
            }
            for thing in some {
                let one = (self.work)(thing).inspect_err(|_| lock(&self.things).by_ref().for_each(drop))?;
                done.push(one);
                after(done.len());
            }
        }
    }

    /// The next things, fewer towards the end, so that the last ones are not all on one core.
    fn take(&self) -> Vec<T> {
        let mut things = lock(&self.things);
        let share = things.len().div_ceil(2 * available());
        things.by_ref().take(share.min(TAKEN_AT_ONCE)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::ThreadId;

    use domain::series::BudgetExceeded;

    use super::*;

    /// Does some things, each of which takes so long; returns the threads that did.
    fn threads(things: u32, each: Duration) -> HashSet<ThreadId> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let work = move |n: u32| {
            std::thread::sleep(each);
            Ok((n, std::thread::current().id()))
        };
        let mut done = on_cores(runtime.handle(), (0..things).collect(), work).unwrap();
        done.sort_unstable_by_key(|(n, _)| *n);
        assert!(
            done.iter().map(|(n, _)| *n).eq(0..things),
            "each is done, and once"
        );
        done.into_iter().map(|(_, thread)| thread).collect()
    }

    #[test]
    fn others_help_when_it_is_worth_it() {
        let slow = threads(40, Duration::from_millis(5));
        assert!(slow.len() >= available().min(2), "{slow:?}");
        assert!(slow.contains(&std::thread::current().id()));
        for few in [0, 1] {
            assert_eq!(threads(few, Duration::from_millis(5)).len(), few as usize);
        }
        threads(100_000, Duration::ZERO);
    }

    #[test]
    fn help_is_called_for_as_much_as_is_left() {
        let ms = Duration::from_millis;
        assert_eq!(helpers(ms(100), 1, 0), 0);
        assert_eq!(helpers(ms(100), 1, 1), 1.min(available() - 1));
        assert_eq!(helpers(ms(100), 1, 1_000_000), available() - 1);
        assert_eq!(helpers(Duration::from_micros(1), 1, 100), 0, "quicker alone");
    }

    #[test]
    fn a_failure_stops_the_others() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let tried = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tried);
        let failing = move |n: u32| {
            std::thread::sleep(Duration::from_millis(1));
            counted.fetch_add(1, Ordering::Relaxed);
            if n < 10 {
                Ok(())
            } else {
                Err(BudgetExceeded::Cancelled.into())
            }
        };
        assert!(on_cores(runtime.handle(), (0..100_000).collect(), failing).is_err());
        let most = 10 + TAKEN_AT_ONCE * available();
        assert!(tried.load(Ordering::Relaxed) <= most, "{tried:?}");
    }
}
