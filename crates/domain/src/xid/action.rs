//! What NVIDIA says to do, in its own buckets.

/// An action bucket of NVIDIA's catalogue, or what the driver itself asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing needs to be done.
    Ignore,
    /// Start the program again.
    RestartApp,
    /// Reset the GPU.
    ResetGpu,
    /// Restart the machine.
    RestartBareMetal,
    /// Restart the virtual machine.
    RestartVm,
    /// Update driver or firmware.
    UpdateSoftware,
    /// Check cables and seating.
    CheckMechanicals,
    /// Check the unified memory driver.
    CheckUvm,
    /// Ask the vendor.
    ContactSupport,
    /// Alone or in the wake of another.
    WorkflowXid45,
    /// By the memory errors that come with it.
    WorkflowXid48,
    /// By the registers in the line.
    WorkflowNvlink,
    /// By unit, sub-code and status in the line.
    WorkflowNvlink5,
    /// By the recovery action the driver names.
    Xid154,
    /// Stop peer-to-peer traffic of the GPU.
    DrainP2p,
    /// Let work end, then reset.
    DrainAndReset,
    /// NVIDIA publishes none.
    Unpublished,
}

/// Every bucket with the word it is published under.
const WORDS: [(Action, &str); 17] = [
    (Action::Ignore, "IGNORE"),
    (Action::RestartApp, "RESTART_APP"),
    (Action::ResetGpu, "RESET_GPU"),
    (Action::RestartBareMetal, "RESTART_BM"),
    (Action::RestartVm, "RESTART_VM"),
    (Action::UpdateSoftware, "UPDATE_SWFW"),
    (Action::CheckMechanicals, "CHECK_MECHANICALS"),
    (Action::CheckUvm, "CHECK_UVM"),
    (Action::ContactSupport, "CONTACT_SUPPORT"),
    (Action::WorkflowXid45, "WORKFLOW_XID_45"),
    (Action::WorkflowXid48, "WORKFLOW_XID_48"),
    (Action::WorkflowNvlink, "WORKFLOW_NVLINK_ERR"),
    (Action::WorkflowNvlink5, "WORKFLOW_NVLINK5_ERR"),
    (Action::Xid154, "XID_154"),
    (Action::DrainP2p, "DRAIN_P2P"),
    (Action::DrainAndReset, "DRAIN_AND_RESET"),
    (Action::Unpublished, "UNPUBLISHED"),
];

impl Action {
    /// The bucket as NVIDIA writes it; the label `action`.
    #[must_use]
    pub fn word(self) -> &'static str {
        WORDS
            .iter()
            .find(|(action, _)| *action == self)
            .map_or("", |(_, word)| word)
    }

    /// The bucket of a word; `-` is none.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        let known = || {
            WORDS
                .iter()
                .find(|(_, known)| *known == word)
                .map(|(action, _)| *action)
        };
        if word == "-" {
            Some(Self::Unpublished)
        } else {
            known()
        }
    }

    /// What a person should do.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Ignore => "nothing needs to be done",
            Self::RestartApp => "start the program again; the GPU itself goes on",
            Self::ResetGpu => "drain the node and reset the GPU (`nvidia-smi --gpu-reset`)",
            Self::RestartBareMetal => {
                "drain the node and reboot it; if it comes back, have the hardware checked"
            }
            Self::RestartVm => "restart the virtual machine",
            Self::UpdateSoftware => "update the driver and firmware",
            Self::CheckMechanicals => "check the GPU's power cables and seating",
            Self::CheckUvm => "look at what the unified memory driver (nvidia-uvm) says next to it",
            Self::ContactSupport => "collect a report (`nvidia-bug-report.sh`) and ask the vendor",
            Self::WorkflowXid45 => "look at the error before it; alone it means that a program ended",
            Self::WorkflowXid48 => "reset the GPU so that the row is remapped",
            Self::WorkflowNvlink => "check the link and its counters; reset the GPU if programs fail",
            Self::WorkflowNvlink5 => "look the unit and sub-code up in NVIDIA's NVLink 5 table",
            Self::Xid154 => "do what the driver asks for",
            Self::DrainP2p => "stop work that uses peer-to-peer on this GPU",
            Self::DrainAndReset => "let running work end, then reset the GPU",
            Self::Unpublished => "NVIDIA publishes no action; collect a report if it comes back",
        }
    }
}

/// What the driver asks for to recover a GPU: the numbers of Xid 154 and of NVML's field 230.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// Nothing.
    None,
    /// Reset the GPU.
    Reset,
    /// Reboot the node.
    Reboot,
    /// Drain peer-to-peer traffic.
    DrainP2p,
    /// Let work end, then reset.
    DrainAndReset,
    /// Something newer than this table.
    Other,
}

impl Recovery {
    /// By the driver's number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Reset,
            2 => Self::Reboot,
            3 => Self::DrainP2p,
            4 => Self::DrainAndReset,
            _ => Self::Other,
        }
    }

    /// The bucket it amounts to.
    #[must_use]
    pub fn action(self) -> Action {
        match self {
            Self::None => Action::Ignore,
            Self::Reset => Action::ResetGpu,
            Self::Reboot => Action::RestartBareMetal,
            Self::DrainP2p => Action::DrainP2p,
            Self::DrainAndReset => Action::DrainAndReset,
            Self::Other => Action::ContactSupport,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_has_its_word_and_advice() {
        for (action, word) in WORDS {
            assert_eq!((action.word(), Action::from_word(word)), (word, Some(action)));
            assert!(!action.advice().is_empty());
        }
        assert_eq!(Action::from_word("-"), Some(Action::Unpublished));
        assert_eq!(Action::from_word("SHRUG"), None);
    }
}
