//! Traces of Kineto, PyTorch's profiler, in ranks that run already: we stand in for `dynolog`, the daemon it asks for work.
//!
//! ```text
//! rank, about every 5 s  ─ "req" {i32 2, i32 n, i64 job, i32 pids[n]} ─▶ DIR/dynolog             a datagram: u64 size, char type[32], payload
//!                        ◀─ "req" ACTIVITIES_LOG_FILE=…, how long ───────┘
//! rank                   ─ writes FILE.tmp, renames it to FILE_PID.json
//! ```
//! Only while a trace is wanted is anybody there; a rank that finds nobody asks again 5 s later. Traps:
//!
//! - Kineto puts a socket of its own, with a long name, beside `dynolog`, and ends the *process* when an answer comes from a socket in
//!   another folder. So the folder is short, the same for both, and the agent's user's alone.
//! - The number of a process is another one in a container: the kernel tells us ours.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use domain::ident::Rank;
use domain::run::inspect::{Answer, RankAnswer, TRACE_BYTES_MAX, TraceFile, TraceWish};
use domain::run::state::Start;
use nix::errno::Errno;
use nix::sys::socket::sockopt::PassCred;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, UnixCredentials, recvmsg, setsockopt};
use rustix::fs::FlockOperation;
use shim::{Folder, Process, files};
use tokio::sync::mpsc;

use super::Said;
use crate::uplink::link::now_ms;

/// Traces, in the attempt's folder.
const SOCKET: &str = "dynolog";
/// Kineto's own socket: this, and a UUID.
const CLIENT: &str = "dynoconfigclient";
const CLIENT_BYTES: usize = CLIENT.len() + 36;
/// `sun_path` holds 108 bytes with its zero, and there is a `/` between folder and name.
const FOLDER_BYTES_MAX: usize = 107 - 1 - CLIENT_BYTES;
/// A message's head: u64 and 32 bytes of type.
const HEAD_BYTES: usize = 40;
/// The messages we know are a tenth of this.
const MESSAGE_BYTES_MAX: usize = 4_096;
const REQUEST: &[u8] = b"req";
/// What is asked for: activities, the trace we mean.
const ACTIVITIES: i32 = 2;
/// A request comes about every 5 s; a warm-up, a busy machine and a large file take the rest.
const WITHIN: Duration = Duration::from_secs(50);
/// How often files are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Why nothing is recorded, in words.
#[derive(Debug, thiserror::Error)]
pub(super) enum KinetoError {
    /// Not asked for.
    #[error(
        "the run was not started for traces; submit it with `kineto = true` (--kineto), which has PyTorch's profiler wait for such a wish"
    )]
    Off,
    /// Somebody else.
    #[error("a trace of this run is being recorded already; wait for it")]
    Busy,
    /// The system.
    #[error("the profilers of the ranks cannot be reached: {0}")]
    Io(#[from] io::Error),
}

/// The folder in which Kineto and we meet, short for its sake.
///
/// # Errors
/// When it would be too long for Kineto all the same.
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
            "the run asks for kineto, whose sockets need a folder of at most {FOLDER_BYTES_MAX} bytes, and {} has {length}; start the \
             agent with a shorter --data-dir",
            short.display()
        ));
    }
    Ok(short)
}

/// Makes the folder, for the agent's user alone.
pub(crate) fn prepare(folder: &Folder) -> Result<PathBuf, String> {
    let meeting = meeting_folder(folder)?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&meeting);
    made.map_err(|error| format!("{} cannot be made: {error}", meeting.display()))?;
    Ok(meeting)
}

/// Removes it, once the attempt is over.
pub(crate) fn remove(folder: &Folder) {
    if let Ok(meeting) = meeting_folder(folder) {
        let _none = std::fs::remove_dir_all(meeting);
    }
}

/// Where a trace lies. A name that is none of ours leads nowhere.
pub(super) fn path_of(folder: &Folder, file: &str) -> io::Result<PathBuf> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let ours = file
        .strip_prefix("rank-")
        .and_then(|rest| rest.strip_suffix(".json"))
        .is_some_and(|middle| !middle.is_empty() && middle.bytes().all(plain));
    if !ours {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{file:?} is no trace's name"),
        ));
    }
    Ok(folder.file(files::TRACES).join(file))
}

/// Has ranks record, and says of each when its file is there, or why it is not.
pub(super) async fn record(
    folder: &Folder,
    ranks: BTreeMap<u32, Process>,
    wish: TraceWish,
    said: &mpsc::Sender<Said>,
) -> Result<(), KinetoError> {
    if !folder
        .read::<Start>(files::START)
        .is_ok_and(|start| start.spec.kineto)
    {
        return Err(KinetoError::Off);
    }
    let recording = Recording::begin(folder, ranks, wish)?;
    let said = said.clone();
    let over = tokio::task::spawn_blocking(move || recording.carry_out(&said));
    over.await.map_err(io::Error::other)?.map_err(Into::into)
}

struct Recording {
    socket: UnixDatagram,
    meeting: PathBuf,
    traces: PathBuf,
    /// Names the files of this recording.
    stamp: i64,
    wish: TraceWish,
    /// Those that are not done, and whether they have been told.
    ranks: BTreeMap<u32, (Process, bool)>,
    /// Held while it lasts.
    _alone: std::fs::File,
}

impl Recording {
    fn begin(folder: &Folder, ranks: BTreeMap<u32, Process>, wish: TraceWish) -> Result<Self, KinetoError> {
        let meeting = prepare(folder).map_err(io::Error::other)?;
        let alone = std::fs::File::create(meeting.join("lock"))?;
        rustix::fs::flock(&alone, FlockOperation::NonBlockingLockExclusive).map_err(|_| KinetoError::Busy)?;
        let traces = folder.file(files::TRACES);
        DirBuilder::new().recursive(true).mode(0o700).create(&traces)?;
        let path = meeting.join(SOCKET);
        let _of_an_agent_before = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(LOOK))?;
        setsockopt(&socket, PassCred, &true).map_err(io::Error::from)?;
        Ok(Self {
            socket,
            meeting,
            traces,
            stamp: now_ms(),
            wish,
            ranks: ranks
                .into_iter()
                .map(|(rank, process)| (rank, (process, false)))
                .collect(),
            _alone: alone,
        })
    }

    fn carry_out(mut self, said: &mpsc::Sender<Said>) -> io::Result<()> {
        let until = Instant::now() + WITHIN;
        while !self.ranks.is_empty() && Instant::now() < until && !said.is_closed() {
            if let Some((pid, client)) = self.hear()? {
                self.tell(pid, &client)?;
            }
            for answer in self.finished() {
                let _nobody_waits = said.blocking_send((Answer::Rank(Box::new(answer)), Vec::new()));
            }
        }
        let seconds = WITHIN.as_secs();
        for (rank, (process, told)) in std::mem::take(&mut self.ranks) {
            let problem = if !process.lives() {
                "ended before its trace was written".to_owned()
            } else if told {
                format!(
                    "was told to record, and has written no trace within {seconds} s; steps are counted by optimizers of torch's alone, seconds always"
                )
            } else {
                format!(
                    "has not asked for work within {seconds} s; Kineto does in PyTorch 2.7 and later, once torch is imported"
                )
            };
            let answer = RankAnswer {
                rank: Rank(rank),
                pid: u32::try_from(process.pid).ok(),
                problem,
                ..RankAnswer::default()
            };
            let _nobody_waits = said.blocking_send((Answer::Rank(Box::new(answer)), Vec::new()));
        }
        Ok(())
    }

    /// Who asks for a trace, by our number of its process, and the name of its socket.
    fn hear(&self) -> io::Result<Option<(i32, String)>> {
        let mut bytes = [0_u8; MESSAGE_BYTES_MAX];
        let mut space = nix::cmsg_space!(UnixCredentials);
        let mut room = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let heard = match recvmsg::<UnixAddr>(self.socket.as_raw_fd(), &mut room, Some(&mut space), flags) {
            Ok(heard) => heard,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let pid = heard.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmCredentials(who) => Some(who.pid()),
            _ => None,
        });
        let client = heard
            .address
            .and_then(|address| Some(address.path()?.to_str()?.to_owned()));
        let length = heard.bytes;
        let asks = asks_for_activities(bytes.get(..length).unwrap_or_default());
        Ok(pid.zip(client).filter(|_| asks))
    }

    /// Only to a socket of Kineto's in our folder: whoever else is there must not be written to, nor ended by it.
    fn tell(&mut self, pid: i32, client: &str) -> io::Result<()> {
        let name = client.rsplit('/').next().unwrap_or_default();
        let path = self.meeting.join(name);
        let Some((rank, (_, told))) = self
            .ranks
            .iter_mut()
            .find(|(_, (process, told))| process.pid == pid && !told)
        else {
            return Ok(());
        };
        if !name.starts_with(CLIENT) || path.as_os_str() != client {
            return Ok(());
        }
        let file = self.traces.join(format!("rank-{rank}-{}.json", self.stamp));
        let length = match self.wish {
            TraceWish::Seconds(seconds) => {
                format!("ACTIVITIES_DURATION_MSECS={}\n", u64::from(seconds) * 1_000)
            }
            TraceWish::Steps(steps) => {
                format!(
                    "PROFILE_START_ITERATION=0\nPROFILE_START_ITERATION_ROUNDUP=1\nACTIVITIES_ITERATIONS={steps}\n"
                )
            }
        };
        let config = format!("ACTIVITIES_LOG_FILE={}\n{length}", file.display());
        *told = self.socket.send_to(&message(config.as_bytes()), &path).is_ok();
        Ok(())
    }

    /// Ranks whose file is there whole. One that would never be fetched does not stay.
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
                    "recorded a trace of {bytes} bytes, more than the {TRACE_BYTES_MAX} that are kept; record fewer steps or seconds"
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
