//! Assesses the severity of an Xid from its number and its context.
//!
//! ```text
//! the driver requests an action (154)           ─▶ that action decides
//! the GPU has fallen off the bus (79 beside it) ─▶ a consequence; 79 is reported instead
//! 43, 45, 171, 172 beside another               ─▶ a consequence of the other
//! a program's error while its run is stopped    ─▶ information only
//! 48 by 64, 95, 94, 63 · 74 by its companions · 144–150 by unit and sub-code
//! else by NVIDIA's action, one step more severe if the error recurs on this GPU
//! ```

use super::catalogue::{Entry, Family, find};
use super::nvlink::{NvlinkFault, Resolution, resolution};
use super::{Action, Recovery};
use crate::event::Severity;

/// Number of occurrences on one GPU within a day from which an error counts as recurring.
const RECURRING: u32 = 3;
/// Numbers that only report that another error happened.
const FOLLOWERS: [u32; 4] = [43, 45, 171, 172];
/// The GPU has fallen off the bus.
const OFF_THE_BUS: u32 = 79;

/// State of the run that uses the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Job {
    /// Unknown.
    #[default]
    Unknown,
    /// A run uses the GPU.
    Running,
    /// The run is being stopped: its processes are killed while they work.
    Ending,
}

/// Details that the driver wrote in the log line, beside the number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LogDetails {
    /// No details that matter.
    #[default]
    Nothing,
    /// Xid 154: the requested recovery.
    Recovery(Recovery),
    /// Xid 144 to 150: the link fault.
    Nvlink(NvlinkFault),
}

/// An Xid and its context.
#[derive(Debug, Clone, Default)]
pub struct Occurrence<'a> {
    /// Number of the Xid.
    pub xid: u32,
    /// Details in the log line.
    pub log_details: LogDetails,
    /// Number of earlier occurrences on this GPU within a day. A burst of some minutes counts once.
    pub earlier: u32,
    /// Other Xids of this GPU within some minutes.
    pub companions: &'a [u32],
    /// State of the run on the GPU.
    pub job: Job,
}

/// What caused an Xid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The program.
    Application,
    /// The hardware.
    Hardware,
    /// The driver or the firmware.
    Software,
    /// Another error, which is reported separately.
    Consequence,
    /// There is no fault.
    None,
}

impl Cause {
    /// Returns the stable identifier for programs, the value of the label `cause`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Hardware => "hardware",
            Self::Software => "software",
            Self::Consequence => "consequence",
            Self::None => "none",
        }
    }
}

/// Assessment of an Xid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assessment {
    /// Severity of the Xid.
    pub severity: Severity,
    /// Action to take, as specific as the context allows.
    pub action: Action,
    /// Cause of the Xid.
    pub cause: Cause,
    /// Reason for the assessment, as the end of a sentence. Empty if NVIDIA's action alone decided.
    pub why: String,
}

/// Assesses an Xid.
#[must_use]
pub fn assess(occurrence: &Occurrence<'_>) -> Assessment {
    let Some(entry) = find(occurrence.xid) else {
        let why = "newer than NVIDIA's published catalogue";
        return Assessment::new(Severity::Warning, Action::Unpublished, Cause::Hardware).because(why);
    };
    let special = recovery(occurrence)
        .or_else(|| follows(occurrence))
        .or_else(|| ended(occurrence, entry))
        .or_else(|| match entry.number {
            48 => Some(double_bit(occurrence)),
            74 => Some(nvlink(occurrence)),
            144..=150 => Some(nvlink5(occurrence)),
            _ => None,
        });
    special.unwrap_or_else(|| by_bucket(occurrence, entry))
}

impl Assessment {
    fn new(severity: Severity, action: Action, cause: Cause) -> Self {
        Self {
            severity,
            action,
            cause,
            why: String::new(),
        }
    }

    fn because(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }
}

impl Occurrence<'_> {
    fn beside(&self, xid: u32) -> bool {
        self.companions.contains(&xid)
    }

    fn recurs(&self) -> bool {
        self.earlier + 1 >= RECURRING
    }
}

/// Xid 154: the driver's own assessment of the errors before.
fn recovery(occurrence: &Occurrence<'_>) -> Option<Assessment> {
    if occurrence.xid != 154 {
        return None;
    }
    let LogDetails::Recovery(recovery) = occurrence.log_details else {
        let why = "only the kernel log says which recovery it requests";
        return Some(Assessment::new(Severity::Warning, Action::Xid154, Cause::Hardware).because(why));
    };
    let assessment = match recovery {
        Recovery::None => {
            Assessment::new(Severity::Info, Action::Ignore, Cause::None).because("the GPU has recovered")
        }
        _ => Assessment::new(Severity::Critical, recovery.action(), Cause::Hardware)
            .because("the driver itself requests it"),
    };
    Some(assessment)
}

fn follows(occurrence: &Occurrence<'_>) -> Option<Assessment> {
    let follower = FOLLOWERS.contains(&occurrence.xid);
    let first = if occurrence.xid != OFF_THE_BUS && occurrence.beside(OFF_THE_BUS) {
        Some(OFF_THE_BUS)
    } else {
        let causes = |xid: &&u32| !FOLLOWERS.contains(*xid);
        occurrence
            .companions
            .iter()
            .find(causes)
            .copied()
            .filter(|_| follower)
    };
    let assessment = |first| {
        Assessment::new(Severity::Info, Action::Ignore, Cause::Consequence)
            .because(format!("it follows Xid {first}"))
    };
    first.map(assessment)
}

/// A program that is killed while it works causes errors that need no attention.
fn ended(occurrence: &Occurrence<'_>, entry: &Entry) -> Option<Assessment> {
    let expected = occurrence.job == Job::Ending && entry.family == Family::Application;
    expected.then(|| {
        Assessment::new(Severity::Info, Action::Ignore, Cause::Consequence)
            .because("its run was being stopped")
    })
}

fn double_bit(occurrence: &Occurrence<'_>) -> Assessment {
    let hardware = |severity, action| Assessment::new(severity, action, Cause::Hardware);
    if occurrence.beside(64) {
        return hardware(Severity::Critical, Action::ResetGpu)
            .because("with Xid 64: the row could not be remapped");
    }
    if occurrence.beside(95) {
        return hardware(Severity::Critical, Action::ResetGpu).because("with Xid 95: it was not contained");
    }
    if occurrence.recurs() {
        return hardware(Severity::Critical, Action::ContactSupport).because("it recurs on this GPU");
    }
    if occurrence.beside(94) {
        let why = "with Xid 94: it was contained to one program; reset the GPU when it is free, so that the row is remapped";
        return hardware(Severity::Warning, Action::RestartApp).because(why);
    }
    if occurrence.beside(63) {
        let why = "with Xid 63: the row is remapped at the next reset";
        return hardware(Severity::Warning, Action::DrainAndReset).because(why);
    }
    hardware(Severity::Critical, Action::ResetGpu).because("no report says that it was contained")
}

fn nvlink(occurrence: &Occurrence<'_>) -> Assessment {
    let hardware = |severity, action| Assessment::new(severity, action, Cause::Hardware);
    if occurrence.recurs() {
        return hardware(Severity::Critical, Action::ContactSupport).because("it recurs on this GPU");
    }
    if occurrence.beside(45) || occurrence.beside(48) || occurrence.job == Job::Running {
        return hardware(Severity::Critical, Action::ResetGpu).because("programs on the GPU were affected");
    }
    hardware(Severity::Warning, Action::WorkflowNvlink)
}

fn nvlink5(occurrence: &Occurrence<'_>) -> Assessment {
    let hardware = |severity, action| Assessment::new(severity, action, Cause::Hardware);
    let LogDetails::Nvlink(fault) = &occurrence.log_details else {
        let why = "only the kernel log says which unit it was";
        return hardware(Severity::Warning, Action::WorkflowNvlink5).because(why);
    };
    match resolution(occurrence.xid, fault) {
        Some(Resolution::ResetGpu) => hardware(Severity::Critical, Action::ResetGpu),
        Some(Resolution::Xid154) => hardware(Severity::Warning, Action::Xid154)
            .because("an Xid 154 beside it says whether the GPU needs a reset"),
        Some(Resolution::Ignore) if occurrence.recurs() => {
            hardware(Severity::Warning, Action::ContactSupport).because("it recurs on this GPU")
        }
        Some(Resolution::Ignore) => hardware(Severity::Info, Action::Ignore),
        None => {
            let severity = if fault.fatal {
                Severity::Critical
            } else {
                Severity::Warning
            };
            hardware(severity, Action::WorkflowNvlink5)
                .because("its unit and sub-code are not in NVIDIA's table")
        }
    }
}

fn by_bucket(occurrence: &Occurrence<'_>, entry: &Entry) -> Assessment {
    let cause = cause(entry.family);
    let recurs = occurrence.recurs();
    let severity = match entry.immediate {
        Action::Ignore if recurs && entry.investigatory == "CONTACT_SUPPORT" => Severity::Warning,
        Action::Ignore => Severity::Info,
        // A bug of a program recurs with the program. The GPU need not be replaced for it.
        _ if cause == Cause::Application && (entry.immediate == Action::RestartApp || !recurs) => {
            Severity::Warning
        }
        Action::RestartApp if recurs => Severity::Critical,
        Action::ResetGpu | Action::RestartBareMetal | Action::RestartVm | Action::CheckMechanicals => {
            Severity::Critical
        }
        _ if entry.family == Family::Information => Severity::Info,
        _ if entry.number == 167 => Severity::Critical,
        _ => Severity::Warning,
    };
    let assessment = Assessment::new(severity, entry.immediate, cause);
    match (recurs, cause) {
        (true, Cause::Application) => assessment.because(
            "it recurs on this GPU: try the program on another one; if the error stays here, have this GPU checked",
        ),
        (true, Cause::Hardware | Cause::Software) => assessment.because("it recurs on this GPU"),
        _ => assessment,
    }
}

fn cause(family: Family) -> Cause {
    match family {
        Family::Application => Cause::Application,
        Family::Memory
        | Family::Nvlink
        | Family::Bus
        | Family::CopyEngine
        | Family::Video
        | Family::Power => Cause::Hardware,
        Family::Firmware | Family::Driver | Family::Security | Family::Unused => Cause::Software,
        Family::Information => Cause::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xid::{decode_nvlink, entries};

    /// Number, earlier bursts, companions, job; severity, action, cause.
    type Case = (u32, u32, &'static [u32], Job, Words);
    type Words = (Severity, &'static str, &'static str);

    const INFO: Severity = Severity::Info;
    const WARNING: Severity = Severity::Warning;
    const CRITICAL: Severity = Severity::Critical;

    fn assessment(xid: u32, earlier: u32, companions: &[u32], job: Job, log_details: LogDetails) -> Words {
        let assessment = assess(&Occurrence {
            xid,
            log_details,
            earlier,
            companions,
            job,
        });
        (
            assessment.severity,
            assessment.action.word(),
            assessment.cause.word(),
        )
    }

    #[test]
    fn the_context_decides_the_severity_of_a_number() {
        let (some, running, ending) = (Job::Unknown, Job::Running, Job::Ending);
        let cases: &[Case] = &[
            // Errors of a program stay warnings, however often they recur. While the run is being stopped they are information.
            (31, 0, &[], running, (WARNING, "RESTART_APP", "application")),
            (31, 9, &[], running, (WARNING, "RESTART_APP", "application")),
            (31, 0, &[], ending, (INFO, "IGNORE", "consequence")),
            (13, 0, &[45], some, (WARNING, "RESTART_APP", "application")),
            (109, 0, &[], running, (WARNING, "RESET_GPU", "application")),
            (109, 2, &[], running, (CRITICAL, "RESET_GPU", "application")),
            // 43 and 45 are consequences.
            (45, 0, &[13], running, (INFO, "IGNORE", "consequence")),
            (45, 0, &[43], running, (WARNING, "WORKFLOW_XID_45", "application")),
            (45, 0, &[], ending, (INFO, "IGNORE", "consequence")),
            (43, 0, &[31], running, (INFO, "IGNORE", "consequence")),
            (172, 0, &[48], some, (INFO, "IGNORE", "consequence")),
            // Memory.
            (48, 0, &[], some, (CRITICAL, "RESET_GPU", "hardware")),
            (48, 0, &[63, 94], some, (WARNING, "RESTART_APP", "hardware")),
            (48, 0, &[63], some, (WARNING, "DRAIN_AND_RESET", "hardware")),
            (48, 0, &[94, 64], some, (CRITICAL, "RESET_GPU", "hardware")),
            (48, 0, &[95], some, (CRITICAL, "RESET_GPU", "hardware")),
            (48, 2, &[63, 94], some, (CRITICAL, "CONTACT_SUPPORT", "hardware")),
            (63, 0, &[], some, (INFO, "IGNORE", "hardware")),
            (64, 0, &[], some, (CRITICAL, "RESET_GPU", "hardware")),
            (92, 0, &[], some, (INFO, "IGNORE", "hardware")),
            (92, 2, &[], some, (WARNING, "IGNORE", "hardware")),
            (94, 0, &[48], running, (WARNING, "RESTART_APP", "hardware")),
            (94, 2, &[], running, (CRITICAL, "RESTART_APP", "hardware")),
            (95, 0, &[48], ending, (CRITICAL, "RESET_GPU", "hardware")),
            // Links and the bus.
            (79, 0, &[74], some, (CRITICAL, "RESTART_BM", "hardware")),
            (74, 0, &[79], running, (INFO, "IGNORE", "consequence")),
            (74, 0, &[], some, (WARNING, "WORKFLOW_NVLINK_ERR", "hardware")),
            (74, 0, &[], running, (CRITICAL, "RESET_GPU", "hardware")),
            (74, 2, &[], some, (CRITICAL, "CONTACT_SUPPORT", "hardware")),
            (119, 0, &[], some, (CRITICAL, "RESET_GPU", "software")),
            (119, 0, &[79], some, (INFO, "IGNORE", "consequence")),
            (149, 0, &[], some, (WARNING, "WORKFLOW_NVLINK5_ERR", "hardware")),
            // Others.
            (39, 0, &[], running, (WARNING, "RESTART_APP", "hardware")),
            (39, 2, &[], running, (CRITICAL, "RESTART_APP", "hardware")),
            (54, 0, &[], some, (CRITICAL, "CHECK_MECHANICALS", "hardware")),
            (106, 0, &[], some, (INFO, "IGNORE", "none")),
            (162, 0, &[], some, (INFO, "UNPUBLISHED", "none")),
            (1, 0, &[], some, (WARNING, "CONTACT_SUPPORT", "software")),
            (4_711, 0, &[], some, (WARNING, "UNPUBLISHED", "hardware")),
        ];
        for (xid, earlier, companions, job, expected) in cases {
            let got = assessment(*xid, *earlier, companions, *job, LogDetails::Nothing);
            assert_eq!(
                got, *expected,
                "{xid}, {earlier} before, beside {companions:?}, {job:?}"
            );
        }
    }

    #[test]
    fn the_recovery_that_the_driver_requests_decides_even_if_the_gpu_is_lost() {
        let requested = |recovery| assessment(154, 0, &[79], Job::Ending, LogDetails::Recovery(recovery));
        assert_eq!(requested(Recovery::None), (INFO, "IGNORE", "none"));
        assert_eq!(requested(Recovery::Reset), (CRITICAL, "RESET_GPU", "hardware"));
        assert_eq!(requested(Recovery::Reboot), (CRITICAL, "RESTART_BM", "hardware"));
        assert_eq!(requested(Recovery::DrainP2p), (CRITICAL, "DRAIN_P2P", "hardware"));
        assert_eq!(
            requested(Recovery::DrainAndReset),
            (CRITICAL, "DRAIN_AND_RESET", "hardware")
        );
        assert_eq!(
            assessment(154, 0, &[], Job::Unknown, LogDetails::Nothing),
            (WARNING, "XID_154", "hardware")
        );
    }

    #[test]
    fn nvlink_5_errors_are_assessed_by_their_unit() {
        let assessed = |xid, earlier, text: &str| {
            let fault = decode_nvlink(text).expect("a line of the driver");
            assessment(xid, earlier, &[], Job::Running, LogDetails::Nvlink(fault))
        };
        let cases = [
            (
                149,
                0,
                "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)",
                (CRITICAL, "RESET_GPU", "hardware"),
            ),
            (
                149,
                0,
                "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001)",
                (INFO, "IGNORE", "hardware"),
            ),
            (
                149,
                2,
                "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001)",
                (WARNING, "CONTACT_SUPPORT", "hardware"),
            ),
            (
                145,
                0,
                "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008)",
                (WARNING, "XID_154", "hardware"),
            ),
            (
                144,
                0,
                "SAW_NEW Fatal XC0 i0 Link 00 (0x00000004 0x00000001)",
                (CRITICAL, "WORKFLOW_NVLINK5_ERR", "hardware"),
            ),
        ];
        for (xid, earlier, text, expected) in cases {
            assert_eq!(assessed(xid, earlier, text), expected, "{text}");
        }
    }

    #[test]
    fn every_row_keeps_its_bucket_if_alone_and_not_recurring() {
        for entry in entries() {
            let (severity, action, _) = assessment(entry.number, 0, &[], Job::Unknown, LogDetails::Nothing);
            let resolved = entry.number == 48;
            assert!(action == entry.immediate.word() || resolved, "{entry:?}");
            assert_eq!(
                severity == INFO,
                entry.immediate == Action::Ignore
                    || entry.family == Family::Information && action != "XID_154",
                "{entry:?}"
            );
        }
    }
}
