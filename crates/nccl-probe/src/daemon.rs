//! Our thread in the training process: looks every 50 ms, sums up, sends. It takes no signal meant for the program, and is not there in
//! a forked child until that begins a communicator of its own.
#![allow(unsafe_code, reason = "signals and fork have no safe door")]

use std::io;
use std::sync::Once;
use std::thread;
use std::time::Duration;

use crate::probe::{self, Probe};

/// How often it looks. The ring holds what comes in between.
const LOOK: Duration = Duration::from_millis(50);
/// The same while there is no communicator.
const IDLE_LOOK: Duration = Duration::from_millis(500);
/// Text of a datagram and little else.
const STACK_BYTES: usize = 256 << 10;

/// Starts the thread.
pub(crate) fn start(probe: &'static Probe) -> io::Result<()> {
    notice_forks();
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
        let look = if probe.comms.live() > 0 { LOOK } else { IDLE_LOOK };
        thread::sleep(look);
        probe.turn();
    }
}

/// A thread inherits what its maker blocks: a handler of the program must run on the program's own threads.
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

fn notice_forks() {
    static NOTICED: Once = Once::new();
    extern "C" fn in_child() {
        probe::forget();
    }
    NOTICED.call_once(|| {
        // SAFETY: the handler only stores into an atomic, and the library stays loaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
