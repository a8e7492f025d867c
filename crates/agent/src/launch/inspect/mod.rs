//! Requests to the ranks of an attempt for their current state: to each rank's worker server ([`server`]), to Kineto ([`kineto`]), and to
//! the kernel for a rank that does not answer ([`process`]).
//!
//! No answer is stored. If a question cannot be answered in time, the answer contains the reason.

mod digest;
pub(crate) mod kineto;
mod pipe;
mod process;
mod server;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use domain::ident::Rank;
use domain::run::inspect::{
    ANSWER_WITHIN_MS, Answer, JSON_BYTES_MAX, LanesAnswer, PIECE_BYTES_MAX, Question, RankAnswer,
    RecorderDump, STACKS_BYTES_MAX, TRACE_BYTES_MAX, What, newest_entries, read_lanes,
};
use domain::run::state::{NodeReport, Start};
use shim::{Folder, Owner, Process, Secrets, files, read_from};
use tokio::sync::{Semaphore, mpsc};

use server::AskError;

/// Maximum number of questions at the same time. Further questions are rejected.
const QUESTIONS_MAX: usize = 8;
static QUESTION_SLOTS: Semaphore = Semaphore::const_new(QUESTIONS_MAX);
/// Only one trace is read into lanes at the same time: a large one takes some seconds of a CPU, which the ranks need, and up to 64 MiB.
static LANES_SLOT: Semaphore = Semaphore::const_new(1);
/// Maximum number of ranks whose Flight Recorders are in memory at the same time. Other answers are small.
const FLIGHTS_AT_ONCE: usize = 4;

/// An answer, and the piece of a file that belongs to it.
pub(crate) type AnswerPart = (Answer, Vec<u8>);

/// Answers a question about an attempt, one answer per rank, as soon as each is available. The receiver may go away in the meantime.
pub(crate) async fn answer(folder: &Folder, question: Question, answers: &mpsc::Sender<AnswerPart>) {
    let Ok(_slot) = QUESTION_SLOTS.try_acquire() else {
        let busy =
            "this node's agent already answers its maximum number of requests; try again in a few seconds";
        return fail(busy, answers).await;
    };
    if let What::TracePiece { file, offset } = &question.what {
        let (folder, file, offset) = (folder.clone(), file.clone(), *offset);
        let read = tokio::task::spawn_blocking(move || trace_piece(&folder, &file, offset)).await;
        return send_part(read.map_err(io::Error::other).and_then(|read| read), answers).await;
    }
    if let What::TraceLanes { file } = &question.what {
        let Ok(slot) = LANES_SLOT.try_acquire() else {
            let busy =
                "this node's agent already reads the lanes of another trace; try again in a few seconds";
            return fail(busy, answers).await;
        };
        let (folder, file) = (folder.clone(), file.clone());
        // The slot belongs to the thread, which continues if the connection ends.
        let read = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            trace_lanes(&folder, &file)
        });
        let read = read.await;
        return send_part(read.map_err(io::Error::other).and_then(|read| read), answers).await;
    }
    let mut ranks = living(folder);
    if let Some(Rank(wanted)) = question.rank {
        ranks.retain(|rank, _| *rank == wanted);
    }
    if let What::Trace(trace_length) = question.what {
        return match kineto::record(folder, ranks, trace_length, answers).await {
            Ok(()) => {}
            Err(error) => fail(&error.to_string(), answers).await,
        };
    }
    let at_once = Semaphore::new(match question.what {
        What::Flight | What::FlightDigest => FLIGHTS_AT_ONCE,
        _ => ranks.len(),
    });
    let secrets = match kept_secrets(folder) {
        Ok(secrets) => secrets,
        Err(error) => return fail(&error.to_string(), answers).await,
    };
    let requests = ranks.into_iter().map(|(rank, process)| {
        let (at_once, secrets, what) = (&at_once, &secrets, &question.what);
        async move {
            let answer = ask(folder, (rank, process), what, secrets, at_once).await;
            let _receiver_is_gone = answers.send((Answer::Rank(Box::new(answer)), Vec::new())).await;
        }
    });
    futures::future::join_all(requests).await;
}

/// Sends what was read of a trace, or why it cannot be read.
async fn send_part(read: io::Result<AnswerPart>, answers: &mpsc::Sender<AnswerPart>) {
    match read {
        Ok(part) => drop(answers.send(part).await),
        Err(error) => fail(&format!("the trace cannot be read on the node: {error}"), answers).await,
    }
}

/// Sends the message that a question cannot be answered at all.
pub(crate) async fn fail(message: &str, answers: &mpsc::Sender<AnswerPart>) {
    let message = message.to_owned();
    let _receiver_is_gone = answers.send((Answer::Failed { message }, Vec::new())).await;
}

/// Returns the secrets that no answer may contain. After the end of the attempt their values are deleted; answers that may contain them are
/// then refused.
fn kept_secrets(folder: &Folder) -> io::Result<Secrets> {
    let secrets = Secrets::of(folder);
    if !folder.has(files::START) {
        // A command of `lockstep exec` has no secrets.
        return Ok(secrets);
    }
    let start: Start = folder.read(files::START)?;
    match start.spec.secrets.keys().find(|name| !secrets.has(name)) {
        None => Ok(secrets),
        Some(name) => Err(io::Error::other(format!(
            "the value of the secret {name} is no longer kept, so it could not be hidden; request this while the run is active, or copy the \
             file from the node"
        ))),
    }
}

/// Returns the running ranks of the node, as their shim found them.
fn living(folder: &Folder) -> BTreeMap<u32, Process> {
    let (reports, _) = read_from(&folder.file(files::SHIM_REPORTS), 0).unwrap_or_default();
    let started = reports.iter().filter_map(|entry| match entry.report {
        NodeReport::RankStarted { rank, pid, .. } => Some((rank.0, i32::try_from(pid).ok()?)),
        _ => None,
    });
    let mut ranks: BTreeMap<u32, i32> = started.collect();
    for entry in &reports {
        if let NodeReport::RankExited(exit) = &entry.report {
            ranks.remove(&exit.rank.0);
        }
    }
    let noted = Owner::read(folder).ranks;
    let process = |(rank, pid): (u32, i32)| {
        let process = match noted.get(&rank) {
            Some(noted) if noted.pid == pid => Some(*noted).filter(|noted| noted.lives()),
            // `lockstep exec` does not record processes.
            _ => Process::of(pid),
        };
        Some((rank, process?))
    };
    ranks.into_iter().filter_map(process).collect()
}

async fn ask(
    folder: &Folder,
    (rank, process): (u32, Process),
    what: &What,
    secrets: &Secrets,
    at_once: &Semaphore,
) -> RankAnswer {
    let mut answer = RankAnswer {
        rank: Rank(rank),
        pid: u32::try_from(process.pid).ok(),
        ..RankAnswer::default()
    };
    if process::is_stopped(process) {
        answer.problem = "cannot answer: its process is stopped, by a signal or a debugger".into();
        answer.process = process::read_state(process).await;
        return answer;
    }
    let socket = folder.rank_socket(rank);
    let one_of_few = at_once.acquire().await;
    match bodies(&socket, what).await {
        Ok((bodies, problem)) => {
            answer.problem = problem.map(|error| error.to_string()).unwrap_or_default();
            if *what == What::FlightDigest {
                let dumps = dumps(&mut answer, bodies, secrets);
                digest::fill(&mut answer, &dumps, folder, process.pid);
            } else {
                let bodies = bodies.into_iter().map(|(_, body)| body).collect();
                fill(&mut answer, what, bodies, secrets);
                if *what == What::Stacks {
                    answer.pipe_without_writer = pipe::without_writer(process).await;
                }
            }
        }
        Err(AskError::NoHandler) => {
            let since = match what {
                What::WaitCounters => "2.10",
                What::Flight | What::FlightDigest => "2.8, or 2.6 with NCCL,",
                _ => "2.6",
            };
            answer.problem = format!("its PyTorch does not support this request; {since} or later does");
        }
        Err(error) => {
            drop(one_of_few);
            answer.problem = error.to_string();
            answer.process = process::read_state(process).await;
        }
    }
    answer
}

/// The handler for the recorder of all backends except NCCL.
const RECORDER: &str = "fr_trace_json";
/// The handler for NCCL's own recorder.
const NCCL_RECORDER: &str = "dump_nccl_trace_json";

/// The name of a handler and its answer.
type Body = (&'static str, Vec<u8>);

/// Returns the answers of the rank's server, and the error if some are missing. NCCL records its collectives separately from all other
/// backends and has its own handler for them.
async fn bodies(socket: &Path, what: &What) -> Result<(Vec<Body>, Option<AskError>), AskError> {
    let handlers: &[&'static str] = match what {
        What::WaitCounters => &["wait_counter_values"],
        What::Flight | What::FlightDigest => &[RECORDER, NCCL_RECORDER],
        _ => &["dump_traceback"],
    };
    let within = Duration::from_millis(ANSWER_WITHIN_MS);
    let requests = handlers
        .iter()
        .map(|handler| server::ask(socket, handler, within));
    let (mut bodies, mut problem) = (Vec::new(), None);
    for (handler, result) in handlers.iter().zip(futures::future::join_all(requests).await) {
        match result {
            Ok(body) => bodies.push((*handler, body)),
            Err(AskError::NoHandler) => {}
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    if bodies.is_empty() {
        return Err(problem.unwrap_or(AskError::NoHandler));
    }
    Ok((bodies, problem))
}

/// Stores the answers that fit. Secrets are searched in the parsed JSON: a value may be escaped in the text, and digits may be part of a
/// number.
fn fill(answer: &mut RankAnswer, what: &What, bodies: Vec<Vec<u8>>, secrets: &Secrets) {
    if *what == What::Stacks {
        let mut body = bodies.concat();
        secrets.hide(&mut body);
        let from = body.len().saturating_sub(STACKS_BYTES_MAX);
        answer.cut = from > 0;
        answer.text = Some(String::from_utf8_lossy(&body[from..]).into_owned());
        return;
    }
    let mut values = Vec::new();
    for body in bodies {
        match serde_json::from_slice(&body) {
            Ok(mut value) => {
                secrets.redact_names_too(&mut value);
                values.push(value);
            }
            Err(error) => answer.problem = format!("answered with invalid JSON: {error}"),
        }
    }
    if values.is_empty() {
        return;
    }
    let value = match what {
        What::Flight => newest_entries(values),
        _ => values.swap_remove(0),
    };
    let length = value.to_string().len();
    if length > JSON_BYTES_MAX {
        answer.problem =
            format!("answered with {length} bytes, more than the {JSON_BYTES_MAX} that are accepted");
    } else {
        answer.json = Some(value);
    }
}

/// Returns the recorders' answers as JSON without secrets.
fn dumps(answer: &mut RankAnswer, bodies: Vec<Body>, secrets: &Secrets) -> Vec<RecorderDump> {
    let mut dumps = Vec::new();
    for (handler, body) in bodies {
        let backend = if handler == NCCL_RECORDER { "nccl" } else { "" };
        match serde_json::from_slice(&body) {
            Ok(mut json) => {
                secrets.redact_names_too(&mut json);
                dumps.push(RecorderDump { backend, json });
            }
            Err(error) => answer.problem = format!("answered with invalid JSON: {error}"),
        }
    }
    dumps
}

/// Opens a trace, and returns its length in bytes. A larger one was not written by a recording of this agent.
fn open_trace(folder: &Folder, file: &str) -> io::Result<(File, u64)> {
    let path = kineto::path_of(folder, file)?;
    // The rank's script may write into the folder: no link is followed, and opening a pipe does not wait for a writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let length = metadata.len();
    if length > TRACE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "it has {length} bytes, more than the {TRACE_BYTES_MAX} that can be fetched; record fewer steps or seconds, or copy it from the node"
        )));
    }
    Ok((file, length))
}

/// Reads the lanes of a trace. They contain no text of the file, so they need no values of secrets and can be read after the attempt.
fn trace_lanes(folder: &Folder, file: &str) -> io::Result<AnswerPart> {
    let (file, length) = open_trace(folder, file)?;
    let answer = match read_lanes(BufReader::new(file.take(length))) {
        Ok(lanes) => LanesAnswer {
            lanes: Some(lanes),
            problem: String::new(),
        },
        Err(error) => LanesAnswer {
            lanes: None,
            problem: error.to_string(),
        },
    };
    Ok((Answer::Lanes(Box::new(answer)), Vec::new()))
}

/// Reads a piece of a trace. Secrets in it are hidden, wherever the pieces begin.
fn trace_piece(folder: &Folder, file: &str, offset: u64) -> io::Result<AnswerPart> {
    let (mut file, length) = open_trace(folder, file)?;
    let secrets = kept_secrets(folder)?;
    let reach = secrets.reach() as u64;
    let from = offset.min(length).saturating_sub(reach);
    let end = offset.saturating_add(PIECE_BYTES_MAX).min(length);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take((end + reach).saturating_sub(from))
        .read_to_end(&mut bytes)?;
    secrets.hide(&mut bytes);
    let at = |place: u64| {
        usize::try_from(place.saturating_sub(from))
            .unwrap_or(usize::MAX)
            .min(bytes.len())
    };
    let piece = bytes[at(offset.min(end))..at(end)].to_vec();
    Ok((Answer::Piece { length }, piece))
}

#[cfg(test)]
mod tests;
