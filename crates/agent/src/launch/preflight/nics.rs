//! The network interfaces that the collectives of a run will use on this node, chosen as the libraries choose them.
//!
//! ```text
//! NCCL   NCCL_SOCKET_IFNAME: prefixes, `=` exact, `^` all except these; else ib…, else any except lo and docker…, else these
//!        in addition RDMA ports, by NCCL_IB_HCA; none with NCCL_IB_DISABLE=1
//! Gloo   GLOO_SOCKET_IFNAME: the first name; else the interface of the host name's address; else loopback
//! ```
//! Variables are the run's own, otherwise those that the ranks inherit from the agent. Files are read below a root folder; addresses come
//! from the kernel.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use domain::run::spec::{Backend, Spec};
use domain::run::state::Nic;

/// Maximum number of RDMA ports in a report. The largest nodes have 16; hundreds of virtual functions are not useful.
const PORTS_MAX: usize = 32;
/// Time limit for resolving the host name. After it, the interfaces are unknown.
const CHOICE_TIMEOUT: Duration = Duration::from_secs(10);

/// The interface of the sockets first, then the RDMA ports. `address` is this node's address on the first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Nics {
    pub(crate) nics: Vec<Nic>,
    pub(crate) address: Option<IpAddr>,
}

/// An interface and its addresses, in the kernel's order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Interface {
    name: String,
    addresses: Vec<IpAddr>,
}

/// Determines the interfaces. It returns an empty result after the time limit: an unknown interface is no reason to fail.
pub(crate) async fn choose_nics(spec: &Spec, gpus: u32) -> Nics {
    let spec = spec.clone();
    let choice = tokio::task::spawn_blocking(move || {
        let uses_nccl = match spec.backend {
            Backend::Nccl => true,
            Backend::Gloo => false,
            Backend::Auto => gpus > 0,
        };
        let variable = |name: &str| spec.env.get(name).cloned().or_else(|| std::env::var(name).ok());
        choose(
            Path::new("/"),
            &interfaces(),
            uses_nccl,
            &variable,
            &own_addresses,
        )
    });
    match tokio::time::timeout(CHOICE_TIMEOUT, choice).await {
        Ok(Ok(nics)) => nics,
        Ok(Err(_)) | Err(_) => Nics::default(),
    }
}

/// Makes all decisions from the machine's data, which are passed in.
fn choose(
    root: &Path,
    interfaces: &[Interface],
    uses_nccl: bool,
    variable: &dyn Fn(&str) -> Option<String>,
    own_addresses: &dyn Fn() -> Vec<IpAddr>,
) -> Nics {
    let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
    let chosen = if uses_nccl {
        of_nccl(interfaces, set("NCCL_SOCKET_IFNAME").as_deref())
    } else {
        of_gloo(interfaces, set("GLOO_SOCKET_IFNAME").as_deref(), own_addresses)
    };
    let mut nics: Vec<Nic> = chosen
        .map(|interface| ethernet(root, &interface.name))
        .into_iter()
        .collect();
    if uses_nccl && set("NCCL_IB_DISABLE").is_none_or(|value| value == "0") {
        nics.extend(ports(root, set("NCCL_IB_HCA").as_deref()));
    }
    Nics {
        nics,
        address: chosen.and_then(Interface::address),
    }
}

impl Interface {
    /// Returns the address for other nodes. IPv4 comes first, as in both libraries. A link-local address is useless to other nodes.
    fn address(&self) -> Option<IpAddr> {
        let usable = |ip: &&IpAddr| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let mut usable: Vec<&IpAddr> = self.addresses.iter().filter(usable).collect();
        usable.sort_by_key(|ip| ip.is_ipv6());
        usable.first().map(|ip| **ip)
    }
}

fn of_nccl<'a>(interfaces: &'a [Interface], rule: Option<&str>) -> Option<&'a Interface> {
    let with_address = || {
        interfaces
            .iter()
            .filter(|interface| interface.address().is_some())
    };
    if let Some(rule) = rule {
        return with_address().find(|interface| matches(rule, &interface.name));
    }
    let starts = |interface: &&Interface, word: &str| interface.name.starts_with(word);
    with_address()
        .find(|i| starts(i, "ib"))
        .or_else(|| with_address().find(|i| !starts(i, "lo") && !starts(i, "docker")))
        .or_else(|| with_address().find(|i| starts(i, "docker")))
        .or_else(|| with_address().find(|i| starts(i, "lo")))
}

fn of_gloo<'a>(
    interfaces: &'a [Interface],
    rule: Option<&str>,
    own_addresses: &dyn Fn() -> Vec<IpAddr>,
) -> Option<&'a Interface> {
    if let Some(rule) = rule {
        let first = rule.split(',').next().unwrap_or(rule).trim();
        return interfaces.iter().find(|interface| interface.name == first);
    }
    let own = own_addresses();
    let has_own = |interface: &&Interface| interface.addresses.iter().any(|ip| own.contains(ip));
    let loopback = |interface: &&Interface| interface.addresses.iter().any(IpAddr::is_loopback);
    interfaces
        .iter()
        .find(has_own)
        .or_else(|| interfaces.iter().find(loopback))
}

/// Matches NCCL's device rules: `eth,ib`, `=eth0`, `^docker`, `^=lo`. An RDMA device may have a port, as in `mlx5_0:1`.
fn matches(rule: &str, name: &str) -> bool {
    let (not, rule) = rule.strip_prefix('^').map_or((false, rule), |rule| (true, rule));
    let (exact, rule) = rule.strip_prefix('=').map_or((false, rule), |rule| (true, rule));
    let one = |word: &str| {
        let device = name.split(':').next().unwrap_or(name);
        match word {
            "" => false,
            _ if word.contains(':') => name == word,
            _ if exact => device == word,
            _ => device.starts_with(word),
        }
    };
    rule.split(',').map(str::trim).any(one) != not
}

fn ethernet(root: &Path, name: &str) -> Nic {
    let folder = root.join("sys/class/net").join(name);
    let text = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
    let number = |file: &str| text(file).and_then(|text| text.trim().parse::<i64>().ok());
    Nic {
        name: name.to_owned(),
        rdma: false,
        // -1 or an error if the interface has no speed.
        speed_mbit: number("speed")
            .and_then(|speed| u64::try_from(speed).ok())
            .filter(|speed| *speed > 0),
        mtu: number("mtu").and_then(|mtu| u32::try_from(mtu).ok()),
        // An error if the interface was taken down.
        up: folder.exists().then(|| number("carrier") == Some(1)),
    }
}

fn ports(root: &Path, rule: Option<&str>) -> Vec<Nic> {
    let entries = |folder: &Path| {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    };
    let devices = root.join("sys/class/infiniband");
    let mut found = Vec::new();
    for device in entries(&devices) {
        let folder = devices.join(&device).join("ports");
        for port in entries(&folder) {
            let name = format!("{device}:{port}");
            if rule.is_none_or(|rule| matches(rule, &name)) && found.len() < PORTS_MAX {
                found.push(rdma(&folder.join(port), name));
            }
        }
    }
    found
}

/// Reads the state and rate of a port: `4: ACTIVE`, and `400 Gb/sec (4X NDR)`.
fn rdma(port: &Path, name: String) -> Nic {
    let text = |file: &str| std::fs::read_to_string(port.join(file)).ok();
    let gigabits = text("rate").and_then(|rate| rate.split_ascii_whitespace().next()?.parse::<f64>().ok());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate of a few hundred gigabits"
    )]
    let speed_mbit = gigabits
        .filter(|rate| (0.1..1e6).contains(rate))
        .map(|rate| (rate * 1_000.0) as u64);
    Nic {
        name,
        rdma: true,
        speed_mbit,
        mtu: None,
        up: text("state").map(|state| state.contains("ACTIVE")),
    }
}

/// Returns the interface of each address of this machine.
pub(crate) fn interface_by_address() -> HashMap<IpAddr, String> {
    let mut found = HashMap::new();
    for interface in interfaces() {
        for address in interface.addresses {
            found.insert(address, interface.name.clone());
        }
    }
    found
}

fn interfaces() -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    for entry in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        let address = entry.address.and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        });
        let at = found
            .iter()
            .position(|known| known.name == entry.interface_name)
            .unwrap_or_else(|| {
                found.push(Interface {
                    name: entry.interface_name.clone(),
                    addresses: Vec::new(),
                });
                found.len() - 1
            });
        found[at].addresses.extend(address);
    }
    found
}

/// Returns the addresses to which the host name resolves, which is how Gloo finds itself.
fn own_addresses() -> Vec<IpAddr> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let found = (host.as_str(), 0).to_socket_addrs();
    found.into_iter().flatten().map(|address| address.ip()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn machine() -> Vec<Interface> {
        let interface = |name: &str, addresses: &[&str]| Interface {
            name: name.into(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        };
        vec![
            interface("lo", &["127.0.0.1", "::1"]),
            interface("docker0", &["172.17.0.1"]),
            interface("eno1", &["fe80::1", "2001:db8::7", "10.0.0.7"]),
            interface("eth2", &[]),
            interface("ib0", &["10.1.0.7"]),
        ]
    }

    fn chosen(uses_nccl: bool, variables: &[(&str, &str)], host: &str) -> (String, String) {
        let root = tempfile::tempdir().unwrap();
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let own = || host.parse().ok().into_iter().collect();
        let found = choose(root.path(), &machine(), uses_nccl, &variable, &own);
        (
            found.nics.first().map_or(String::new(), |nic| nic.name.clone()),
            found.address.map_or(String::new(), |ip| ip.to_string()),
        )
    }

    #[test]
    fn the_interface_is_the_one_the_library_would_take() {
        type Case<'a> = (bool, &'a [(&'a str, &'a str)], &'a str, [&'a str; 2]);
        let cases: [Case<'_>; 11] = [
            (true, &[], "", ["ib0", "10.1.0.7"]),
            (
                true,
                &[("NCCL_SOCKET_IFNAME", "eth,en")],
                "",
                ["eno1", "10.0.0.7"],
            ),
            (true, &[("NCCL_SOCKET_IFNAME", "=en")], "", ["", ""]),
            (true, &[("NCCL_SOCKET_IFNAME", "=eno1")], "", ["eno1", "10.0.0.7"]),
            (
                true,
                &[("NCCL_SOCKET_IFNAME", "^lo,docker,ib")],
                "",
                ["eno1", "10.0.0.7"],
            ),
            (true, &[("NCCL_SOCKET_IFNAME", "")], "", ["ib0", "10.1.0.7"]),
            (
                false,
                &[("NCCL_SOCKET_IFNAME", "ib0")],
                "10.0.0.7",
                ["eno1", "10.0.0.7"],
            ),
            (false, &[], "127.0.0.1", ["lo", "127.0.0.1"]),
            (false, &[], "", ["lo", "127.0.0.1"]),
            (
                false,
                &[("GLOO_SOCKET_IFNAME", "ib0,eno1")],
                "10.0.0.7",
                ["ib0", "10.1.0.7"],
            ),
            (false, &[("GLOO_SOCKET_IFNAME", "nope")], "10.0.0.7", ["", ""]),
        ];
        for (uses_nccl, variables, host, [name, address]) in cases {
            assert_eq!(
                chosen(uses_nccl, variables, host),
                (name.to_owned(), address.to_owned()),
                "{variables:?}"
            );
        }
    }

    #[test]
    fn speed_mtu_and_link_are_read_and_missing_values_are_omitted() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join("sys/class").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("net/eno1/speed", "100000\n");
        put("net/eno1/mtu", "9000\n");
        put("net/eno1/carrier", "1\n");
        put("net/lo/speed", "-1\n");
        let eno1 = ethernet(root.path(), "eno1");
        assert_eq!(
            (eno1.speed_mbit, eno1.mtu, eno1.up),
            (Some(100_000), Some(9_000), Some(true))
        );
        let lo = ethernet(root.path(), "lo");
        assert_eq!((lo.speed_mbit, lo.mtu, lo.up), (None, None, Some(false)));
        assert_eq!(ethernet(root.path(), "nope").up, None);

        for (port, rate, state) in [
            ("mlx5_0/ports/1", "400 Gb/sec (4X NDR)", "4: ACTIVE"),
            ("mlx5_1/ports/1", "2.5 Gb/sec (1X SDR)", "1: DOWN"),
        ] {
            put(&format!("infiniband/{port}/rate"), rate);
            put(&format!("infiniband/{port}/state"), state);
        }
        let all = ports(root.path(), None);
        let said: Vec<_> = all
            .iter()
            .map(|nic| (nic.name.as_str(), nic.speed_mbit, nic.up))
            .collect();
        assert_eq!(
            said,
            [
                ("mlx5_0:1", Some(400_000), Some(true)),
                ("mlx5_1:1", Some(2_500), Some(false))
            ]
        );
        assert_eq!(ports(root.path(), Some("=mlx5_1:1")).len(), 1);
        assert_eq!(ports(root.path(), Some("^mlx5")), []);
    }

    #[tokio::test]
    async fn this_machine_has_the_interface_that_is_named() {
        let spec = Spec {
            backend: Backend::Gloo,
            env: [("GLOO_SOCKET_IFNAME".to_owned(), "lo".to_owned())].into(),
            ..Spec::default()
        };
        let found = choose_nics(&spec, 0).await;
        assert!(found.address.is_some_and(|ip| ip.is_loopback()), "{found:?}");
        assert!(found.nics[0].mtu > Some(1_000), "{found:?}");
    }
}
