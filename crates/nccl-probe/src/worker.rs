//! The plugin's thread in the training process: every 50 ms it collects events, summarises them and sends the summary. It blocks all
//! signals, so it takes none that is meant for the program. A forked child does not have the thread until it creates its own communicator.
#![allow(unsafe_code, reason = "signals and fork have no safe interface")]

use std::io;
use std::sync::Once;
use std::thread;
use std::time::Duration;

use crate::probe::{self, Probe};

/// How often the thread works. The ring stores the events in between.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How often the thread works while there is no communicator.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The size of the stack: the text of a datagram, and little else.
const STACK_BYTES: usize = 256 << 10;

/// Starts the thread.
pub(crate) fn start(probe: &'static Probe) -> io::Result<()> {
    watch_forks();
    with_signals_blocked(|| {
        let thread = thread::Builder::new()
            .name("lockstep-nccl".into())
            .stack_size(STACK_BYTES);
        thread
            .spawn(move || crate::guard::guarded(|| run(probe)))
            .map(drop)
    })
}

fn run(probe: &'static Probe) {
    while probe.is_current() {
        let interval = if probe.comms.live() > 0 {
            POLL_INTERVAL
        } else {
            IDLE_POLL_INTERVAL
        };
        thread::sleep(interval);
        probe.run_once();
    }
}

/// Runs `work` with all signals blocked. A thread inherits the blocked signals of its creator, so the program's handlers run on the
/// program's own threads.
fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are ours, and the thread gets its own back.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        let mut before = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        let blocked = libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) == 0;
        let done = work();
        if blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        }
        done
    }
}

fn watch_forks() {
    static WATCHED: Once = Once::new();
    extern "C" fn in_child() {
        probe::forget();
    }
    WATCHED.call_once(|| {
        // SAFETY: the handler only stores into an atomic, and the library stays loaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
