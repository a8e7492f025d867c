//! The C program, the plugin, and a socket that collects what the plugin sends.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use serde_json::Value;
use tempfile::TempDir;

/// Returns the path of the plugin, built beside this test.
pub(crate) fn plugin() -> PathBuf {
    let executable = env::current_exe().unwrap();
    let folder = executable.parent().and_then(Path::parent).unwrap();
    let built = folder.join("libnccl_probe.so");
    let inner = folder.join("deps/libnccl_probe.so");
    let newest = [built, inner]
        .into_iter()
        .filter(|path| path.is_file())
        .max_by_key(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok());
    newest.expect("cargo builds the plugin together with this test")
}

/// Returns the C program, compiled once per test run. Prints a message and returns `None` if there is no C compiler.
pub(crate) fn driver() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<(TempDir, PathBuf)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
        if Command::new(&compiler).arg("--version").output().is_err() {
            eprintln!("SKIPPED: there is no C compiler {compiler:?}; install gcc, or name one in CC");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let program = build(&compiler, folder.path());
        Some((folder, program))
    });
    built.as_ref().map(|(_, program)| program.as_path())
}

fn build(compiler: &str, folder: &Path) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness");
    let compile = |args: &[&str], output: &str| {
        let mut command = Command::new(compiler);
        command.args(["-std=gnu11", "-O1", "-Wall", "-Werror"]).args(args);
        command
            .arg("-o")
            .arg(folder.join(output))
            .current_dir(&sources)
            .stderr(Stdio::inherit());
        assert!(command.status().unwrap().success(), "{output} does not compile");
    };
    compile(&["-shared", "-fPIC", "nccl.c", "-ldl"], "libfakenccl.so");
    let library = folder.join("libfakenccl.so").display().to_string();
    let run_path = format!("-Wl,-rpath,{}", folder.display());
    compile(&["drive.c", &library, &run_path, "-lpthread"], "drive");
    folder.join("drive")
}

/// A socket like the shim's, and a thread that reads it.
pub(crate) struct Collector {
    folder: TempDir,
    thread: JoinHandle<Vec<Value>>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("probe.sock")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let thread = std::thread::spawn(move || gather(&socket));
        Self { folder, thread }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("probe.sock")
    }

    /// Returns everything that was received.
    pub(crate) fn finish(self) -> Vec<Value> {
        let end = UnixDatagram::unbound().unwrap();
        end.send_to(b"end", self.path()).unwrap();
        self.thread.join().unwrap()
    }
}

fn gather(socket: &UnixDatagram) -> Vec<Value> {
    let mut records = Vec::new();
    let mut buffer = [0; 16_384];
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) if &buffer[..length] == b"end" => return records,
            Ok(length) => {
                assert!(length <= 8_192, "a datagram of {length} bytes");
                records.push(serde_json::from_slice(&buffer[..length]).unwrap());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => panic!("nothing came: {error}"),
        }
    }
}

/// A training process, as the plugin sees it.
pub(crate) struct Process {
    child: Child,
    trace: Option<std::process::ChildStdin>,
}

impl Process {
    /// Starts a process. Its environment contains only `variables`.
    pub(crate) fn start(driver: &Path, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(driver)
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let trace = child.stdin.take();
        Self { child, trace }
    }

    pub(crate) fn play(&mut self, trace: &str) -> &mut Self {
        self.trace.as_mut().unwrap().write_all(trace.as_bytes()).unwrap();
        self
    }

    /// Waits until the process has ended successfully, and returns its output.
    pub(crate) fn end(mut self) -> String {
        drop(self.trace.take());
        let deadline = Instant::now() + Duration::from_secs(120);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                self.child.kill().unwrap();
                panic!("the program hangs");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut printed = String::new();
        io::Read::read_to_string(self.child.stdout.as_mut().unwrap(), &mut printed).unwrap();
        assert!(status.success(), "{status}: {printed}");
        printed
    }
}

/// Plays one trace in one process. Returns its output and what was sent.
pub(crate) fn replay(driver: &Path, variables: &[(&str, &str)], trace: &str) -> (String, Vec<Value>) {
    let collector = Collector::start();
    let socket = collector.path().display().to_string();
    let mut all = vec![("LOCKSTEP_PROBE_SOCKET", socket.as_str())];
    all.extend(variables);
    let mut process = Process::start(driver, &all);
    process.play(trace);
    let printed = process.end();
    (printed, collector.finish())
}
