//! Parses the lines about failing NVSwitches that the NVIDIA driver writes to the kernel log.
//!
//! ```text
//! nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)
//! nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00    details of the same error:
//! nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, 0x00100000, …}                         not counted again
//! nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 10003, Host_unhandled_interrupt                                severity not stated
//! ```

use domain::sxid::LogSeverity;
use domain::topology::PciAddress;

use super::shortened;

/// One error of one switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SwitchError {
    pub(crate) switch: u32,
    pub(crate) pci: PciAddress,
    pub(crate) sxid: u32,
    /// Whether the driver calls the error fatal. `None` if it does not say.
    pub(crate) log_severity: Option<LogSeverity>,
    /// The switch's own port, if one is named.
    pub(crate) link: Option<u32>,
    /// The driver's own text.
    pub(crate) words: String,
}

/// Returns the error in a record. A record may contain several lines.
pub(super) fn parse(text: &str) -> Option<SwitchError> {
    text.lines().find_map(line)
}

fn line(line: &str) -> Option<SwitchError> {
    let (switch, rest) = number(line.split_once("nvidia-nvswitch")?.1)?;
    let rest = rest.trim_start_matches([':', ' ']).strip_prefix("SXid (")?;
    let (address, rest) = rest.split_once(')')?;
    let (sxid, rest) = number(rest.trim_start_matches([':', ' ']))?;
    let mut words = rest.trim_start_matches([',', ' ']);
    if words.starts_with("Severity ") || words.starts_with("Data {") {
        return None;
    }
    let mut log_severity = None;
    for (word, meaning) in [
        ("Fatal", LogSeverity::Fatal),
        ("Non-fatal", LogSeverity::NonFatal),
    ] {
        if let Some(rest) = words.strip_prefix(word) {
            log_severity = Some(meaning);
            words = rest.trim_start_matches([',', ' ']);
            break;
        }
    }
    let link = words.strip_prefix("Link ").and_then(number).map(|(link, _)| link);
    Some(SwitchError {
        switch,
        pci: address.trim().parse().ok()?,
        sxid,
        log_severity,
        link,
        words: shortened(words),
    })
}

/// Returns the number at the beginning of the text, and the rest of the text.
fn number(text: &str) -> Option<(u32, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_shapes_give_switch_number_word_and_link() {
        let cases = [
            (
                "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
                (3, "0000:05:00", 12_028, Some(LogSeverity::NonFatal), Some(32)),
                "Link 32 egress non-posted PRIV error (First)",
            ),
            (
                "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
                (0, "0000:c2:00", 20_034, Some(LogSeverity::Fatal), Some(28)),
                "Link 28 LTSSM Fault Up",
            ),
            (
                "kernel: nvidia-nvswitch11: SXid (PCI:0002:c2:00.0): 10003, Host_unhandled_interrupt",
                (11, "0002:c2:00", 10_003, None, None),
                "Host_unhandled_interrupt",
            ),
            (
                "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 22011",
                (1, "0000:06:00", 22_011, None, None),
                "",
            ),
        ];
        for (line, (switch, pci, sxid, log_severity, link), words) in cases {
            let error = parse(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(
                (
                    error.switch,
                    error.pci.to_string().as_str(),
                    error.sxid,
                    error.log_severity,
                    error.link
                ),
                (switch, pci, sxid, log_severity, link),
                "{line}"
            );
            assert_eq!(error.words, words);
        }
    }

    #[test]
    fn details_and_other_lines_are_no_errors() {
        for line in [
            "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Severity 5 Engine instance 00 Sub-engine instance 00",
            "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Data {0x00000000, 0x00000000}",
            "nvidia-nvswitch2: using MSI",
            "nvidia-nvswitch: SXid (PCI:0000:c4:00.0): 10002, Fatal",
            "nvidia-nvswitch2: SXid (somewhere): 10002, Fatal",
            "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): garbled, Fatal",
            "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0",
            "nvidia-nvswitch99999999999: SXid (PCI:0000:c4:00.0): 1, Fatal",
            "NVRM: Xid (PCI:0000:05:00): 74, x",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
