//! Work on as many cores as it is worth.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
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

/// Does the same with each thing that is handed over, on this thread, which may block, and on others of the blocking pool. The
/// answers come in no order. The first failure stops all.
pub(crate) struct Cores<'a, T, R, F> {
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
    things: VecDeque<T>,
    /// More may come.
    is_open: bool,
}

impl<'a, T, R, F> Cores<'a, T, R, F>
where
    T: Send + 'static,
    R: Send + 'static,
    F: Fn(T) -> Result<R, SelectError> + Send + Sync + 'static,
{
    /// Without a runtime all is done on this thread.
    pub(crate) fn new(runtime: Option<&'a Handle>, work: F) -> Self {
        let waiting = Waiting {
            things: VecDeque::new(),
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

    pub(crate) fn push(&self, thing: T) {
        let mut waiting = lock(&self.queue.waiting);
        // Nothing is wanted after a failure.
        if waiting.is_open {
            waiting.things.push_back(thing);
            self.queue.changed.notify_one();
        }
    }

    /// Has another core begin, if there is one: what takes long is to be handed over, and more of it is to come.
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
                .push(runtime.spawn_blocking(move || queue.work_off(|_| {})));
        }
    }

    /// Does what is left, with as many others as what is done here shows to be worth it.
    pub(crate) fn finish(mut self) -> Result<Vec<R>, SelectError> {
        self.queue.close();
        let queue = Arc::clone(&self.queue);
        let begun = Instant::now();
        let mut done = queue.work_off(|done| {
            // Asked seldom: of small things a clock costs as much as one.
            if done.is_power_of_two() {
                let left = lock(&queue.waiting).things.len();
                self.call(helpers(begun.elapsed(), done, left));
            }
        });
        // Nothing is left to do: who has not begun need not.
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

/// Whoever goes without having it finished wants nothing of it.
impl<T, R, F> Drop for Cores<'_, T, R, F> {
    fn drop(&mut self) {
        self.queue.give_up();
    }
}

/// Things that are all there already.
pub(crate) fn on_cores<T: Send + 'static, R: Send + 'static>(
    runtime: &Handle,
    things: Vec<T>,
    work: impl Fn(T) -> Result<R, SelectError> + Send + Sync + 'static,
) -> Result<Vec<R>, SelectError> {
    let cores = Cores::new(Some(runtime), work);
    lock(&cores.queue.waiting).things = things.into();
    cores.finish()
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

impl<T, F> Queue<T, F> {
    fn close(&self) {
        lock(&self.waiting).is_open = false;
        self.changed.notify_all();
    }

    fn give_up(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.things.clear();
        waiting.is_open = false;
        self.changed.notify_all();
    }

    /// The next things, fewer towards the end, so that the last ones are not all on one core; none when there will be none.
    fn take(&self) -> Vec<T> {
        let mut waiting = lock(&self.waiting);
        while waiting.things.is_empty() && waiting.is_open {
            let woken = self.changed.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
        let share = waiting.things.len().div_ceil(2 * available());
        waiting.things.drain(..share.min(TAKEN_AT_ONCE)).collect()
    }

    /// Works until nothing is left; `after` hears how many are done here.
    fn work_off<R>(&self, mut after: impl FnMut(usize)) -> Result<Vec<R>, SelectError>
    where
        F: Fn(T) -> Result<R, SelectError>,
    {
        let mut done = Vec::new();
        loop {
            let some = self.take();
            if some.is_empty() {
                return Ok(done);
            }
            for thing in some {
                let one = (self.work)(thing).inspect_err(|_| self.give_up())?;
                done.push(one);
                after(done.len());
            }
        }
    }
}

/// Does some work on all cores, each part in a task of its own.
pub(crate) async fn on_all_cores<T: Send + 'static, U: Send + 'static>(
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
    fn another_core_begins_before_all_is_there() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (seen, saw) = mpsc::sync_channel(2);
        let mut cores = Cores::new(Some(runtime.handle()), move |n: u32| {
            seen.send(std::thread::current().id()).unwrap();
            Ok(n)
        });
        cores.begin();
        cores.push(1);
        if available() > 1 {
            let thread = saw.recv_timeout(Duration::from_secs(30)).unwrap();
            assert_ne!(thread, std::thread::current().id());
        }
        cores.push(2);
        let mut done = cores.finish().unwrap();
        done.sort_unstable();
        assert_eq!(done, [1, 2]);
    }

    #[test]
    fn who_goes_away_keeps_no_other_core() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let held = Arc::new(());
        let holding = Arc::clone(&held);
        let mut cores = Cores::new(Some(runtime.handle()), move |()| {
            let _held = &holding;
            Ok(())
        });
        cores.begin();
        cores.push(());
        drop(cores);
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
        assert!(on_cores(runtime.handle(), (0..100_000).collect(), failing).is_err());
        let most = 10 + TAKEN_AT_ONCE * available();
        assert!(tried.load(Ordering::Relaxed) <= most, "{tried:?}");
    }
}
