//! Traces of Kineto, PyTorch's profiler, in ranks that already run. The agent acts as `dynolog`, the daemon from which Kineto requests
//! work.
//!
//! ```text
//! rank, about every 5 s  ─ "req" {i32 2, i32 n, i64 job, i32 pids[n]} ─▶ DIR/dynolog          a datagram: u64 size, char type[32], payload
//!                        ◀─ "req" ACTIVITIES_LOG_FILE=…, duration ───────┘
//! rank                   ─ writes FILE.tmp, renames it to FILE_PID.json
//! ```
//! The socket exists only while a trace is requested. A rank that finds no socket tries again 5 s later. Pitfalls:
//!
//! - Kineto creates its own socket, with a long name, beside `dynolog`, and ends the *process* if an answer comes from a socket in another
//!   folder. So the folder has a short path, is the same for both, and belongs to the agent's user only.
//! - A process in a container has another process id there. The kernel reports the id on this machine.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use domain::ident::Rank;
use domain::run::inspect::{Answer, RankAnswer, TRACE_BYTES_MAX, TraceFile, TraceLength};
use domain::run::state::Start;
use nix::errno::Errno;
use nix::sys::socket::sockopt::PassCred;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, UnixCredentials, recvmsg, setsockopt};
use rustix::fs::FlockOperation;
use shim::{Folder, Process, files};
use tokio::sync::mpsc;

use super::AnswerPart;
use crate::uplink::link::now_ms;

/// The socket's name in the meeting folder.
const SOCKET: &str = "dynolog";
/// The name of Kineto's own socket: this prefix, and a UUID.
const CLIENT: &str = "dynoconfigclient";
const CLIENT_BYTES: usize = CLIENT.len() + 36;
/// `sun_path` has 108 bytes, including its terminating zero, and there is a `/` between folder and name.
const FOLDER_BYTES_MAX: usize = 107 - 1 - CLIENT_BYTES;
/// Length of a message's header: u64 and 32 bytes of type.
const HEAD_BYTES: usize = 40;
/// Maximum message size. The known messages are a tenth of this.
const MESSAGE_BYTES_MAX: usize = 4_096;
const REQUEST: &[u8] = b"req";
/// The kind of work that Kineto requests: activities, which means a trace.
const ACTIVITIES: i32 = 2;
/// Time limit for a recording. A request arrives about every 5 s; warm-up, a busy machine and a large file need the rest.
const WITHIN: Duration = Duration::from_secs(50);
/// Interval between checks for files.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
pub(super) enum KinetoError {
    /// The run was started without `kineto`.
    #[error(
        "traces are not enabled for this run; submit it with `kineto = true` (--kineto), so that PyTorch's profiler waits for requests"
    )]
    Off,
    /// Another recording of the run is in progress.
    #[error("a trace of this run is being recorded already; wait until it is done")]
    Busy,
    /// A file or socket operation failed.
    #[error("the profilers of the ranks cannot be reached: {0}")]
    Io(#[from] io::Error),
}

/// Returns the folder in which Kineto and the agent communicate. Its path is short, as Kineto needs.
///
/// # Errors
/// If the path is too long for Kineto anyway.
pub(crate) fn meeting_folder(folder: &Folder) -> Result<PathBuf, String> {
    let path = folder.path();
    let data = path.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let short = data.join("k").join(format!(
        "{:08x}",
        crc32c::crc32c(path.as_os_str().as_encoded_bytes())
    ));
    let length = short.as_os_str().len();
    if length > FOLDER_BYTES_MAX {
        return Err(format!(
            "the run enables kineto, whose sockets need a path of at most {FOLDER_BYTES_MAX} bytes, and {} has {length}; start the \
             agent with a shorter --data-dir",
            short.display()
        ));
    }
    Ok(short)
}

/// Creates the folder, accessible only to the agent's user.
pub(crate) fn prepare(folder: &Folder) -> Result<PathBuf, String> {
    let meeting = meeting_folder(folder)?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&meeting);
    made.map_err(|error| format!("{} cannot be created: {error}", meeting.display()))?;
    Ok(meeting)
}

/// Removes the folder after the end of the attempt.
pub(crate) fn remove(folder: &Folder) {
    if let Ok(meeting) = meeting_folder(folder) {
        let _none = std::fs::remove_dir_all(meeting);
    }
}

/// Returns the path of a trace. Names that do not belong to a trace are rejected.
pub(super) fn path_of(folder: &Folder, file: &str) -> io::Result<PathBuf> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let ours = file
        .strip_prefix("rank-")
        .and_then(|rest| rest.strip_suffix(".json"))
        .is_some_and(|middle| !middle.is_empty() && middle.bytes().all(plain));
    if !ours {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{file:?} is not the name of a trace"),
        ));
    }
    Ok(folder.file(files::TRACES).join(file))
}

/// Requests a trace from each rank, and sends for each rank either its file or the reason why there is none.
pub(super) async fn record(
    folder: &Folder,
    ranks: BTreeMap<u32, Process>,
    trace_length: TraceLength,
    answers: &mpsc::Sender<AnswerPart>,
) -> Result<(), KinetoError> {
    if !folder
        .read::<Start>(files::START)
        .is_ok_and(|start| start.spec.kineto)
    {
        return Err(KinetoError::Off);
    }
    let recording = Recording::begin(folder, ranks, trace_length)?;
    let answers = answers.clone();
    let over = tokio::task::spawn_blocking(move || recording.carry_out(&answers));
    over.await.map_err(io::Error::other)?.map_err(Into::into)
}

struct Recording {
    socket: UnixDatagram,
    meeting: PathBuf,
    traces: PathBuf,
    /// A part of the file names of this recording.
    stamp: i64,
    trace_length: TraceLength,
    /// The ranks that are not finished, and whether each has received the request.
    ranks: BTreeMap<u32, (Process, bool)>,
    /// The lock, held during the recording.
    _alone: std::fs::File,
}

impl Recording {
    fn begin(
        folder: &Folder,
        ranks: BTreeMap<u32, Process>,
        trace_length: TraceLength,
    ) -> Result<Self, KinetoError> {
        let meeting = prepare(folder).map_err(io::Error::other)?;
        let alone = std::fs::File::create(meeting.join("lock"))?;
        rustix::fs::flock(&alone, FlockOperation::NonBlockingLockExclusive).map_err(|_| KinetoError::Busy)?;
        let traces = folder.file(files::TRACES);
        DirBuilder::new().recursive(true).mode(0o700).create(&traces)?;
        let path = meeting.join(SOCKET);
        let _of_an_agent_before = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(CHECK_INTERVAL))?;
        setsockopt(&socket, PassCred, &true).map_err(io::Error::from)?;
        Ok(Self {
            socket,
            meeting,
            traces,
            stamp: now_ms(),
            trace_length,
            ranks: ranks
                .into_iter()
                .map(|(rank, process)| (rank, (process, false)))
                .collect(),
            _alone: alone,
        })
    }

    fn carry_out(mut self, answers: &mpsc::Sender<AnswerPart>) -> io::Result<()> {
        let until = Instant::now() + WITHIN;
        while !self.ranks.is_empty() && Instant::now() < until && !answers.is_closed() {
            if let Some((pid, client)) = self.receive_request()? {
                self.send_settings(pid, &client)?;
            }
            for answer in self.finished() {
                let _receiver_is_gone = answers.blocking_send((Answer::Rank(Box::new(answer)), Vec::new()));
            }
        }
        let seconds = WITHIN.as_secs();
        for (rank, (process, requested)) in std::mem::take(&mut self.ranks) {
            let problem = if !process.lives() {
                "ended before its trace was written".to_owned()
            } else if requested {
                format!(
                    "got the request, but wrote no trace within {seconds} s; only torch's own optimizers count steps, a trace by seconds does not need them"
                )
            } else {
                format!(
                    "did not request work within {seconds} s; Kineto does so in PyTorch 2.7 and later, once torch is imported"
                )
            };
            let answer = RankAnswer {
                rank: Rank(rank),
                pid: u32::try_from(process.pid).ok(),
                problem,
                ..RankAnswer::default()
            };
            let _receiver_is_gone = answers.blocking_send((Answer::Rank(Box::new(answer)), Vec::new()));
        }
        Ok(())
    }

    /// Receives one request for a trace. Returns the process id on this machine and the path of the sender's socket.
    fn receive_request(&self) -> io::Result<Option<(i32, String)>> {
        let mut bytes = [0_u8; MESSAGE_BYTES_MAX];
        let mut space = nix::cmsg_space!(UnixCredentials);
        let mut room = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received = match recvmsg::<UnixAddr>(self.socket.as_raw_fd(), &mut room, Some(&mut space), flags)
        {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let pid = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmCredentials(who) => Some(who.pid()),
            _ => None,
        });
        let client = received
            .address
            .and_then(|address| Some(address.path()?.to_str()?.to_owned()));
        let length = received.bytes;
        let asks = asks_for_activities(bytes.get(..length).unwrap_or_default());
        Ok(pid.zip(client).filter(|_| asks))
    }

    /// Sends the settings of the trace to a rank. It answers only to Kineto's sockets in our folder: other sockets must not receive data,
    /// and their processes must not be ended by it.
    fn send_settings(&mut self, pid: i32, client: &str) -> io::Result<()> {
        let name = client.rsplit('/').next().unwrap_or_default();
        let path = self.meeting.join(name);
        let Some((rank, (_, requested))) = self
            .ranks
            .iter_mut()
            .find(|(_, (process, requested))| process.pid == pid && !requested)
        else {
            return Ok(());
        };
        if !name.starts_with(CLIENT) || path.as_os_str() != client {
            return Ok(());
        }
        let file = self.traces.join(format!("rank-{rank}-{}.json", self.stamp));
        let length = match self.trace_length {
            TraceLength::Seconds(seconds) => {
                format!("ACTIVITIES_DURATION_MSECS={}\n", u64::from(seconds) * 1_000)
            }
            TraceLength::Steps(steps) => {
                format!(
                    "PROFILE_START_ITERATION=0\nPROFILE_START_ITERATION_ROUNDUP=1\nACTIVITIES_ITERATIONS={steps}\n"
                )
            }
        };
        let config = format!("ACTIVITIES_LOG_FILE={}\n{length}", file.display());
        *requested = self.socket.send_to(&message(config.as_bytes()), &path).is_ok();
        Ok(())
    }

    /// Returns the ranks whose file is complete. A file that is too large to be fetched is deleted.
    fn finished(&mut self) -> Vec<RankAnswer> {
        let entries = std::fs::read_dir(&self.traces).into_iter().flatten().flatten();
        let files: Vec<(String, u64)> = entries
            .filter_map(|entry| {
                Some((
                    entry.file_name().into_string().ok()?,
                    entry.metadata().ok()?.len(),
                ))
            })
            .collect();
        let stamp = self.stamp;
        let done = |(rank, (process, _)): (&u32, &(Process, bool))| {
            let begins = format!("rank-{rank}-{stamp}_");
            let ours = |(name, _): &&(String, u64)| name.starts_with(&begins) && name.ends_with(".json");
            let (file, bytes) = files.iter().find(ours)?.clone();
            let mut answer = RankAnswer {
                rank: Rank(*rank),
                pid: u32::try_from(process.pid).ok(),
                ..RankAnswer::default()
            };
            if bytes > TRACE_BYTES_MAX {
                let _gone = std::fs::remove_file(self.traces.join(file));
                answer.problem = format!(
                    "recorded a trace of {bytes} bytes, more than the maximum of {TRACE_BYTES_MAX}; record fewer steps or seconds"
                );
            } else {
                answer.trace = Some(TraceFile { file, bytes });
            }
            Some(answer)
        };
        let done: Vec<RankAnswer> = self.ranks.iter().filter_map(done).collect();
        for answer in &done {
            self.ranks.remove(&answer.rank.0);
        }
        done
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(self.meeting.join(SOCKET));
    }
}

fn asks_for_activities(message: &[u8]) -> bool {
    let kind = message
        .get(8..HEAD_BYTES)
        .map(|kind| kind.split(|byte| *byte == 0).next().unwrap_or_default());
    let wanted = message
        .get(HEAD_BYTES..HEAD_BYTES + 4)
        .and_then(|bytes| bytes.try_into().ok())
        .map(i32::from_ne_bytes);
    kind == Some(REQUEST) && wanted == Some(ACTIVITIES)
}

fn message(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len());
    bytes.extend((payload.len() as u64).to_ne_bytes());
    bytes.extend(REQUEST);
    bytes.resize(HEAD_BYTES, 0);
    bytes.extend(payload);
    bytes
}
