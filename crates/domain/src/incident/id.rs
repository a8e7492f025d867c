//! The id of a diagnosis: which alert, and which of its activations.

use std::fmt;
use std::str::FromStr;

use crate::api::alerts::AlertView;
use crate::time::TimestampMs;

/// Maximum length of a fingerprint. Lockstep's fingerprints have 16 digits.
const FINGERPRINT_BYTES_MAX: usize = 64;

/// `FINGERPRINT-ACTIVE_MS`. Stays the same while the alert is stored. If the same alert fires again, it gets a new id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiagnosisId {
    /// Fingerprint of the alert.
    pub fingerprint: String,
    /// When the alert's condition was first true this time.
    pub active_ms: TimestampMs,
}

/// A text that is not the id of a diagnosis.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of a diagnosis; GET /api/diagnoses lists them")]
pub struct InvalidDiagnosisId(String);

impl DiagnosisId {
    /// Returns the diagnosis id of an alert.
    #[must_use]
    pub fn of(alert: &AlertView) -> Self {
        Self {
            fingerprint: alert.fingerprint.clone(),
            active_ms: alert.active_ms,
        }
    }
}

impl fmt::Display for DiagnosisId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.fingerprint, self.active_ms)
    }
}

impl FromStr for DiagnosisId {
    type Err = InvalidDiagnosisId;

    fn from_str(text: &str) -> Result<Self, InvalidDiagnosisId> {
        let invalid = || InvalidDiagnosisId(text.chars().take(80).collect());
        let (fingerprint, active_ms) = text.rsplit_once('-').ok_or_else(invalid)?;
        let is_plain = !fingerprint.is_empty()
            && fingerprint.len() <= FINGERPRINT_BYTES_MAX
            && fingerprint.bytes().all(|b| b.is_ascii_alphanumeric());
        let is_number = active_ms.bytes().all(|b| b.is_ascii_digit());
        let active_ms = active_ms.parse().map_err(|_| invalid())?;
        if !is_plain || !is_number {
            return Err(invalid());
        }
        Ok(Self {
            fingerprint: fingerprint.to_owned(),
            active_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = DiagnosisId {
            fingerprint: "00ff00ff00ff00ff".into(),
            active_ms: 1_764_076_535_123,
        };
        assert_eq!(id.to_string(), "00ff00ff00ff00ff-1764076535123");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in [
            "", "-", "abc", "abc-", "-5", "a/b-5", "abc-+5", "abc-5x", "abc--5",
        ] {
            assert!(bad.parse::<DiagnosisId>().is_err(), "{bad}");
        }
    }
}
