//! Identities of simulated GPUs: UUID, serial number, PCI address. All are derived from seed, node and index.

use super::noise::Noise;

/// What distinguishes one simulated GPU from another.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// `GPU-` and 32 hexadecimal digits.
    pub uuid: String,
    /// 13 digits, as on the board's label.
    pub serial: String,
    pub pci_bus: u32,
}

/// The PCI buses of the eight GPUs of a DGX H100.
const BUSES: [u32; 8] = [0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF];
/// The first bus of further GPUs. The eight GPUs above do not use these buses.
const BUS_AFTER: u32 = 0xE2;

const CHANNEL_UUID: u64 = 0x100;
const CHANNEL_SERIAL: u64 = 0x102;

impl Identity {
    pub(crate) fn new(noise: Noise, index: u32) -> Identity {
        let high = noise.bits(CHANNEL_UUID);
        let low = noise.bits(CHANNEL_UUID + 1);
        let uuid = uuid("GPU", high, low);
        let serial = format!("165{:010}", noise.bits(CHANNEL_SERIAL) % 10_000_000_000);
        let pci_bus = BUSES.get(index as usize).copied().unwrap_or(BUS_AFTER + index);
        Identity {
            uuid,
            serial,
            pci_bus,
        }
    }

    /// Returns the address with an eight-digit domain, as NVML writes it.
    pub(crate) fn bus_id(&self) -> String {
        format!("00000000:{:02X}:00.0", self.pci_bus)
    }

    /// Returns the address with a four-digit domain, as older NVML and the kernel write it.
    pub(crate) fn bus_id_legacy(&self) -> String {
        format!("0000:{:02X}:00.0", self.pci_bus)
    }
}

/// Formats 128 bits as NVML writes them, after a prefix for the kind of object.
pub(crate) fn uuid(kind: &str, high: u64, low: u64) -> String {
    format!(
        "{kind}-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xFFFF,
        high & 0xFFFF,
        low >> 48,
        low & 0xFFFF_FFFF_FFFF
    )
}

/// Returns the bus of an address such as `00000000:1B:00.0`, `0000:1b:00.0` or `1b:00.0`. Returns `None` outside of domain 0, device 0,
/// function 0, where all simulated GPUs are.
pub(crate) fn parse_bus_id(text: &str) -> Option<u32> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.rsplit(':').map(|part| u32::from_str_radix(part, 16).ok());
    let (device, bus, domain) = (parts.next()??, parts.next()??, parts.next());
    let domain = domain.map_or(Some(0), |parsed| parsed)?;
    let at_home = function == "0" && device == 0 && domain == 0 && parts.next().is_none();
    at_home.then_some(bus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_gpus_of_a_cluster_share_a_name() {
        let mut uuids = HashSet::new();
        for node in 0..64 {
            for gpu in 0..16 {
                let identity = Identity::new(Noise::new(0, node, gpu), gpu);
                assert_eq!((identity.uuid.len(), identity.serial.len()), (40, 13));
                assert!(uuids.insert(identity.uuid), "node {node} gpu {gpu}");
            }
        }
    }

    #[test]
    fn buses_differ_and_fit_a_byte() {
        let buses: HashSet<u32> = (0..16)
            .map(|gpu| Identity::new(Noise::new(0, 0, gpu), gpu).pci_bus)
            .collect();
        assert_eq!(buses.len(), 16);
        assert!(buses.iter().all(|bus| *bus < 256));
    }

    #[test]
    fn addresses_are_read_in_every_usual_form() {
        for (text, bus) in [
            ("00000000:1B:00.0", Some(0x1B)),
            ("0000:1b:00.0", Some(0x1B)),
            ("1b:00.0", Some(0x1B)),
            ("0001:1b:00.0", None),
            ("0:0:1b:00.0", None),
            ("0000:1b:00.1", None),
            ("0000:1b:01.0", None),
            ("", None),
            ("1b", None),
            ("::.0", None),
        ] {
            assert_eq!(parse_bus_id(text), bus, "{text:?}");
        }
    }
}
