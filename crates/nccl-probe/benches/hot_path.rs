//! Measures what an event costs the thread on which NCCL calls: `cargo bench -p nccl-probe`.
//!
//! Calls go through the exported table, as NCCL's do. After each measured burst the ring is emptied, so every event is kept, which is the
//! more expensive case. The best of many bursts is the cost itself; the median includes other activity of the machine.
#![allow(
    unsafe_code,
    reason = "calls the plugin as C does, and asks the kernel to count instructions"
)]

use std::ffi::{c_int, c_void};
use std::io::Read;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};
use std::{env, fs, process, ptr, thread};

use nccl_probe::ncclProfiler_v5 as nccl;

/// Less than the ring can store.
const BURST: usize = 3_000;
/// Less than can be timed at once.
const TIMED_BURST: usize = 600;
const BURSTS: usize = 40;
/// The probe's thread works every 50 ms.
const LET_IT_EMPTY: Duration = Duration::from_millis(120);
const CHANNELS: u64 = 4;

/// A descriptor of version 5, as words of eight bytes.
type Descriptor = [u64; 14];

fn main() {
    let socket = env::temp_dir().join(format!("lockstep-nccl-bench-{}.sock", process::id()));
    let receiver = UnixDatagram::bind(&socket).expect("a socket in the temporary folder");
    thread::spawn(move || while receiver.recv(&mut [0; 16_384]).is_ok() {});
    // SAFETY: no other thread reads the environment yet.
    unsafe {
        env::set_var("LOCKSTEP_PROBE_SOCKET", &socket);
        env::set_var("LOCKSTEP_NCCL_TIMING", "always");
    }
    let mut mask = 0;
    let context = begin(&mut mask);
    let (small, large) = (collective(16), collective(1 << 20));
    let mut counter = Instructions::open();
    let [mut counted, mut claimed, mut kernels] = [const { Vec::new() }; 3];
    let mut handles = Vec::with_capacity(TIMED_BURST);
    for _ in 0..BURSTS {
        counted.push(measure(&mut counter, BURST, || {
            (0..BURST).for_each(|_| drop_handle(enqueue(context, &small)));
        }));
        claimed.push(measure(&mut counter, TIMED_BURST, || {
            handles.extend((0..TIMED_BURST).map(|_| enqueue(context, &large)));
        }));
        assert!(
            handles.iter().all(|handle| !handle.is_null()),
            "a large message is timed"
        );
        let events = handles.len() * CHANNELS as usize * 3;
        kernels.push(measure(&mut counter, events, || {
            handles.drain(..).for_each(|handle| kernel(context, handle));
        }));
        thread::sleep(LET_IT_EMPTY);
    }
    report("a collective or transfer, counted and queued", counted);
    report("the same, and a slot taken for its timing", claimed);
    report("an event of a timed kernel (start, stop time, stop)", kernels);
    let _gone = fs::remove_file(socket);
}

fn begin(mask: &mut c_int) -> *mut c_void {
    let mut context = ptr::null_mut();
    // SAFETY: the mask outlives every use: the process ends before it.
    unsafe {
        (nccl.init)(&raw mut context, 1, mask, c"bench".as_ptr(), 1, 8, 0, None);
    }
    assert!(
        !context.is_null() && *mask == 2 + 4 + 64,
        "the probe does not watch"
    );
    context
}

fn collective(count: u64) -> Descriptor {
    let mut descriptor = [0; 14];
    descriptor[0] = 1 << 1;
    descriptor[4] = c"AllReduce".as_ptr().addr() as u64;
    descriptor[7] = count;
    descriptor[9] = c"ncclBfloat16".as_ptr().addr() as u64;
    descriptor[10] = CHANNELS;
    descriptor
}

fn enqueue(context: *mut c_void, descriptor: &Descriptor) -> *mut c_void {
    let mut handle = ptr::null_mut();
    // SAFETY: a descriptor of the table's version.
    unsafe { (nccl.start_event)(context, &raw mut handle, descriptor.as_ptr().cast()) };
    handle
}

fn kernel(context: *mut c_void, parent: *mut c_void) {
    for channel in 0..CHANNELS {
        let mut descriptor: Descriptor = [0; 14];
        descriptor[0] = 1 << 6;
        descriptor[1] = parent.addr() as u64;
        descriptor[3] = channel;
        descriptor[4] = 1_000;
        let handle = enqueue(context, &descriptor);
        let stop = 9_000_u64;
        // SAFETY: the handle is the plugin's own; the argument is a union of eight bytes.
        unsafe {
            (nccl.record_event_state)(handle, 22, (&raw const stop).cast());
            (nccl.stop_event)(handle);
        }
    }
}

fn drop_handle(handle: *mut c_void) {
    assert!(handle.is_null(), "a small message is not timed");
}

/// Returns nanoseconds and instructions per event of one burst.
fn measure(counter: &mut Option<Instructions>, events: usize, work: impl FnOnce()) -> (f64, Option<u64>) {
    let before = counter.as_mut().map(Instructions::read);
    let begun = Instant::now();
    work();
    let time = begun.elapsed();
    let after = counter.as_mut().map(Instructions::read);
    let instructions = after
        .zip(before)
        .map(|(after, before)| (after - before) / events as u64);
    (time.as_nanos() as f64 / events as f64, instructions)
}

fn report(what: &str, mut bursts: Vec<(f64, Option<u64>)>) {
    bursts.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let instructions = match bursts.iter().filter_map(|(_, counted)| *counted).min() {
        Some(counted) => format!("{counted} instructions"),
        None => "instructions not counted: this machine does not allow it".to_owned(),
    };
    let (best, median) = (bursts[0].0, bursts[BURSTS / 2].0);
    eprintln!("{what}: {best:.0} ns at best, {median:.0} ns in the median, {instructions}");
}

/// Counts the user-space instructions of this thread.
struct Instructions(fs::File);

impl Instructions {
    fn open() -> Option<Self> {
        // perf_event_attr: type 0 (hardware), size 64, config 1 (instructions), and bits 5 and 6: not the kernel, not the hypervisor.
        let attributes: [u64; 8] = [64 << 32, 1, 0, 0, 0, 0b110_0000, 0, 0];
        // SAFETY: the kernel reads the 64 bytes that the structure says it has, and returns a descriptor that is ours.
        unsafe {
            let opened = libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0);
            let opened = c_int::try_from(opened).ok().filter(|opened| *opened >= 0)?;
            Some(Self(fs::File::from_raw_fd(opened)))
        }
    }

    fn read(&mut self) -> u64 {
        let mut count = [0; 8];
        self.0.read_exact(&mut count).expect("a counter of eight bytes");
        u64::from_ne_bytes(count)
    }
}
