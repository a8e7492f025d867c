//! Parses the lines about failing GPUs that the NVIDIA driver writes to the kernel log.
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
use domain::xid::{LogDetails, Recovery, decode_nvlink};

use super::shortened;

/// The maximum number of records between "The NVIDIA GPU" and the rest of that message.
const BUS_LOSS_RECORDS_MAX: u8 = 4;
/// The Xid of a GPU that has fallen off the bus.
const OFF_THE_BUS: u32 = 79;

/// One error of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct XidMessage {
    pub(crate) xid: u32,
    pub(crate) pci: PciAddress,
    pub(crate) details: XidDetails,
}

/// The content of a line besides the number and the GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct XidDetails {
    pub(crate) pid: Option<u32>,
    pub(crate) process: Option<String>,
    pub(crate) log_details: LogDetails,
    /// The GPU instance, if the GPU is divided (MIG).
    pub(crate) instance: Option<u32>,
    /// The driver's own text.
    pub(crate) words: String,
}

/// Parses one record after another.
#[derive(Debug, Default)]
pub(super) struct NvrmParser {
    /// A GPU that was named, and the number of records since then.
    named: Option<(PciAddress, u8)>,
}

impl NvrmParser {
    /// Returns the error in a record. A record may contain several lines.
    pub(super) fn parse(&mut self, text: &str) -> Option<XidMessage> {
        text.lines().filter_map(|line| self.line(line)).next()
    }

    fn line(&mut self, line: &str) -> Option<XidMessage> {
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
            return self.bus_loss(rest);
        }
        if line.contains("fallen off the bus") {
            let named = line
                .strip_prefix("GPU ")
                .and_then(|rest| rest.split(": ").next()?.parse().ok());
            return match named {
                Some(pci) => Some(off_the_bus(pci, line)),
                None => self.bus_loss(line),
            };
        }
        self.named = self
            .named
            .map(|(pci, ago)| (pci, ago + 1))
            .filter(|(_, ago)| *ago < BUS_LOSS_RECORDS_MAX);
        None
    }

    /// Parses "… fallen off the bus" about the GPU that was named just before.
    fn bus_loss(&mut self, line: &str) -> Option<XidMessage> {
        line.contains("fallen off the bus")
            .then(|| self.named.take())?
            .map(|(pci, _)| off_the_bus(pci, line))
    }
}

fn off_the_bus(pci: PciAddress, line: &str) -> XidMessage {
    let details = XidDetails {
        words: shortened(line),
        ..XidDetails::default()
    };
    XidMessage {
        xid: OFF_THE_BUS,
        pci,
        details,
    }
}

/// Parses the text after `Xid (`: the address, optionally a MIG instance, then the number, process and text.
fn xid(text: &str) -> Option<XidMessage> {
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
    Some(XidMessage {
        xid,
        pci,
        details: XidDetails {
            instance,
            ..details(xid, rest)
        },
    })
}

fn details(xid: u32, text: &str) -> XidDetails {
    let (pid, rest) = field(text, "pid=");
    let (process, rest) = field(rest, "name=");
    let log_details = match xid {
        144..=150 => decode_nvlink(rest).map(LogDetails::Nvlink),
        154 => recovery(rest).map(LogDetails::Recovery),
        _ => None,
    };
    XidDetails {
        pid: pid.and_then(|pid| pid.parse().ok()),
        process: process
            .filter(|name| !name.is_empty() && !name.contains("<unknown>"))
            .map(shortened),
        log_details: log_details.unwrap_or_default(),
        words: shortened(rest),
        instance: None,
    }
}

/// Returns the value of a field at the beginning of the text, and the rest of the text.
fn field<'a>(text: &'a str, name: &str) -> (Option<&'a str>, &'a str) {
    let Some(value) = text.strip_prefix(name) else {
        return (None, text);
    };
    let (value, rest) = value.split_once(',').unwrap_or((value, ""));
    (Some(value.trim_matches('\'')), rest.trim_start())
}

/// Parses `… to 0x4 (Drain and Reset)`.
fn recovery(text: &str) -> Option<Recovery> {
    let word = text.rsplit_once(" to ")?.1.split_whitespace().next()?;
    u64::from_str_radix(word.strip_prefix("0x")?, 16)
        .ok()
        .map(Recovery::from_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<XidMessage> {
        NvrmParser::default().parse(text)
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
            let message = parse(line).unwrap_or_else(|| panic!("{line}"));
            let details = &message.details;
            assert_eq!(
                (message.xid, message.pci.to_string().as_str()),
                (xid, pci),
                "{line}"
            );
            assert_eq!(
                (details.pid, details.process.as_deref(), details.words.as_str()),
                (pid, process, words),
                "{line}"
            );
        }
    }

    #[test]
    fn a_gpu_that_fell_off_the_bus_is_recognised_without_a_number() {
        let lines = [
            "NVRM: The NVIDIA GPU 0000:18:00.0",
            "NVRM: (PCI ID: 10de:2330) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ];
        let expected = Some((79, "0000:18:00".to_owned()));
        let short =
            |message: Option<XidMessage>| message.map(|message| (message.xid, message.pci.to_string()));
        let mut parser = NvrmParser::default();
        let parsed: Vec<_> = lines.iter().map(|line| short(parser.parse(line))).collect();
        assert_eq!(parsed, [None, None, expected.clone()]);
        assert_eq!(short(parse(&lines.join("\n"))), expected);
        assert_eq!(short(parser.parse(lines[2])), None, "no GPU was named");
        let mut parser = NvrmParser::default();
        parser.parse(lines[0]);
        (0..4).for_each(|_| drop(parser.parse("NVRM: something else")));
        assert_eq!(
            short(parser.parse(lines[2])),
            None,
            "the GPU was named too long ago"
        );
    }

    #[test]
    fn instance_recovery_and_link_are_decoded() {
        let instance = |line: &str| parse(line).and_then(|message| message.details.instance);
        assert_eq!(
            instance("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained"),
            Some(5)
        );
        assert_eq!(
            instance("NVRM: Xid (PCI:0000:01:00): 94, pid=7194, Contained"),
            None
        );
        let parsed = |line: &str| parse(line).map(|message| message.details.log_details);
        let recovery = "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)";
        assert_eq!(
            parsed(recovery),
            Some(LogDetails::Recovery(Recovery::DrainAndReset))
        );
        let link = "NVRM: Xid (PCI:0008:01:00): 145, pid=11436, name=cache_mgr_main, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008 0x0)";
        let Some(LogDetails::Nvlink(fault)) = parsed(link) else {
            panic!("{link}")
        };
        assert_eq!(
            (fault.unit.as_str(), fault.link, fault.status),
            ("RLW_SRC_TRACK", Some(3), 8)
        );
    }

    #[test]
    fn other_lines_are_not_errors() {
        for line in [
            "eth0: link up",
            "NVRM: loading NVIDIA UNIX Open Kernel Module",
            "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
            "NVRM: Xid (somewhere): 79, x",
            "NVRM: Xid (PCI:0000:66:00",
            "NVRM: fallen off the bus",
            "a user writes NVRM Xid",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
