//! What the NVIDIA driver writes to the kernel's log about a GPU in trouble.
//!
//! ```text
//! NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
//! NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). …            a MIG instance
//! NVRM: Xid (0000:03:00): 14, Channel 00000001                                                      older drivers
//! NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 …)    NVLink 5
//! NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
//! NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.                                               79 without a number
//! NVRM: The NVIDIA GPU 0000:18:00.0 ⏎ NVRM: … installed in this system has ⏎ NVRM: fallen off the bus and is not …
//! ```

use domain::topology::PciAddress;
use domain::xid::{Recovery, Said, decode_nvlink};

use super::shortened;

/// In how many records behind "The NVIDIA GPU" its fate must come.
const FATE_WITHIN: u8 = 4;
/// GPU has fallen off the bus.
const OFF_THE_BUS: u32 = 79;

/// One error of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spoken {
    pub(crate) xid: u32,
    pub(crate) pci: PciAddress,
    pub(crate) told: Told,
}

/// What a line says beside number and GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) pid: Option<u32>,
    pub(crate) process: Option<String>,
    pub(crate) said: Said,
    /// The GPU instance, where the GPU is divided (MIG).
    pub(crate) instance: Option<u32>,
    /// The driver's own words.
    pub(crate) words: String,
}

/// Listens to one record after another.
#[derive(Debug, Default)]
pub(super) struct Ear {
    /// A GPU that was named, and how many records ago.
    named: Option<(PciAddress, u8)>,
}

impl Ear {
    /// What a record says; it may hold several lines.
    pub(super) fn hear(&mut self, text: &str) -> Option<Spoken> {
        text.lines().filter_map(|line| self.line(line)).next()
    }

    fn line(&mut self, line: &str) -> Option<Spoken> {
        let line = line.split_once("NVRM:")?.1.trim();
        if let Some(rest) = line.strip_prefix("Xid (") {
            return xid(rest);
        }
        if let Some(rest) = line.strip_prefix("The NVIDIA GPU ") {
            self.named = rest
                .split_whitespace()
                .next()
                .and_then(|word| word.parse().ok())
                .map(|pci| (pci, 0));
            return self.fate(rest);
        }
        if line.contains("fallen off the bus") {
            let named = line
                .strip_prefix("GPU ")
                .and_then(|rest| rest.split(": ").next()?.parse().ok());
            return match named {
                Some(pci) => Some(off_the_bus(pci, line)),
                None => self.fate(line),
            };
        }
        self.named = self
            .named
            .map(|(pci, ago)| (pci, ago + 1))
            .filter(|(_, ago)| *ago < FATE_WITHIN);
        None
    }

    /// "… fallen off the bus", said of the GPU that was named just before.
    fn fate(&mut self, line: &str) -> Option<Spoken> {
        line.contains("fallen off the bus")
            .then(|| self.named.take())?
            .map(|(pci, _)| off_the_bus(pci, line))
    }
}

fn off_the_bus(pci: PciAddress, line: &str) -> Spoken {
    let told = Told {
        words: shortened(line),
        ..Told::default()
    };
    Spoken {
        xid: OFF_THE_BUS,
        pci,
        told,
    }
}

/// Behind `Xid (`: the address, perhaps a MIG instance, then number, process and words.
fn xid(text: &str) -> Option<Spoken> {
    let (address, rest) = text.split_once(')')?;
    let mut address = address.split_whitespace();
    let pci = address.next()?.parse().ok()?;
    let instance = address.find_map(|word| word.strip_prefix("GPU-I:")?.parse().ok());
    let rest = rest
        .trim_start_matches(|c: char| c != ':')
        .strip_prefix(':')?
        .trim_start();
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let xid = rest[..digits].parse().ok()?;
    let rest = rest[digits..].trim_start_matches([',', ' ']);
    Some(Spoken {
        xid,
        pci,
        told: Told {
            instance,
            ..told(xid, rest)
        },
    })
}

fn told(xid: u32, text: &str) -> Told {
    let (pid, rest) = field(text, "pid=");
    let (process, rest) = field(rest, "name=");
    let said = match xid {
        144..=150 => decode_nvlink(rest).map(Said::Nvlink),
        154 => recovery(rest).map(Said::Recovery),
        _ => None,
    };
    Told {
        pid: pid.and_then(|pid| pid.parse().ok()),
        process: process
            .filter(|name| !name.is_empty() && !name.contains("<unknown>"))
            .map(shortened),
        said: said.unwrap_or_default(),
        words: shortened(rest),
        instance: None,
    }
}

/// The value of a field at the beginning, and what comes behind it.
fn field<'a>(text: &'a str, name: &str) -> (Option<&'a str>, &'a str) {
    let Some(value) = text.strip_prefix(name) else {
        return (None, text);
    };
    let (value, rest) = value.split_once(',').unwrap_or((value, ""));
    (Some(value.trim_matches('\'')), rest.trim_start())
}

/// `… to 0x4 (Drain and Reset)`.
fn recovery(text: &str) -> Option<Recovery> {
    let word = text.rsplit_once(" to ")?.1.split_whitespace().next()?;
    u64::from_str_radix(word.strip_prefix("0x")?, 16)
        .ok()
        .map(Recovery::from_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(text: &str) -> Option<Spoken> {
        Ear::default().hear(text)
    }

    #[test]
    fn lines_of_all_shapes_give_number_gpu_process_and_words() {
        let cases = [
            (
                "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                (79, "0000:05:00", None, None, "GPU has fallen off the bus."),
            ),
            (
                "NVRM: Xid (PCI:0000:3b:00): 31, pid=79749, name=python3, Ch 0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS",
                (
                    31,
                    "0000:3b:00",
                    Some(79_749),
                    Some("python3"),
                    "Ch 0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS",
                ),
            ),
            (
                "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
                (
                    94,
                    "0000:01:00",
                    Some(7_194),
                    None,
                    "Contained: CE User Channel (0x9). RST: No, D-RST: No",
                ),
            ),
            (
                "NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=ray::WorkerDict, Graphics Exception",
                (
                    13,
                    "0000:3b:00",
                    Some(9),
                    Some("ray::WorkerDict"),
                    "Graphics Exception",
                ),
            ),
            (
                "NVRM: Xid (0000:03:00): 14, Channel 00000001",
                (14, "0000:03:00", None, None, "Channel 00000001"),
            ),
            (
                "NVRM: Xid (PCI:0000:83:00): 48",
                (48, "0000:83:00", None, None, ""),
            ),
            (
                "nvidia 0000:18:00.0: NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
                (
                    79,
                    "0000:18:00",
                    None,
                    None,
                    "GPU 0000:18:00.0: GPU has fallen off the bus.",
                ),
            ),
        ];
        for (line, (xid, pci, pid, process, words)) in cases {
            let spoken = hear(line).unwrap_or_else(|| panic!("{line}"));
            let told = &spoken.told;
            assert_eq!(
                (spoken.xid, spoken.pci.to_string().as_str()),
                (xid, pci),
                "{line}"
            );
            assert_eq!(
                (told.pid, told.process.as_deref(), told.words.as_str()),
                (pid, process, words),
                "{line}"
            );
        }
    }

    #[test]
    fn a_gpu_that_fell_off_the_bus_is_known_without_a_number() {
        let lines = [
            "NVRM: The NVIDIA GPU 0000:18:00.0",
            "NVRM: (PCI ID: 10de:2330) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ];
        let expected = Some((79, "0000:18:00".to_owned()));
        let short = |spoken: Option<Spoken>| spoken.map(|spoken| (spoken.xid, spoken.pci.to_string()));
        let mut ear = Ear::default();
        let heard: Vec<_> = lines.iter().map(|line| short(ear.hear(line))).collect();
        assert_eq!(heard, [None, None, expected.clone()]);
        assert_eq!(short(hear(&lines.join("\n"))), expected);
        assert_eq!(short(ear.hear(lines[2])), None, "said of nobody");
        let mut ear = Ear::default();
        ear.hear(lines[0]);
        (0..4).for_each(|_| drop(ear.hear("NVRM: something else")));
        assert_eq!(short(ear.hear(lines[2])), None, "said too late");
    }

    #[test]
    fn what_decides_is_decoded() {
        let instance = |line: &str| hear(line).and_then(|spoken| spoken.told.instance);
        assert_eq!(
            instance("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained"),
            Some(5)
        );
        assert_eq!(
            instance("NVRM: Xid (PCI:0000:01:00): 94, pid=7194, Contained"),
            None
        );
        let said = |line: &str| hear(line).map(|spoken| spoken.told.said);
        let recovery = "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)";
        assert_eq!(said(recovery), Some(Said::Recovery(Recovery::DrainAndReset)));
        let link = "NVRM: Xid (PCI:0008:01:00): 145, pid=11436, name=cache_mgr_main, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008 0x0)";
        let Some(Said::Nvlink(fault)) = said(link) else {
            panic!("{link}")
        };
        assert_eq!(
            (fault.unit.as_str(), fault.link, fault.status),
            ("RLW_SRC_TRACK", Some(3), 8)
        );
    }

    #[test]
    fn other_lines_are_not_taken_for_errors() {
        for line in [
            "eth0: link up",
            "NVRM: loading NVIDIA UNIX Open Kernel Module",
            "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
            "NVRM: Xid (somewhere): 79, x",
            "NVRM: Xid (PCI:0000:66:00",
            "NVRM: fallen off the bus",
            "a user writes NVRM Xid",
        ] {
            assert_eq!(hear(line), None, "{line}");
        }
    }
}
