//! Field values: many numbered readings in one call.

use super::exports;
use super::handle::{Device, device};
use super::pointer::Out;
use super::structs::FieldValue;
use crate::engine::fields::{self, Value};
use crate::engine::status::Status;

/// The maximum count. NVML does not have that many fields times links, so a greater count is a mistake.
const FIELDS_MAX: i32 = 16_384;
/// The age of a value when it is returned, in microseconds.
const LATENCY_US: i64 = 12;

exports! {
    /// Each value has its own status; the call fails only as a whole.
    fn nvmlDeviceGetFieldValues(handle: usize, count: i32, values: Out<FieldValue>) {
        let device = device(handle)?;
        if !(1..=FIELDS_MAX).contains(&count) || values.is_null() {
            return Err(Status::InvalidArgument);
        }
        (0..count as usize).try_for_each(|index| values.put_at(index, read(&device, values.get_at(index)?)))
    }
}

fn read(device: &Device, asked: FieldValue) -> FieldValue {
    let timestamp_us = device.machine.unix_us(device.t) as i64;
    match fields::read(device.gpu(), asked.field_id, asked.scope_id, device.t) {
        Ok(value) => {
            let (value_type, value) = encode(value);
            FieldValue {
                timestamp_us,
                latency_us: LATENCY_US,
                value_type,
                status: Status::Success.code(),
                value,
                ..asked
            }
        }
        Err(status) => FieldValue {
            timestamp_us,
            latency_us: 0,
            value_type: 0,
            status: status.code(),
            value: 0,
            ..asked
        },
    }
}

/// Returns the number of the C type (`nvmlValueType_t`) and the bits of the union.
fn encode(value: Value) -> (u32, u64) {
    match value {
        Value::Unsigned(value) => (1, u64::from(value)),
        Value::Unsigned64(value) => (3, value),
        Value::Signed(value) => (5, u64::from(value.cast_unsigned())),
    }
}
