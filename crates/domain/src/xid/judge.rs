//! How bad an Xid is, where and when it happened.
//!
//! ```text
//! the driver asks for an action (154)           ─▶ that action decides
//! the GPU is off the bus (79 beside it)         ─▶ a consequence; 79 says it all
//! 43, 45, 171, 172 beside another               ─▶ a consequence of the other
//! a program's error while its run is being ended ─▶ worth knowing, no more
//! 48 by 64, 95, 94, 63 · 74 by what came with it · 144–150 by unit and sub-code
//! else by the bucket, one step worse when it keeps coming back to this GPU
//! ```

use super::catalogue::{Entry, Family, find};
use super::nvlink::{NvlinkFault, Resolution, resolution};
use super::{Action, Recovery};
use crate::event::Severity;

/// So often within a day on one GPU is not chance.
const RECURRING: u32 = 3;
/// Numbers that say no more than that something else happened.
const FOLLOWERS: [u32; 4] = [43, 45, 171, 172];
/// The GPU has fallen off the bus.
const OFF_THE_BUS: u32 = 79;

/// What the job on the GPU was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Job {
    /// Nobody knows.
    #[default]
    Unknown,
    /// A run used the GPU.
    Running,
    /// The run was being stopped: its processes are killed in the middle of their work.
    Ending,
}

/// What the driver said beside the number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Said {
    /// Nothing that decides.
    #[default]
    Nothing,
    /// Xid 154: what it asks for.
    Recovery(Recovery),
    /// Xid 144 to 150.
    Nvlink(NvlinkFault),
}

/// An Xid and what surrounds it.
#[derive(Debug, Clone, Default)]
pub struct Occurrence<'a> {
    /// The number.
    pub xid: u32,
    /// What its line said.
    pub said: Said,
    /// How often it came to this GPU before within a day, minutes-long bursts counted once.
    pub earlier: u32,
    /// Other numbers of this GPU within some minutes.
    pub companions: &'a [u32],
    /// The job on the GPU.
    pub job: Job,
}

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The program's.
    Application,
    /// The hardware's.
    Hardware,
    /// The driver's or firmware's.
    Software,
    /// Another error's, which is reported on its own.
    Consequence,
    /// No fault.
    None,
}

impl Cause {
    /// A stable word; the label `cause`.
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

/// The judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How urgent.
    pub severity: Severity,
    /// What to do, resolved as far as the context allows.
    pub action: Action,
    /// Whose fault.
    pub cause: Cause,
    /// Why so, as the rest of a sentence; empty where the bucket alone decided.
    pub why: String,
}

/// Judges an Xid.
#[must_use]
pub fn judge(occurrence: &Occurrence<'_>) -> Verdict {
    let Some(entry) = find(occurrence.xid) else {
        let why = "newer than NVIDIA's published catalogue";
        return Verdict::new(Severity::Warning, Action::Unpublished, Cause::Hardware).because(why);
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

impl Verdict {
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

/// Xid 154 is the driver's own judgement of all that went before.
fn recovery(occurrence: &Occurrence<'_>) -> Option<Verdict> {
    if occurrence.xid != 154 {
        return None;
    }
    let Said::Recovery(recovery) = occurrence.said else {
        let why = "which recovery it asks for stands in the kernel's log only";
        return Some(Verdict::new(Severity::Warning, Action::Xid154, Cause::Hardware).because(why));
    };
    let verdict = match recovery {
        Recovery::None => {
            Verdict::new(Severity::Info, Action::Ignore, Cause::None).because("the GPU has recovered")
        }
        _ => Verdict::new(Severity::Critical, recovery.action(), Cause::Hardware)
            .because("the driver itself asks for it"),
    };
    Some(verdict)
}

fn follows(occurrence: &Occurrence<'_>) -> Option<Verdict> {
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
    let verdict = |first| {
        Verdict::new(Severity::Info, Action::Ignore, Cause::Consequence)
            .because(format!("it follows Xid {first}"))
    };
    first.map(verdict)
}

/// A program that is killed in the middle of its work leaves errors behind that nobody needs to look at.
fn ended(occurrence: &Occurrence<'_>, entry: &Entry) -> Option<Verdict> {
    let expected = occurrence.job == Job::Ending && entry.family == Family::Application;
    expected.then(|| {
        Verdict::new(Severity::Info, Action::Ignore, Cause::Consequence).because("its run was being stopped")
    })
}

fn double_bit(occurrence: &Occurrence<'_>) -> Verdict {
    let hardware = |severity, action| Verdict::new(severity, action, Cause::Hardware);
    if occurrence.beside(64) {
        return hardware(Severity::Critical, Action::ResetGpu)
            .because("with Xid 64: the row could not be remapped");
    }
    if occurrence.beside(95) {
        return hardware(Severity::Critical, Action::ResetGpu).because("with Xid 95: it was not contained");
    }
    if occurrence.recurs() {
        return hardware(Severity::Critical, Action::ContactSupport)
            .because("it keeps coming back to this GPU");
    }
    if occurrence.beside(94) {
        let why = "with Xid 94: it was contained to one program; reset the GPU when it is free, so that the row is remapped";
        return hardware(Severity::Warning, Action::RestartApp).because(why);
    }
    if occurrence.beside(63) {
        let why = "with Xid 63: the row is remapped at the next reset";
        return hardware(Severity::Warning, Action::DrainAndReset).because(why);
    }
    hardware(Severity::Critical, Action::ResetGpu).because("nothing says that it was contained")
}

fn nvlink(occurrence: &Occurrence<'_>) -> Verdict {
    let hardware = |severity, action| Verdict::new(severity, action, Cause::Hardware);
    if occurrence.recurs() {
        return hardware(Severity::Critical, Action::ContactSupport)
            .because("it keeps coming back to this GPU");
    }
    if occurrence.beside(45) || occurrence.beside(48) || occurrence.job == Job::Running {
        return hardware(Severity::Critical, Action::ResetGpu).because("programs on the GPU were hit");
    }
    hardware(Severity::Warning, Action::WorkflowNvlink)
}

fn nvlink5(occurrence: &Occurrence<'_>) -> Verdict {
    let hardware = |severity, action| Verdict::new(severity, action, Cause::Hardware);
    let Said::Nvlink(fault) = &occurrence.said else {
        let why = "which unit it was stands in the kernel's log only";
        return hardware(Severity::Warning, Action::WorkflowNvlink5).because(why);
    };
    match resolution(occurrence.xid, fault) {
        Some(Resolution::ResetGpu) => hardware(Severity::Critical, Action::ResetGpu),
        Some(Resolution::Xid154) => hardware(Severity::Warning, Action::Xid154)
            .because("an Xid 154 beside it says whether the GPU needs a reset"),
        Some(Resolution::Ignore) if occurrence.recurs() => {
            hardware(Severity::Warning, Action::ContactSupport).because("it keeps coming back to this GPU")
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

fn by_bucket(occurrence: &Occurrence<'_>, entry: &Entry) -> Verdict {
    let cause = cause(entry.family);
    let recurs = occurrence.recurs();
    let severity = match entry.immediate {
        Action::Ignore if recurs && entry.investigatory == "CONTACT_SUPPORT" => Severity::Warning,
        Action::Ignore => Severity::Info,
        // A bug of a program comes back with the program; that is no reason to send for someone who swaps GPUs.
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
    let verdict = Verdict::new(severity, entry.immediate, cause);
    match (recurs, cause) {
        (true, Cause::Application) => verdict.because(
            "it keeps coming back to this GPU: try the program on another one; if the error stays here, have this GPU checked",
        ),
        (true, Cause::Hardware | Cause::Software) => verdict.because("it keeps coming back to this GPU"),
        _ => verdict,
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

    /// Number, bursts before, companions, job; severity, action, cause.
    type Case = (u32, u32, &'static [u32], Job, Words);
    type Words = (Severity, &'static str, &'static str);

    const INFO: Severity = Severity::Info;
    const WARNING: Severity = Severity::Warning;
    const CRITICAL: Severity = Severity::Critical;

    fn verdict(xid: u32, earlier: u32, companions: &[u32], job: Job, said: Said) -> Words {
        let verdict = judge(&Occurrence {
            xid,
            said,
            earlier,
            companions,
            job,
        });
        (verdict.severity, verdict.action.word(), verdict.cause.word())
    }

    #[test]
    fn the_same_number_is_bad_or_not_by_what_surrounds_it() {
        let (some, running, ending) = (Job::Unknown, Job::Running, Job::Ending);
        let cases: &[Case] = &[
            // A program's errors stay warnings, however often they come, and are nothing while the run is being ended.
            (31, 0, &[], running, (WARNING, "RESTART_APP", "application")),
            (31, 9, &[], running, (WARNING, "RESTART_APP", "application")),
            (31, 0, &[], ending, (INFO, "IGNORE", "consequence")),
            (13, 0, &[45], some, (WARNING, "RESTART_APP", "application")),
            (109, 0, &[], running, (WARNING, "RESET_GPU", "application")),
            (109, 2, &[], running, (CRITICAL, "RESET_GPU", "application")),
            // 43 and 45 follow.
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
            // The rest.
            (39, 0, &[], running, (WARNING, "RESTART_APP", "hardware")),
            (39, 2, &[], running, (CRITICAL, "RESTART_APP", "hardware")),
            (54, 0, &[], some, (CRITICAL, "CHECK_MECHANICALS", "hardware")),
            (106, 0, &[], some, (INFO, "IGNORE", "none")),
            (162, 0, &[], some, (INFO, "UNPUBLISHED", "none")),
            (1, 0, &[], some, (WARNING, "CONTACT_SUPPORT", "software")),
            (4_711, 0, &[], some, (WARNING, "UNPUBLISHED", "hardware")),
        ];
        for (xid, earlier, companions, job, expected) in cases {
            let got = verdict(*xid, *earlier, companions, *job, Said::Nothing);
            assert_eq!(
                got, *expected,
                "{xid}, {earlier} before, beside {companions:?}, {job:?}"
            );
        }
    }

    #[test]
    fn the_driver_s_own_wish_counts_even_beside_a_lost_gpu() {
        let asked = |recovery| verdict(154, 0, &[79], Job::Ending, Said::Recovery(recovery));
        assert_eq!(asked(Recovery::None), (INFO, "IGNORE", "none"));
        assert_eq!(asked(Recovery::Reset), (CRITICAL, "RESET_GPU", "hardware"));
        assert_eq!(asked(Recovery::Reboot), (CRITICAL, "RESTART_BM", "hardware"));
        assert_eq!(asked(Recovery::DrainP2p), (CRITICAL, "DRAIN_P2P", "hardware"));
        assert_eq!(
            asked(Recovery::DrainAndReset),
            (CRITICAL, "DRAIN_AND_RESET", "hardware")
        );
        assert_eq!(
            verdict(154, 0, &[], Job::Unknown, Said::Nothing),
            (WARNING, "XID_154", "hardware")
        );
    }

    #[test]
    fn nvlink_5_errors_are_judged_by_their_unit() {
        let said = |xid, earlier, text: &str| {
            let fault = decode_nvlink(text).expect("a line of the driver");
            verdict(xid, earlier, &[], Job::Running, Said::Nvlink(fault))
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
            assert_eq!(said(xid, earlier, text), expected, "{text}");
        }
    }

    #[test]
    fn alone_and_for_the_first_time_every_row_keeps_its_bucket_and_those_to_ignore_alarm_nobody() {
        for entry in entries() {
            let (severity, action, _) = verdict(entry.number, 0, &[], Job::Unknown, Said::Nothing);
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
