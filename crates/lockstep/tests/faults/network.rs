//! A node that is a separate machine as far as the network is concerned: it is behind a link that can go down without a notice.
//!
//! ```text
//!  this machine              network namespace
//!  collector, a, spare       b: its agent and ranks
//!  10.213.N.1 ── veth pair ── 10.213.N.2      down: `ip link set … down` on the far side, which keeps the near address alive
//! ```
//! Namespaces need root. Without root, a proxy between the far agent and the collector stops forwarding while the link is down. The ranks
//! can still reach each other then, so this tests less, and the table says so.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// How often a proxy that forwards nothing checks whether the link is up.
const LOOK: Duration = Duration::from_millis(100);

/// The link to the node that is a separate machine.
pub(crate) enum Link {
    Namespace(Namespace),
    Proxy(Proxy),
}

/// A network namespace, and a pair of interfaces with the same name at both ends: Gloo finds its interface by name.
pub(crate) struct Namespace {
    name: String,
    near: String,
}

/// A port that forwards to the collector while the link is up.
pub(crate) struct Proxy {
    port: u16,
    up: Arc<AtomicBool>,
    /// The collector's address, once it is known.
    target: Arc<OnceLock<String>>,
}

impl Link {
    /// Makes a namespace. Without root, makes a proxy instead.
    pub(crate) fn make() -> Result<Self> {
        match Namespace::make() {
            Ok(namespace) => Ok(Self::Namespace(namespace)),
            Err(_) if !rustix::process::geteuid().is_root() => Ok(Self::Proxy(Proxy::start()?)),
            Err(error) => Err(error),
        }
    }

    /// Describes the link for the table.
    pub(crate) fn in_words(&self) -> &'static str {
        match self {
            Self::Namespace(_) => "network namespace, its link set down",
            Self::Proxy(_) => "no root: a proxy to the collector that forwards nothing",
        }
    }

    /// The address on which the collector must listen so that the far side can reach it.
    pub(crate) fn near_address(&self) -> &str {
        match self {
            Self::Namespace(namespace) => &namespace.near,
            Self::Proxy(_) => "127.0.0.1",
        }
    }

    /// The interface for the ranks' connections.
    pub(crate) fn interface(&self) -> &str {
        match self {
            Self::Namespace(namespace) => &namespace.name,
            Self::Proxy(_) => "lo",
        }
    }

    /// Returns a command that starts a program on the far side.
    pub(crate) fn command(&self, program: &Path) -> Command {
        match self {
            Self::Namespace(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &namespace.name]).arg(program);
                command
            }
            Self::Proxy(_) => Command::new(program),
        }
    }

    /// The collector's URL for the far side, if it differs from its own.
    pub(crate) fn far_url(&self, collector: &str) -> Option<String> {
        match self {
            Self::Namespace(_) => None,
            Self::Proxy(proxy) => {
                proxy.target.get_or_init(|| collector.replace("http://", ""));
                Some(format!("http://127.0.0.1:{}", proxy.port))
            }
        }
    }

    /// Brings the link up or takes it down.
    pub(crate) fn set(&mut self, up: bool) -> Result<()> {
        match self {
            Self::Namespace(namespace) => {
                let name = namespace.name.as_str();
                ip(&["-n", name, "link", "set", name, if up { "up" } else { "down" }])
            }
            Self::Proxy(proxy) => {
                proxy.up.store(up, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

impl Namespace {
    fn make() -> Result<Self> {
        let number = std::process::id() % 250 + 1;
        let made = Self {
            name: format!("lockstep{number}"),
            near: format!("10.213.{number}.1"),
        };
        let (name, far) = (made.name.as_str(), format!("10.213.{number}.2/24"));
        let near = format!("{}/24", made.near);
        ip(&["netns", "add", name])?;
        ip(&[
            "link", "add", name, "type", "veth", "peer", "name", name, "netns", name,
        ])?;
        ip(&["address", "add", &near, "dev", name])?;
        ip(&["-n", name, "address", "add", &far, "dev", name])?;
        ip(&["link", "set", name, "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        ip(&["-n", name, "link", "set", name, "up"])?;
        Ok(made)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Deleting one end deletes both.
        let _gone_already = ip(&["link", "del", &self.name]);
        let _gone_already = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .context("`ip` of iproute2")?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`ip {}`: {}",
        arguments.join(" "),
        message.trim()
    );
    Ok(())
}

impl Proxy {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let proxy = Self {
            port: listener.local_addr()?.port(),
            up: Arc::new(AtomicBool::new(true)),
            target: Arc::default(),
        };
        let (up, target) = (proxy.up.clone(), proxy.target.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let (up, target) = (up.clone(), target.clone());
                std::thread::spawn(move || join(near, &up, &target));
            }
        });
        Ok(proxy)
    }
}

/// Connects a new connection to the collector. While the link is down, it waits, like a lost SYN.
fn join(near: TcpStream, up: &Arc<AtomicBool>, target: &OnceLock<String>) {
    wait_until(up);
    let Some(far) = target.get().and_then(|target| TcpStream::connect(target).ok()) else {
        return;
    };
    let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else {
        return;
    };
    let back = up.clone();
    std::thread::spawn(move || forward(far_too, near_too, &back));
    forward(near, far, up);
}

fn forward(mut from: TcpStream, mut to: TcpStream, up: &AtomicBool) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        wait_until(up);
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _gone_already = to.shutdown(Shutdown::Both);
    let _gone_already = from.shutdown(Shutdown::Both);
}

fn wait_until(up: &AtomicBool) {
    while !up.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
    }
}

#[test]
fn a_proxy_forwards_nothing_while_its_link_is_down_and_all_of_it_afterwards() {
    let echo = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", echo.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = echo.accept().unwrap();
        let mut copy = stream.try_clone().unwrap();
        std::io::copy(&mut stream, &mut copy)
    });
    let mut link = Link::Proxy(Proxy::start().unwrap());
    let url = link.far_url(&address).unwrap();
    let mut client = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    // On a stalled machine an answer takes seconds. Only the wait for none is short.
    client.set_read_timeout(Some(LOOK * 600)).unwrap();
    let mut answer = [0; 2];
    client.write_all(b"up").unwrap();
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"up");

    link.set(false).unwrap();
    client.write_all(b"dn").unwrap();
    client.set_read_timeout(Some(LOOK * 5)).unwrap();
    assert!(client.read(&mut answer).is_err(), "what was sent came through");
    link.set(true).unwrap();
    client.set_read_timeout(Some(LOOK * 600)).unwrap();
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"dn");
}
