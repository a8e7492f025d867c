//! Field values: NVML's numbered readings, many of them in one call, each with a scope of its own (one link, all links).

use std::ffi::c_int;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT};

/// The scope that means all NVLinks together.
pub(crate) const ALL_LINKS: u32 = u32::MAX;

/// Fields that are asked together, in a buffer that is used again and again.
pub(crate) struct FieldBatch {
    /// What is asked, and one guard entry that is not: NVML is known to write one past the end in NVLink queries.
    values: Vec<nvmlFieldValue_t>,
}

impl FieldBatch {
    /// A batch of these (id, scope).
    pub(crate) fn new(wanted: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let entry = |(id, scope)| {
            // SAFETY: numbers and a union of numbers; all zeroes is a value of each.
            let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
            value.fieldId = id;
            value.scopeId = scope;
            value
        };
        let guard = (0, 0);
        Self {
            values: wanted.into_iter().chain([guard]).map(entry).collect(),
        }
    }

    /// How many are asked.
    pub(crate) fn len(&self) -> usize {
        self.values.len() - 1
    }

    /// Asks them all; each has an answer of its own then.
    pub(crate) fn ask(&mut self, device: &Device<'_>) -> Result<(), NvmlError> {
        if self.len() == 0 {
            return Ok(());
        }
        let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
        // What NVML does not touch must not pass for an answer.
        for value in &mut self.values {
            value.nvmlReturn = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
        }
        let count = c_int::try_from(self.len()).map_err(|_| NvmlError::InvalidArg)?;
        // SAFETY: the handle lives as long as `device`; `values` holds `count` entries and one more.
        nvml_try(unsafe { call(device.handle(), count, self.values.as_mut_ptr()) })
    }

    /// The answers, in the order the fields were named.
    pub(crate) fn answers(&self) -> impl Iterator<Item = Result<f64, NvmlError>> {
        self.values[..self.len()]
            .iter()
            .map(|value| nvml_try(value.nvmlReturn).and_then(|()| number(value)))
    }

    /// Goes on without some; `keep` is asked for each by its place.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let guard = self.len();
        let mut place = 0;
        self.values.retain(|_| {
            let kept = place == guard || keep(place);
            place += 1;
            kept
        });
    }
}

fn number(field: &nvmlFieldValue_t) -> Result<f64, NvmlError> {
    // SAFETY: NVML filled the member that `valueType` names; all are plain numbers.
    unsafe {
        Ok(match field.valueType {
            0 => field.value.dVal,
            1 => f64::from(field.value.uiVal),
            2 => field.value.ulVal as f64,
            3 => field.value.ullVal as f64,
            4 => field.value.sllVal as f64,
            5 => f64::from(field.value.siVal),
            other => return Err(NvmlError::UnexpectedVariant(other)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_is_never_asked_and_never_goes() {
        let mut batch = FieldBatch::new([(1, 0), (2, 7), (3, ALL_LINKS)]);
        assert_eq!((batch.len(), batch.values.len()), (3, 4));
        batch.retain(|place| place == 1);
        assert_eq!((batch.len(), batch.values.len()), (1, 2));
        assert_eq!((batch.values[0].fieldId, batch.values[0].scopeId), (2, 7));
        batch.retain(|_| false);
        assert_eq!(
            (batch.len(), batch.values.len(), batch.answers().count()),
            (0, 1, 0)
        );
    }
}
