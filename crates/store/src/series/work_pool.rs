//! Distributes work over several cores, as many as are worthwhile.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use domain::series::SelectError;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::lock;

/// The maximum number of items that a core takes at once. Small enough that all cores finish together, large enough that none
/// waits for the queue.
const TAKEN_AT_ONCE: usize = 8;
/// The amount of work for which another core is started. Starting one takes a third of this.
const HELP_WORTH: Duration = Duration::from_micros(150);

/// Applies `work` to each pushed item, on this thread, which may block, and on other threads of the blocking pool. Results come
/// in no order. The first failure stops all.
pub(crate) struct WorkPool<'a, T, R, F> {
    runtime: Option<&'a Handle>,
    queue: Arc<Queue<T, F>>,
    others: Vec<JoinHandle<Result<Vec<R>, SelectError>>>,
}

struct Queue<T, F> {
    waiting: Mutex<Waiting<T>>,
    changed: Condvar,
    work: F,
}

struct Waiting<T> {
    items: VecDeque<T>,
    /// True while more items may be pushed.
    is_open: bool,
}

impl<'a, T, R, F> WorkPool<'a, T, R, F>
where
    T: Send + 'static,
    R: Send + 'static,
    F: Fn(T) -> Result<R, SelectError> + Send + Sync + 'static,
{
    /// Without a runtime, all work is done on this thread.
    pub(crate) fn new(runtime: Option<&'a Handle>, work: F) -> Self {
        let waiting = Waiting {
            items: VecDeque::new(),
            is_open: true,
        };
        Self {
            runtime,
            queue: Arc::new(Queue {
                waiting: Mutex::new(waiting),
                changed: Condvar::new(),
                work,
            }),
            others: Vec::new(),
        }
    }

    pub(crate) fn push(&self, item: T) {
        let mut waiting = lock(&self.queue.waiting);
        // After a failure, new items are dropped.
        if waiting.is_open {
            waiting.items.push_back(item);
            self.queue.changed.notify_one();
        }
    }

    /// Starts another core if there is one. Call it when long work is being pushed and more will follow.
    pub(crate) fn begin(&mut self) {
        if self.others.is_empty() {
            self.call(1.min(available() - 1));
        }
    }

    fn call(&mut self, wanted: usize) {
        let Some(runtime) = self.runtime else {
            return;
        };
        for _ in self.others.len()..wanted {
            let queue = Arc::clone(&self.queue);
            self.others
                .push(runtime.spawn_blocking(move || queue.run_items(|_| {})));
        }
    }

    /// Does the remaining work, with as many other cores as the time per item so far justifies.
    pub(crate) fn finish(mut self) -> Result<Vec<R>, SelectError> {
        self.queue.close();
        let queue = Arc::clone(&self.queue);
        let begun = Instant::now();
        let mut done = queue.run_items(|done| {
            // The clock is read rarely: for small items it costs as much as an item.
            if done.is_power_of_two() {
                let left = lock(&queue.waiting).items.len();
                self.call(helpers(begun.elapsed(), done, left));
            }
        });
        // No work is left, so tasks that have not started are cancelled.
        self.others.iter().for_each(JoinHandle::abort);
        for other in std::mem::take(&mut self.others) {
            let Some(runtime) = self.runtime else {
                break;
            };
            match runtime.block_on(other) {
                Ok(some) => done = joined(done, some),
                Err(error) if error.is_cancelled() => {}
                Err(error) => done = Err(SelectError::Store(Box::new(error))),
            }
        }
        done
    }
}

/// Dropping without [`WorkPool::finish`] discards the remaining work.
impl<T, R, F> Drop for WorkPool<'_, T, R, F> {
    fn drop(&mut self) {
        self.queue.discard();
    }
}

/// Distributes items that are all known in advance.
pub(crate) fn run_on_cores<T: Send + 'static, R: Send + 'static>(
    runtime: &Handle,
    items: Vec<T>,
    work: impl Fn(T) -> Result<R, SelectError> + Send + Sync + 'static,
) -> Result<Vec<R>, SelectError> {
    let pool = WorkPool::new(Some(runtime), work);
    lock(&pool.queue.waiting).items = items.into();
    pool.finish()
}

/// Returns how many other cores are worthwhile for the remaining items, given the time that `done` items took here.
fn helpers(elapsed: Duration, done: usize, left: usize) -> usize {
    let rest = elapsed.mul_f64(left as f64 / done as f64);
    let worth = (rest.as_micros() / HELP_WORTH.as_micros()) as usize;
    worth.min(left).min(available() - 1)
}

/// Returns the number of cores. The value is cached: reading it opens a dozen files, and one query would read it ten times.
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

impl<T, F> Queue<T, F> {
    fn close(&self) {
        lock(&self.waiting).is_open = false;
        self.changed.notify_all();
    }

    fn discard(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.items.clear();
        waiting.is_open = false;
        self.changed.notify_all();
    }

    /// Returns the next items, fewer towards the end, so that the last ones are not all on one core. Empty when no more will
    /// come.
    fn take(&self) -> Vec<T> {
        let mut waiting = lock(&self.waiting);
        while waiting.items.is_empty() && waiting.is_open {
            let woken = self.changed.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
        let share = waiting.items.len().div_ceil(2 * available());
        waiting.items.drain(..share.min(TAKEN_AT_ONCE)).collect()
    }

    /// Works until no items are left. Calls `after` with the number of items done on this thread.
    fn run_items<R>(&self, mut after: impl FnMut(usize)) -> Result<Vec<R>, SelectError>
    where
        F: Fn(T) -> Result<R, SelectError>,
    {
        let mut done = Vec::new();
        loop {
            let some = self.take();
            if some.is_empty() {
                return Ok(done);
            }
            for item in some {
                let one = (self.work)(item).inspect_err(|_| self.discard())?;
                done.push(one);
                after(done.len());
            }
        }
    }
}

/// Does some work on all cores, each part in its own task.
pub(crate) async fn run_on_all_cores<T: Send + 'static, U: Send + 'static>(
    work: Vec<T>,
    each: fn(&T) -> U,
) -> Result<Vec<U>, sqlx::Error> {
    let share = work.len().div_ceil(available()).max(1);
    let mut work = work.into_iter().peekable();
    let mut tasks = Vec::new();
    while work.peek().is_some() {
        let some: Vec<T> = work.by_ref().take(share).collect();
        tasks.push(tokio::task::spawn_blocking(move || {
            some.iter().map(each).collect::<Vec<_>>()
        }));
    }
    let mut done = Vec::new();
    for task in tasks {
        done.extend(task.await.map_err(std::io::Error::other)?);
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread::ThreadId;

    use domain::series::BudgetExceeded;

    use super::*;

    /// Processes items that take `each` long. Returns the threads that took part.
    fn threads(items: u32, each: Duration) -> HashSet<ThreadId> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let work = move |n: u32| {
            std::thread::sleep(each);
            Ok((n, std::thread::current().id()))
        };
        let mut done = run_on_cores(runtime.handle(), (0..items).collect(), work).unwrap();
        done.sort_unstable_by_key(|(n, _)| *n);
        assert!(
            done.iter().map(|(n, _)| *n).eq(0..items),
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
    fn another_core_begins_before_all_is_there() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (seen, saw) = mpsc::sync_channel(2);
        let mut pool = WorkPool::new(Some(runtime.handle()), move |n: u32| {
            seen.send(std::thread::current().id()).unwrap();
            Ok(n)
        });
        pool.begin();
        pool.push(1);
        if available() > 1 {
            let thread = saw.recv_timeout(Duration::from_secs(30)).unwrap();
            assert_ne!(thread, std::thread::current().id());
        }
        pool.push(2);
        let mut done = pool.finish().unwrap();
        done.sort_unstable();
        assert_eq!(done, [1, 2]);
    }

    #[test]
    fn who_goes_away_keeps_no_other_core() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let held = Arc::new(());
        let holding = Arc::clone(&held);
        let mut pool = WorkPool::new(Some(runtime.handle()), move |()| {
            let _held = &holding;
            Ok(())
        });
        pool.begin();
        pool.push(());
        drop(pool);
        let begun = Instant::now();
        while Arc::strong_count(&held) > 1 {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "it still waits for more"
            );
            std::thread::yield_now();
        }
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
        assert!(run_on_cores(runtime.handle(), (0..100_000).collect(), failing).is_err());
        let most = 10 + TAKEN_AT_ONCE * available();
        assert!(tried.load(Ordering::Relaxed) <= most, "{tried:?}");
    }
}
