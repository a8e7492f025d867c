//! NVLink 5 errors, Xid 144 to 150. Their log lines name a unit and contain words that NVIDIA's table (`data/nvlink5.tsv`) maps to an
//! action.
//!
//! ```text
//! 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 …)
//!      unit           severity       link    │          └ error status: one bit per error in most units, a number in NETIR
//!                                            └ bits 25:20 are the sub-code
//! ```

use std::sync::LazyLock;

const TABLE: &str = include_str!("../../data/nvlink5.tsv");
/// The units of this Xid number their errors. The units of all others use one bit per error.
const NUMBERED: u32 = 149;

/// Details of a link fault in a log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvlinkFault {
    /// Name of the unit, like `NETIR_LINK_EVT`.
    pub unit: String,
    /// True if the driver calls the fault fatal.
    pub fatal: bool,
    /// Number of the link; `None` if the fault is not about a single link.
    pub link: Option<u32>,
    /// Bits 25 to 20 of the first word.
    pub sub_code: u32,
    /// The second word.
    pub status: u32,
}

/// A row of NVIDIA's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    xid: u32,
    units: &'static str,
    sub_code: u32,
    status: u32,
    resolution: Resolution,
}

/// Action in NVIDIA's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resolution {
    Ignore,
    /// The action of the Xid 154 that occurs with it.
    Xid154,
    ResetGpu,
}

/// Looks the fault up in the table. If the status contains several errors, the most severe one counts. Returns `None` if the table does not
/// contain the fault.
#[must_use]
pub(super) fn resolution(xid: u32, fault: &NvlinkFault) -> Option<Resolution> {
    static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| TABLE.lines().filter_map(rule).collect());
    RULES
        .iter()
        .filter(|rule| rule.matches(xid, fault))
        .map(|rule| rule.resolution)
        .max()
}

impl Rule {
    fn matches(&self, xid: u32, fault: &NvlinkFault) -> bool {
        let status = if xid == NUMBERED || self.status == 0 {
            self.status == fault.status
        } else {
            self.status & fault.status != 0
        };
        let mut units = self.units.split('/');
        self.xid == xid && self.sub_code == fault.sub_code && status && units.any(|unit| unit == fault.unit)
    }
}

/// Parses the part of a log line of Xid 144 to 150 that follows the number, the process and its name.
#[must_use]
pub fn decode(text: &str) -> Option<NvlinkFault> {
    let (head, words) = text.split_once('(')?;
    let mut head = head.split_whitespace();
    let unit = head.next()?.to_owned();
    let fatal = match head.next()? {
        "Fatal" => true,
        "Nonfatal" => false,
        _ => return None,
    };
    let link = head
        .skip_while(|word| *word != "Link")
        .nth(1)?
        .parse::<i64>()
        .ok()?;
    let mut words = words
        .trim_end_matches(')')
        .split_whitespace()
        .map_while(|word| u32::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let (first, status) = (words.next()?, words.next()?);
    Some(NvlinkFault {
        unit,
        fatal,
        link: u32::try_from(link).ok(),
        sub_code: first >> 20 & 0x3f,
        status,
    })
}

fn rule(line: &'static str) -> Option<Rule> {
    let columns: Vec<&str> = line.split('\t').collect();
    let resolution = match *columns.get(4)? {
        "IGNORE" => Resolution::Ignore,
        "XID_154_EVAL" => Resolution::Xid154,
        "RESET_GPU" => Resolution::ResetGpu,
        _ => return None,
    };
    Some(Rule {
        xid: columns.first()?.parse().ok()?,
        units: columns.get(1)?,
        sub_code: columns.get(2)?.parse().ok()?,
        status: u32::from_str_radix(columns.get(3)?.strip_prefix("0x")?, 16).ok()?,
        resolution,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_a_rule() {
        let lines = || TABLE.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(lines().count(), 94);
        for line in lines() {
            assert!(rule(line).is_some(), "{line}");
        }
    }

    #[test]
    fn lines_are_decoded_to_the_table_s_resolution() {
        use Resolution::{Ignore, ResetGpu, Xid154};
        let cases = [
            (
                149,
                "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x0)",
                Some(8),
                4,
                Some(ResetGpu),
            ),
            (
                149,
                "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x026505c6 0x00000000)",
                Some(9),
                38,
                Some(Ignore),
            ),
            (
                149,
                "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x0 0x0)",
                None,
                0,
                Some(ResetGpu),
            ),
            (
                149,
                "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001)",
                Some(1),
                0,
                Some(Ignore),
            ),
            (
                145,
                "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008)",
                Some(12),
                0,
                Some(Xid154),
            ),
            // Two errors at once: the more severe one counts.
            (
                145,
                "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000018)",
                Some(12),
                0,
                Some(ResetGpu),
            ),
            (
                145,
                "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x1)",
                Some(13),
                0,
                Some(Ignore),
            ),
            (
                150,
                "MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000)",
                None,
                0,
                Some(ResetGpu),
            ),
            (
                144,
                "SAW_NEW Fatal XC0 i0 Link 00 (0x00000004 0x00000001)",
                Some(0),
                0,
                None,
            ),
        ];
        for (xid, text, link, sub_code, expected) in cases {
            let fault = decode(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((fault.link, fault.sub_code), (link, sub_code), "{text}");
            assert_eq!(resolution(xid, &fault), expected, "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_recognised() {
        for text in [
            "",
            "GPU has fallen off the bus.",
            "X Fatal XC0 i0 Link 1",
            "X Fatal Link 1 (zero)",
            "X Mild Link 1 (0x0 0x0)",
        ] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
