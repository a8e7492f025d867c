//! Describes the host for the hello.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use domain::topology::Inventory;

use super::{memory, text};
use crate::sample::sources;

/// Returns the host name, system, processors, memory, and the address that other nodes can reach.
pub(crate) fn describe(root: &Path, collector: Option<&str>, accepts_runs: bool) -> Inventory {
    let uname = rustix::system::uname();
    let cpuinfo = text(root, "proc/cpuinfo").unwrap_or_default();
    let meminfo = text(root, "proc/meminfo").unwrap_or_default();
    Inventory {
        hostname: line(root, "proc/sys/kernel/hostname")
            .unwrap_or_else(|| uname.nodename().to_string_lossy().into_owned()),
        addresses: address_towards(collector)
            .iter()
            .map(ToString::to_string)
            .collect(),
        os: os_name(root).unwrap_or_default(),
        kernel: line(root, "proc/sys/kernel/osrelease")
            .unwrap_or_else(|| uname.release().to_string_lossy().into_owned()),
        cpu_model: cpu_model(&cpuinfo).unwrap_or_default(),
        cpus: cpuinfo
            .lines()
            .filter(|line| line.starts_with("processor"))
            .count() as u32,
        memory_bytes: memory::total_bytes(&meminfo).unwrap_or(0.0) as u64,
        gpus_missing: Some("the agent has not looked for GPUs yet".to_owned()),
        accepts_runs,
        sources: sources(root),
        ..Inventory::default()
    }
}

fn line(root: &Path, path: &str) -> Option<String> {
    text(root, path)
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}

fn os_name(root: &Path) -> Option<String> {
    let release = text(root, "etc/os-release").or_else(|| text(root, "usr/lib/os-release"))?;
    let name = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches(['"', '\'']).to_owned())
}

/// Returns the model. x86 has `model name`; some ARM kernels name only the implementer.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map(|(_, name)| name.trim().to_owned())
}

/// Returns this host's address on the route to the collector. Connecting a datagram socket sends nothing; it only selects the route.
fn address_towards(collector: Option<&str>) -> Option<IpAddr> {
    let authority = collector?.split_once("://")?.1.split('/').next()?;
    let with_port = if authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    {
        authority.to_owned()
    } else {
        format!("{authority}:443")
    };
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect(with_port).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
