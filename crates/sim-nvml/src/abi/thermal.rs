//! Temperatures, clocks, and the reasons for the clocks.

use super::exports;
use super::handle::device;
use super::pointer::Out;
use super::structs::{Temperature, version_of};
use crate::engine::power::Clock;
use crate::engine::status::Status;

/// NVML's only sensor: that of the GPU itself.
const SENSOR_GPU: u32 = 0;

exports! {
    fn nvmlDeviceGetTemperature(handle: usize, sensor: u32, degrees: Out<u32>) {
        let device = device(handle)?;
        if sensor != SENSOR_GPU {
            return Err(Status::InvalidArgument);
        }
        degrees.put(device.gpu().temperature(device.t))
    }

    fn nvmlDeviceGetTemperatureV(handle: usize, temperature: Out<Temperature>) {
        let device = device(handle)?;
        if temperature.version()? != version_of::<Temperature>(1) {
            return Err(Status::ArgumentVersionMismatch);
        }
        let asked = temperature.get()?;
        if asked.sensor != SENSOR_GPU {
            return Err(Status::InvalidArgument);
        }
        temperature.put(Temperature { degrees: device.gpu().temperature(device.t) as i32, ..asked })
    }

    fn nvmlDeviceGetTemperatureThreshold(handle: usize, kind: u32, degrees: Out<u32>) {
        let device = device(handle)?;
        let profile = device.gpu().profile;
        degrees.put(match kind {
            0 => profile.temperature_shutdown,
            1 => profile.temperature_slowdown,
            2 => profile.memory_temperature_max.ok_or(Status::NotSupported)?,
            3 => profile.temperature_max,
            // Acoustic and dynamic limits.
            4..=7 => return Err(Status::NotSupported),
            _ => return Err(Status::InvalidArgument),
        })
    }

    fn nvmlDeviceGetClockInfo(handle: usize, clock: u32, mhz: Out<u32>) {
        let device = device(handle)?;
        mhz.put(device.gpu().clock_mhz(parse_clock(clock)?, device.t))
    }

    fn nvmlDeviceGetMaxClockInfo(handle: usize, clock: u32, mhz: Out<u32>) {
        mhz.put(device(handle)?.gpu().clock_max_mhz(parse_clock(clock)?))
    }

    fn nvmlDeviceGetMaxCustomerBoostClock(handle: usize, clock: u32, mhz: Out<u32>) {
        mhz.put(device(handle)?.gpu().clock_max_mhz(parse_clock(clock)?))
    }

    fn nvmlDeviceGetClock(handle: usize, clock: u32, which: u32, mhz: Out<u32>) {
        let device = device(handle)?;
        let clock = parse_clock(clock)?;
        mhz.put(match which {
            0 => device.gpu().clock_mhz(clock, device.t),
            // No application clocks are set: target, default and customer boost are the maximum.
            1..=3 => device.gpu().clock_max_mhz(clock),
            _ => return Err(Status::InvalidArgument),
        })
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(handle: usize, reasons: Out<u64>) {
        let device = device(handle)?;
        reasons.put(device.gpu().clock_reasons(device.t))
    }

    /// The former name of the same call.
    fn nvmlDeviceGetCurrentClocksThrottleReasons(handle: usize, reasons: Out<u64>) {
        let device = device(handle)?;
        reasons.put(device.gpu().clock_reasons(device.t))
    }

    fn nvmlDeviceGetPerformanceState(handle: usize, state: Out<u32>) {
        let device = device(handle)?;
        state.put(device.gpu().performance_state(device.t))
    }

    fn nvmlDeviceGetFanSpeed(handle: usize, percent: Out<u32>) {
        let device = device(handle)?;
        percent.put(device.gpu().fan_percent(device.t).ok_or(Status::NotSupported)?)
    }
}

fn parse_clock(number: u32) -> Result<Clock, Status> {
    Ok(match number {
        0 => Clock::Graphics,
        1 => Clock::Sm,
        2 => Clock::Memory,
        3 => Clock::Video,
        _ => return Err(Status::InvalidArgument),
    })
}
