//! What the exit of one rank shows by itself: its cause, and whether the failure began in this rank.
//!
//! The texts are those of PyTorch, NCCL, Gloo and the kernel. They are searched in the exception's type, its message and the end of its
//! traceback, in lower case, because the spelling differs a little between versions.

use crate::run::state::{Cause, RankExit};

/// How much an exit shows about the root cause. The smallest value shows the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// The rank failed for a reason of its own.
    Own,
    /// The rank waited for others until a timeout.
    TimedOut,
    /// The rank ended without any text.
    Unexplained,
    /// Another rank, or the connection to it, was gone.
    Consequence,
    /// The rank was told to end.
    Told,
}

/// Another process went away. This is never why the first process failed.
const CONSEQUENCES: [&str; 17] = [
    "connection closed by peer",
    "connection reset by peer",
    "closed by peer",
    "application timeout caused pair closure",
    "broken pipe",
    "connection refused",
    "remote process exited",
    "ncclremoteerror",
    "communicator was aborted",
    "rendezvousconnectionerror",
    "rendezvousclosederror",
    "failed to recv, got 0 bytes",
    "the client socket has failed to connect",
    "the client socket has timed out",
    "connection was likely closed",
    "socket timeout",
    "broken barrier",
];

/// Messages of NCCL's watchdog.
const NCCL_TIMEOUTS: [&str; 3] = [
    "watchdog caught collective operation timeout",
    "watchdog got stuck",
    "before timing out",
];

/// Timeout messages of Gloo and of the store.
const TIMEOUTS: [&str; 4] = [
    "timed out waiting",
    "wait timeout after",
    "timed out after",
    "monitoredbarrier",
];

/// A lost or broken GPU. Errors that a script alone can cause (an illegal address) are not included.
const HARDWARE: [&str; 7] = [
    "uncorrectable ecc error",
    "gpu is lost",
    "fallen off the bus",
    "uncorrectable nvlink error",
    "hardware stack error",
    "no cuda-capable device is detected",
    "cuda-capable device(s) is/are busy or unavailable",
];

/// The disk is full.
const NO_SPACE: [&str; 4] = [
    "no space left on device",
    "disk quota exceeded",
    "pytorchstreamwriter failed writing",
    "errno 28",
];

/// The host is out of memory: torch's message, and NumPy's exception type.
const NO_HOST_MEMORY: [&str; 2] = ["defaultcpuallocator: can't allocate memory", "_arraymemoryerror"];

/// Functions that write checkpoints, as a traceback names them.
const SAVES: [&str; 5] = ["save", "checkpoint", "serialization", "filesystem.py", "writer"];

/// A checkpoint exists but cannot be read: messages of PyTorch's reader, and of DCP while it loads.
const UNREADABLE: [&str; 5] = [
    "pytorchstreamreader failed",
    "unpicklingerror",
    "_unpickler.py",
    "invalid header or archive is corrupted",
    "error while deserializing header",
];

/// The part of DCP that reads, as it appears in the tracebacks inside the text of its exception.
const DCP_LOADS: [&str; 2] = ["state_dict_loader", "in read_data"];

impl Weight {
    pub(super) fn of(exit: &RankExit) -> Self {
        let text = text(exit);
        let by_signal = exit.error_type.is_none() && exit.signal.is_some();
        if exit.out_of_memory || port_in_use(&text) || broken_hardware(&text) {
            Self::Own
        } else if exit.error_type.is_none()
            && matches!((exit.signal, exit.code), (Some(15), _) | (_, Some(143)))
        {
            Self::Told
        } else if any(&text, &NCCL_TIMEOUTS) {
            Self::TimedOut
        } else if any(&text, &CONSEQUENCES) || kind(exit).ends_with("DistNetworkError") {
            Self::Consequence
        } else if is_distributed(exit, &text) && any(&text, &TIMEOUTS) {
            Self::TimedOut
        } else if exit.error_type.is_some() || by_signal {
            Self::Own
        } else {
            Self::Unexplained
        }
    }
}

/// Returns the cause of an exit.
pub(super) fn cause(exit: &RankExit) -> Cause {
    let text = text(exit);
    if exit.out_of_memory || kind(exit).ends_with("OutOfMemoryError") || is_host_memory(exit) {
        Cause::OutOfMemory
    } else if port_in_use(&text) {
        Cause::PortInUse
    } else if any(&text, &NCCL_TIMEOUTS) {
        Cause::NcclTimeout
    } else if any(&text, &UNREADABLE) || is_dcps(exit) && any(&text, &DCP_LOADS) {
        Cause::CheckpointUnreadable
    } else if any(&text, &NO_SPACE) && any(&text, &SAVES) || is_dcps(exit) {
        Cause::CheckpointFailed
    } else if Weight::of(exit) == Weight::TimedOut {
        Cause::CollectiveTimeout
    } else if exit.error_type.is_some() {
        Cause::Exception
    } else if exit.signal.is_some() {
        Cause::Signal
    } else {
        Cause::ExitCode
    }
}

/// Returns true if an allocation of the rank failed because the host was out of memory.
pub(super) fn is_host_memory(exit: &RankExit) -> bool {
    kind(exit) == "MemoryError" || any(&text(exit), &NO_HOST_MEMORY)
}

/// Returns true if the text of the launcher or of a rank says that another process took the leased port.
pub(super) fn port_in_use(text: &str) -> bool {
    let text = text.to_lowercase();
    any(&text, &["eaddrinuse", "address already in use"])
}

/// Returns true if the rank failed because a disk was full.
pub(super) fn says_disk_is_full(exit: &RankExit) -> bool {
    any(&text(exit), &NO_SPACE)
}

/// Returns true if a rank failed because of its node's hardware.
pub(in crate::run::state) fn is_hardware(exit: &RankExit) -> bool {
    broken_hardware(&text(exit))
}

fn broken_hardware(text: &str) -> bool {
    any(text, &HARDWARE)
}

/// A `TimeoutError` of the script itself (a download, a lock) does not concern other ranks.
fn is_distributed(exit: &RankExit, text: &str) -> bool {
    let kind = kind(exit);
    kind.contains("Dist")
        || text.contains("gloo")
        || text.contains("nccl")
        || text.contains("tcpstore")
        || text.contains("recv operation")
}

/// Returns true for the exception that DCP raises when one of its ranks failed, with that rank's traceback in its text.
fn is_dcps(exit: &RankExit) -> bool {
    kind(exit).ends_with("CheckpointException")
}

fn kind(exit: &RankExit) -> &str {
    exit.error_type.as_deref().unwrap_or("")
}

fn text(exit: &RankExit) -> String {
    let parts = [&exit.error_type, &exit.message, &exit.traceback];
    let parts: Vec<&str> = parts.into_iter().filter_map(|part| part.as_deref()).collect();
    parts.join("\n").to_lowercase()
}

fn any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised(kind: &str, message: &str) -> RankExit {
        RankExit {
            code: Some(1),
            error_type: Some(kind.into()),
            message: Some(message.into()),
            ..RankExit::default()
        }
    }

    fn killed(signal: i32) -> RankExit {
        RankExit {
            signal: Some(signal),
            ..RankExit::default()
        }
    }

    #[test]
    fn each_exit_has_its_weight_and_its_word() {
        let exit_code = RankExit {
            code: Some(3),
            ..RankExit::default()
        };
        let out_of_host_memory = RankExit {
            out_of_memory: true,
            ..killed(9)
        };
        let watchdog = RankExit {
            message: Some("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE) ran for 600001 milliseconds before timing out.".into()),
            ..killed(6)
        };
        let full_while_saving = RankExit {
            traceback: Some("  File \"train.py\", line 9, in <module>\n    torch.save(state, path)".into()),
            ..raised("OSError", "[Errno 28] No space left on device")
        };
        let cases = [
            (raised("ValueError", "bad batch"), Weight::Own, "exception"),
            (killed(9), Weight::Own, "signal"),
            (killed(11), Weight::Own, "signal"),
            (killed(15), Weight::Told, "signal"),
            (exit_code, Weight::Unexplained, "exit_code"),
            (out_of_host_memory, Weight::Own, "out_of_memory"),
            (
                raised(
                    "torch.OutOfMemoryError",
                    "CUDA out of memory. Tried to allocate 2 GiB",
                ),
                Weight::Own,
                "out_of_memory",
            ),
            (
                raised(
                    "RuntimeError",
                    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4503599627370496 bytes. Error code 12 (Cannot allocate memory)",
                ),
                Weight::Own,
                "out_of_memory",
            ),
            (raised("MemoryError", ""), Weight::Own, "out_of_memory"),
            (watchdog, Weight::TimedOut, "nccl_timeout"),
            (
                raised(
                    "RuntimeError",
                    "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
                ),
                Weight::TimedOut,
                "collective_timeout",
            ),
            (
                raised("TimeoutError", "the data server timed out after 30 s"),
                Weight::Own,
                "exception",
            ),
            (
                raised(
                    "RuntimeError",
                    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:11415",
                ),
                Weight::Consequence,
                "exception",
            ),
            (
                raised(
                    "torch.distributed.DistBackendError",
                    "NCCL error: remote process exited or there was a network error",
                ),
                Weight::Consequence,
                "exception",
            ),
            (
                raised("RuntimeError", "Application timeout caused pair closure"),
                Weight::Consequence,
                "exception",
            ),
            (
                raised("torch.distributed.DistNetworkError", "failed to send"),
                Weight::Consequence,
                "exception",
            ),
            (
                raised(
                    "torch.distributed.DistNetworkError",
                    "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
                ),
                Weight::Own,
                "port_in_use",
            ),
            (full_while_saving, Weight::Own, "checkpoint_failed"),
            (
                raised(
                    "RuntimeError",
                    "[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/4: file write failed",
                ),
                Weight::Own,
                "checkpoint_failed",
            ),
            (
                raised(
                    "torch.distributed.checkpoint.api.CheckpointException",
                    "CheckpointException ranks:dict_keys([0])\nTraceback (most recent call last): (RANK 0)\n  File \"state_dict_saver.py\", line 472, in local_step\nFileNotFoundError: [Errno 2]",
                ),
                Weight::Own,
                "checkpoint_failed",
            ),
            (
                raised(
                    "torch.distributed.checkpoint.api.CheckpointException",
                    "CheckpointException ranks:dict_keys([0])\nTraceback (most recent call last): (RANK 0)\n  File \"state_dict_loader.py\", line 308, in read_data\nEOFError",
                ),
                Weight::Own,
                "checkpoint_unreadable",
            ),
            (
                raised(
                    "RuntimeError",
                    "PytorchStreamReader failed reading zip archive: failed finding central directory.",
                ),
                Weight::Own,
                "checkpoint_unreadable",
            ),
            (
                raised("OSError", "[Errno 28] No space left on device: '/data/cache'"),
                Weight::Own,
                "exception",
            ),
        ];
        for (exit, weight, word) in cases {
            assert_eq!(
                (Weight::of(&exit), cause(&exit).as_str()),
                (weight, word),
                "{exit:?}"
            );
        }
    }

    #[test]
    fn hardware_errors_are_distinguished_from_errors_of_the_script() {
        let cuda = |message| raised("RuntimeError", message);
        assert!(is_hardware(&cuda(
            "CUDA error: uncorrectable ECC error encountered"
        )));
        assert!(is_hardware(&cuda(
            "Unable to determine the device handle for GPU0: GPU is lost"
        )));
        assert!(!is_hardware(&cuda(
            "CUDA error: an illegal memory access was encountered"
        )));
    }
}
