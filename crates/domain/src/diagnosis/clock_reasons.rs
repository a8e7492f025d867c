//! NVML's reasons for a reduced clock, in words.

/// Returns a reason in words. A reason is a value of the label `reason` of `gpu_throttle`; an unknown one is returned as it is.
pub(crate) fn words(reason: &str) -> &str {
    match reason {
        "sw_power_cap" => "software power cap (power limit)",
        "hw_slowdown" => "hardware slowdown (temperature or power)",
        "sync_boost" => "sync boost (clock of another GPU)",
        "sw_thermal_slowdown" => "software thermal slowdown (temperature)",
        "hw_thermal_slowdown" => "hardware thermal slowdown (temperature)",
        "hw_power_brake" => "hardware power brake (external power supply)",
        "display_clock_setting" => "display clock setting",
        unknown => unknown,
    }
}
