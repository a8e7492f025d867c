//! Field values: NVML's numbered readings. One call reads many of them, each with its own scope (one link, all links).

use std::ffi::c_int;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT};

/// The scope that means all NVLinks together.
pub(crate) const ALL_LINKS: u32 = u32::MAX;

/// Fields that are read together, in a buffer that is reused.
pub(crate) struct FieldBatch {
    /// The fields, and one guard entry that is not read: NVML is known to write one entry past the end in NVLink queries.
    values: Vec<nvmlFieldValue_t>,
}

impl FieldBatch {
    /// Creates a batch of these (id, scope).
    pub(crate) fn new(fields: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let entry = |(id, scope)| {
            // SAFETY: numbers and a union of numbers; all zeroes is a value of each.
            let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
            value.fieldId = id;
            value.scopeId = scope;
            value
        };
        let guard = (0, 0);
        Self {
            values: fields.into_iter().chain([guard]).map(entry).collect(),
        }
    }

    /// Returns the number of fields.
    pub(crate) fn len(&self) -> usize {
        self.values.len() - 1
    }

    /// Reads all fields. Each then has its own answer.
    pub(crate) fn query(&mut self, device: &Device<'_>) -> Result<(), NvmlError> {
        if self.len() == 0 {
            return Ok(());
        }
        let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
        // Entries that NVML does not write must not look like answers.
        for value in &mut self.values {
            value.nvmlReturn = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
        }
        let count = c_int::try_from(self.len()).map_err(|_| NvmlError::InvalidArg)?;
        // SAFETY: the handle lives as long as `device`; `values` holds `count` entries and one more.
        nvml_try(unsafe { call(device.handle(), count, self.values.as_mut_ptr()) })
    }

    /// Returns the answers, in the order of the fields.
    pub(crate) fn answers(&self) -> impl Iterator<Item = Result<f64, NvmlError>> {
        self.values[..self.len()]
            .iter()
            .map(|value| nvml_try(value.nvmlReturn).and_then(|()| number(value)))
    }

    /// Removes the fields for which `keep` returns false. `keep` gets the index of the field.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let guard = self.len();
        let mut position = 0;
        self.values.retain(|_| {
            let kept = position == guard || keep(position);
            position += 1;
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
        batch.retain(|position| position == 1);
        assert_eq!((batch.len(), batch.values.len()), (1, 2));
        assert_eq!((batch.values[0].fieldId, batch.values[0].scopeId), (2, 7));
        batch.retain(|_| false);
        assert_eq!(
            (batch.len(), batch.values.len(), batch.answers().count()),
            (0, 1, 0)
        );
    }
}
