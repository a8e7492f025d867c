//! Actions that NVIDIA recommends for Xid errors.

/// An action of NVIDIA's catalogue, or an action that the driver itself requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Do nothing.
    Ignore,
    /// Restart the program.
    RestartApp,
    /// Reset the GPU.
    ResetGpu,
    /// Restart the machine.
    RestartBareMetal,
    /// Restart the virtual machine.
    RestartVm,
    /// Update the driver or the firmware.
    UpdateSoftware,
    /// Check cables and seating.
    CheckMechanicals,
    /// Check the unified memory driver.
    CheckUvm,
    /// Contact the vendor.
    ContactSupport,
    /// Depends on whether the error occurs alone or after another one.
    WorkflowXid45,
    /// Depends on the memory errors that occur with it.
    WorkflowXid48,
    /// Depends on the registers in the log line.
    WorkflowNvlink,
    /// Depends on unit, sub-code and status in the log line.
    WorkflowNvlink5,
    /// Depends on the recovery action that the driver names.
    Xid154,
    /// Stop the peer-to-peer traffic of the GPU.
    DrainP2p,
    /// Wait for the running work to end, then reset.
    DrainAndReset,
    /// NVIDIA publishes no action.
    Unpublished,
}

/// Every action with the word that NVIDIA publishes.
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
    /// Returns NVIDIA's word for the action, the value of the label `action`.
    #[must_use]
    pub fn word(self) -> &'static str {
        WORDS
            .iter()
            .find(|(action, _)| *action == self)
            .map_or("", |(_, word)| word)
    }

    /// Returns the action for NVIDIA's word; `-` means no action.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        if word == "-" {
            return Some(Self::Unpublished);
        }
        let known = WORDS.iter().find(|(_, known)| *known == word);
        known.map(|(action, _)| *action)
    }

    /// Returns the action as a text for people.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Ignore => "nothing needs to be done",
            Self::RestartApp => "restart the program; the GPU itself still works",
            Self::ResetGpu => "drain the node and reset the GPU (`nvidia-smi --gpu-reset`)",
            Self::RestartBareMetal => {
                "drain the node and reboot it; if the error recurs, have the hardware checked"
            }
            Self::RestartVm => "restart the virtual machine",
            Self::UpdateSoftware => "update the driver and firmware",
            Self::CheckMechanicals => "check the GPU's power cables and seating",
            Self::CheckUvm => "check the messages of the unified memory driver (nvidia-uvm) next to it",
            Self::ContactSupport => "collect a report (`nvidia-bug-report.sh`) and contact the vendor",
            Self::WorkflowXid45 => "check the error before it; without one, it means that a program ended",
            Self::WorkflowXid48 => "reset the GPU so that the row is remapped",
            Self::WorkflowNvlink => "check the link and its counters; reset the GPU if programs fail",
            Self::WorkflowNvlink5 => "look up the unit and sub-code in NVIDIA's NVLink 5 table",
            Self::Xid154 => "do what the driver requests",
            Self::DrainP2p => "stop work that uses peer-to-peer on this GPU",
            Self::DrainAndReset => "wait for running work to end, then reset the GPU",
            Self::Unpublished => "NVIDIA publishes no action; collect a report if the error recurs",
        }
    }
}

/// The recovery that the driver requests for a GPU: the numbers of Xid 154 and of field 230 of NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// No recovery needed.
    None,
    /// Reset the GPU.
    Reset,
    /// Reboot the node.
    Reboot,
    /// Drain peer-to-peer traffic.
    DrainP2p,
    /// Wait for the running work to end, then reset.
    DrainAndReset,
    /// A number that is newer than this table.
    Other,
}

impl Recovery {
    /// Returns the recovery for the driver's number.
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

    /// Returns the action that corresponds to the recovery.
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
