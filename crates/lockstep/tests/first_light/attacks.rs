//! Attacks by a client that reaches the collector's port without a token: no other client may notice them. Uses the real binary, because
//! its memory is measured.
#![expect(clippy::print_stdout, reason = "what was measured is worth reading")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::product::environment::program;
use crate::product::process::spawn_collector;

const ADMIN: &str = "admin-token-of-the-tests";
/// No answer takes longer during an attack, on two busy cores.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How much memory a flood may use: buffers of 8 KiB, tasks, and what the allocator rounds up.
const GROWTH_BYTES_MAX: u64 = 6 << 20;
/// Bytes that each connection sends.
const SENT_BYTES: usize = 16 << 20;
/// A connection that accepts no data for this long accepts no more.
const TAKEN_WITHIN: Duration = Duration::from_millis(500);

struct Collector {
    child: Child,
    address: String,
    _folder: TempDir,
}

/// Memory of a process.
#[derive(Debug, Clone, Copy)]
struct Memory {
    resident_bytes: u64,
    /// Without file pages, which are the used parts of the binary's code.
    anonymous_bytes: u64,
}

impl Collector {
    /// Starts with the soft limit of open files that most systems have.
    fn start() -> Self {
        Self::start_with_open_files("-S -n 1024")
    }

    fn start_with_open_files(ulimit: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!(r#"ulimit {ulimit} && exec "$0" "$@""#)])
            .arg(program())
            .args(["collector", "--listen", "127.0.0.1:0", "--data"])
            .arg(folder.path())
            .env("LOCKSTEP_ADMIN_TOKEN", ADMIN);
        let (child, url) = spawn_collector(command);
        Self {
            child,
            address: url.strip_prefix("http://").unwrap().to_owned(),
            _folder: folder,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_write_timeout(Some(TAKEN_WITHIN)).unwrap();
        stream
    }

    /// Sends one request on a new connection. Returns the status and the time it took.
    fn ask(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> (u16, Duration) {
        let begin = Instant::now();
        let mut stream = self.connect();
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n{body}",
            token.unwrap_or_default(),
            body.len(),
        );
        stream.write_all(request.as_bytes()).unwrap();
        (status(&mut stream).unwrap_or_default(), begin.elapsed())
    }

    fn memory(&self) -> Memory {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
        };
        Memory {
            resident_bytes: bytes("VmRSS:"),
            anonymous_bytes: bytes("RssAnon:"),
        }
    }

    /// Checks that the requests of other clients are answered quickly. Returns the longest time.
    fn serves_others(&self) -> Duration {
        let log_in = format!(r#"{{"token":"{ADMIN}"}}"#);
        let asked = [
            ("GET", "/-/healthy", None, ""),
            ("GET", "/-/ready", None, ""),
            ("GET", "/api/nodes", Some(ADMIN), ""),
            ("GET", "/api/v1/query?query=1", Some(ADMIN), ""),
            ("POST", "/api/session", None, &*log_in),
        ];
        let times = asked.map(|(method, path, token, body)| {
            let (status, took) = self.ask(method, path, token, body);
            println!("  {method} {path}: {status} after {took:.1?}");
            assert_eq!(status, 200, "{method} {path}");
            assert!(took < ANSWER_WITHIN, "{method} {path} took {took:?}");
            took
        });
        times.into_iter().max().unwrap_or_default()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Reads the status of a response; `None` if the connection is closed without one.
fn status(stream: &mut TcpStream) -> Option<u16> {
    let mut head = [0; 12];
    stream.read_exact(&mut head).ok()?;
    std::str::from_utf8(&head[9..]).ok()?.parse().ok()
}

/// Sends a head and then as much as is accepted, on many connections at once. Returns the highest memory use seen.
fn flood(collector: &Collector, connections: usize, head: &[u8]) -> Memory {
    let mut most = collector.memory();
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..connections)
            .map(|_| {
                scope.spawn(|| {
                    let mut stream = collector.connect();
                    let block = [b'x'; 64 << 10];
                    let mut sent = 0;
                    let mut taken = stream.write_all(head);
                    while taken.is_ok() && sent < SENT_BYTES - block.len() {
                        taken = stream.write_all(&block);
                        sent += block.len();
                    }
                    stream
                })
            })
            .collect();
        // Each connection stays open until all have sent.
        let mut look = || {
            let now = collector.memory();
            most.resident_bytes = most.resident_bytes.max(now.resident_bytes);
            most.anonymous_bytes = most.anonymous_bytes.max(now.anonymous_bytes);
        };
        while !senders.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            look();
            std::thread::sleep(Duration::from_millis(5));
        }
        let streams: Vec<_> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
        look();
        drop(streams);
    });
    most
}

#[test]
fn forty_connections_that_each_send_16_mb_take_no_memory() {
    let collector = Collector::start();
    let upgrade = "GET /lockstep.wire.v1/telemetry HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer guess\r\nConnection: Upgrade\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    // The beginning of one message of the maximum length.
    let message = [0x82, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let attacks = [
        ("a hello of an agent", [upgrade.as_bytes(), &message].concat()),
        ("a head without an end", b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ".to_vec()),
        (
            "the body of a log-in",
            format!("POST /api/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {SENT_BYTES}\r\n\r\n\"")
                .into_bytes(),
        ),
        (
            "the body of a write with a bad token",
            format!("POST /api/v1/write HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer guess\r\nContent-Length: {SENT_BYTES}\r\n\r\n")
                .into_bytes(),
        ),
    ];
    // The first use of each code path takes memory once.
    for (_, head) in &attacks {
        flood(&collector, 4, head);
    }
    for (name, head) in &attacks {
        let before = collector.memory();
        let most = flood(&collector, 40, head);
        let grown = most.anonymous_bytes.saturating_sub(before.anonymous_bytes);
        println!(
            "{name}: resident {:.1} MiB before, {:.1} MiB at most; without files {:.2} MiB more",
            mib(before.resident_bytes),
            mib(most.resident_bytes),
            mib(grown),
        );
        assert!(
            grown < GROWTH_BYTES_MAX,
            "{name}: 40 connections took {:.1} MiB of memory",
            mib(grown)
        );
        collector.serves_others();
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[test]
fn slow_log_ins_delay_no_one() {
    let collector = Collector::start();
    let head = "POST /api/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    let mut slow: Vec<TcpStream> = (0..260)
        .map(|_| {
            let mut stream = collector.connect();
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    let longest = collector.serves_others();
    println!("260 slow log-ins: the slowest answer to others took {longest:.1?}");
    let statuses: Vec<_> = slow.iter_mut().map(status).collect();
    let count = |code| statuses.iter().filter(|status| **status == Some(code)).count();
    // The order in which the collector reads the heads decides which connections are the newest.
    let (replaced, late) = (count(503), count(408));
    assert_eq!(replaced + late, slow.len(), "{statuses:?}");
    assert!(replaced >= 200, "{replaced} gave way to newer ones");
    assert!(late > 0, "the time of the newest ones was up");
}

#[test]
fn silent_connections_delay_no_one() {
    // This process has the other end of each connection.
    let raised = listener::OpenFiles::raise().unwrap();
    assert!(raised.soft.is_none_or(|soft| soft >= 2_048), "{raised}");
    for (ulimit, connections) in [("-S -n 1024", 1_300), ("-n 512", 600)] {
        let collector = Collector::start_with_open_files(ulimit);
        let mut known = collector.connect();
        let request = format!("GET /api/nodes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n\r\n");
        known.write_all(request.as_bytes()).unwrap();
        assert_eq!(status(&mut known), Some(200));
        let before = collector.memory();
        let silent: Vec<TcpStream> = (0..connections).map(|_| collector.connect()).collect();
        let longest = collector.serves_others();
        let grown = collector
            .memory()
            .anonymous_bytes
            .saturating_sub(before.anonymous_bytes);
        println!(
            "ulimit {ulimit}, {connections} silent connections: the slowest answer took {longest:.1?}; {:.1} MiB more",
            mib(grown)
        );
        assert!(grown < 32 << 20, "{:.1} MiB", mib(grown));
        known.write_all(request.as_bytes()).unwrap();
        let mut rest = [0; 4_096];
        assert!(known.read(&mut rest).unwrap() > 0, "a known connection stands");
        drop(silent);
    }
}

#[test]
fn services_raise_their_limit_of_open_files() {
    let collector = Collector::start();
    let text = std::fs::read_to_string(format!("/proc/{}/limits", collector.child.id())).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let limits: Vec<u64> = line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    assert_eq!(limits[0], limits[1].min(1 << 20), "{line}");
}
