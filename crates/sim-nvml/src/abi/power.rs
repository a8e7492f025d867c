//! Power, its limits, energy.

use super::exports;
use super::handle::device;
use super::pointer::Out;

exports! {
    /// Milliwatts, averaged over one second.
    fn nvmlDeviceGetPowerUsage(handle: usize, power: Out<u32>) {
        let device = device(handle)?;
        power.put(device.gpu().power_mw(device.t, 1.0))
    }

    fn nvmlDeviceGetPowerManagementLimit(handle: usize, limit: Out<u32>) {
        limit.put(device(handle)?.gpu().profile.power_default_w * 1_000)
    }

    fn nvmlDeviceGetPowerManagementDefaultLimit(handle: usize, limit: Out<u32>) {
        limit.put(device(handle)?.gpu().profile.power_default_w * 1_000)
    }

    fn nvmlDeviceGetEnforcedPowerLimit(handle: usize, limit: Out<u32>) {
        limit.put(device(handle)?.gpu().profile.power_default_w * 1_000)
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(handle: usize, min: Out<u32>, max: Out<u32>) {
        let device = device(handle)?;
        min.put(device.gpu().profile.power_min_w * 1_000)?;
        max.put(device.gpu().profile.power_max_w * 1_000)
    }

    /// Millijoules since the driver was loaded.
    fn nvmlDeviceGetTotalEnergyConsumption(handle: usize, energy: Out<u64>) {
        let device = device(handle)?;
        energy.put(device.gpu().energy_mj(device.t))
    }
}
