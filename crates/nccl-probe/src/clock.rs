//! The two clocks. Reading them needs no system call on machines whose kernel trusts the time stamp counter.
#![allow(unsafe_code, reason = "std does not expose the value of the monotonic clock")]

/// Returns the nanoseconds since the machine started. The value is the same for all processes of a node.
pub(crate) fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the nanoseconds since 1970, by the node's clock.
pub(crate) fn wall_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock is one that always exists, the place is ours.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
