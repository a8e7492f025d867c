//! NVML's C structs, field by field. A test compares sizes and offsets with the published bindings.

use std::ffi::c_char;

use super::pointer::Out;

/// Returns the version word of a struct: its size and the number of its revision.
pub(crate) const fn version_of<T>(revision: u32) -> u32 {
    size_of::<T>() as u32 | revision << 24
}

/// No MIG instance.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Memory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Utilization {
    pub gpu: u32,
    pub memory: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfo {
    pub bus_id_legacy: [c_char; 16],
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pci_device_id: u32,
    pub pci_subsystem_id: u32,
    pub bus_id: [c_char; 32],
}

/// `value` is a C union. NVML exists only on little-endian machines, where every narrower member is in the low bytes of the widest.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct FieldValue {
    pub field_id: u32,
    pub scope_id: u32,
    pub timestamp_us: i64,
    pub latency_us: i64,
    pub value_type: u32,
    pub status: u32,
    pub value: u64,
}

/// For `value`, see [`FieldValue`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Sample {
    pub timestamp_us: u64,
    pub value: u64,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessInfo {
    pub pid: u32,
    pub used_memory: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessUtilizationSample {
    pub pid: u32,
    pub timestamp_us: u64,
    pub sm: u32,
    pub memory: u32,
    pub encoder: u32,
    pub decoder: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessUtilizationInfo {
    pub timestamp_us: u64,
    pub pid: u32,
    pub sm: u32,
    pub memory: u32,
    pub encoder: u32,
    pub decoder: u32,
    pub jpeg: u32,
    pub optical_flow: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessesUtilization {
    pub version: u32,
    pub count: u32,
    pub last_seen_us: u64,
    /// The address of `count` elements of [`ProcessUtilizationInfo`].
    pub infos: Out<ProcessUtilizationInfo>,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct EventData {
    pub device: usize,
    pub kind: u64,
    pub data: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct FabricInfo {
    pub cluster_uuid: [u8; 16],
    pub status: u32,
    pub clique_id: u32,
    pub state: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct FabricInfoV2 {
    pub version: u32,
    pub info: FabricInfo,
    pub health_mask: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct FabricInfoV3 {
    pub version: u32,
    pub info: FabricInfo,
    pub health_mask: u32,
    pub health_summary: u8,
}

/// Its version is a plain 1, not a version word.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct GpmSupport {
    pub version: u32,
    pub is_supported: u32,
}

/// The fixed part of `nvmlGpmMetricsGet_t`; `count` elements of [`GpmMetric`] follow. The declared length of the array differs between
/// releases (98, 210, 333, 477), so nothing beyond `count` is accessed.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct GpmRequest {
    pub version: u32,
    pub count: u32,
    pub sample1: usize,
    pub sample2: usize,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct GpmMetric {
    pub id: u32,
    pub status: u32,
    pub value: f64,
    pub short_name: *const c_char,
    pub long_name: *const c_char,
    pub unit: *const c_char,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Temperature {
    pub version: u32,
    pub sensor: u32,
    pub degrees: i32,
}

/// Aggregate and volatile counts, then the units of the aggregate uncorrectable errors.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct SramEcc {
    pub version: u32,
    pub aggregate_parity: u64,
    pub aggregate_sec_ded: u64,
    pub aggregate_corrected: u64,
    pub volatile_parity: u64,
    pub volatile_sec_ded: u64,
    pub volatile_corrected: u64,
    pub in_l2: u64,
    pub in_multiprocessors: u64,
    pub in_pcie: u64,
    pub in_microcontrollers: u64,
    pub elsewhere: u64,
    pub threshold_exceeded: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RowHistogram {
    pub max: u32,
    pub high: u32,
    pub partial: u32,
    pub low: u32,
    pub none: u32,
}

/// Both revisions have this layout; the meaning of the second GUID differs.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct PlatformInfo {
    pub version: u32,
    pub ib_guid: [u8; 16],
    pub chassis_serial: [u8; 16],
    pub slot: u8,
    pub tray: u8,
    pub host: u8,
    pub peer_type: u8,
    pub module: u8,
}

/// The resources of an instance of a partitioned GPU.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct DeviceAttributes {
    pub multiprocessors: u32,
    pub copy_engines: u32,
    pub decoders: u32,
    pub encoders: u32,
    pub jpegs: u32,
    pub optical_flows: u32,
    pub gpu_instance_slices: u32,
    pub compute_instance_slices: u32,
    pub memory_mib: u64,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ConfComputeState {
    pub environment: u32,
    pub feature: u32,
    pub developer_tools: u32,
}

/// Returns ASCII text as a zero-padded C array.
pub(crate) fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (slot, byte) in array.iter_mut().zip(text.bytes().take(N - 1)) {
        *slot = byte as c_char;
    }
    array
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvml_wrapper_sys::bindings as nvml;
    use std::mem::{offset_of, size_of};

    /// Compares the size, and the offset and width of every field: `ours = theirs`. The pattern ensures that none of our fields is left
    /// out.
    macro_rules! same_layout {
        ($ours:ident = $theirs:ident, size $size:literal, { $($field:ident = $($their_field:ident).+),* $(,)? }) => {
            assert_eq!(size_of::<$ours>(), size_of::<nvml::$theirs>(), stringify!($ours));
            assert_eq!(size_of::<$ours>(), $size, stringify!($ours));
            $(assert_eq!(
                offset_of!($ours, $field),
                offset_of!(nvml::$theirs, $($their_field).+),
                "{}.{}", stringify!($ours), stringify!($field)
            );)*
            let _ = |ours: $ours| {
                let $ours { $($field: _),* } = ours;
            };
        };
    }

    #[test]
    fn layouts_are_those_of_the_published_bindings() {
        same_layout!(Memory = nvmlMemory_t, size 24, { total = total, free = free, used = used });
        same_layout!(MemoryV2 = nvmlMemory_v2_t, size 40, {
            version = version, total = total, reserved = reserved, free = free, used = used,
        });
        same_layout!(Utilization = nvmlUtilization_t, size 8, { gpu = gpu, memory = memory });
        same_layout!(PciInfo = nvmlPciInfo_t, size 68, {
            bus_id_legacy = busIdLegacy, domain = domain, bus = bus, device = device,
            pci_device_id = pciDeviceId, pci_subsystem_id = pciSubSystemId, bus_id = busId,
        });
        same_layout!(FieldValue = nvmlFieldValue_t, size 40, {
            field_id = fieldId, scope_id = scopeId, timestamp_us = timestamp, latency_us = latencyUsec,
            value_type = valueType, status = nvmlReturn, value = value,
        });
        same_layout!(Sample = nvmlSample_t, size 16, { timestamp_us = timeStamp, value = sampleValue });
        same_layout!(ProcessInfo = nvmlProcessInfo_t, size 24, {
            pid = pid, used_memory = usedGpuMemory, gpu_instance = gpuInstanceId, compute_instance = computeInstanceId,
        });
        same_layout!(ProcessUtilizationSample = nvmlProcessUtilizationSample_t, size 32, {
            pid = pid, timestamp_us = timeStamp, sm = smUtil, memory = memUtil, encoder = encUtil, decoder = decUtil,
        });
        same_layout!(ProcessUtilizationInfo = nvmlProcessUtilizationInfo_v1_t, size 40, {
            timestamp_us = timeStamp, pid = pid, sm = smUtil, memory = memUtil, encoder = encUtil, decoder = decUtil,
            jpeg = jpgUtil, optical_flow = ofaUtil,
        });
        same_layout!(ProcessesUtilization = nvmlProcessesUtilizationInfo_v1_t, size 24, {
            version = version, count = processSamplesCount, last_seen_us = lastSeenTimeStamp, infos = procUtilArray,
        });
        same_layout!(EventData = nvmlEventData_t, size 32, {
            device = device, kind = eventType, data = eventData, gpu_instance = gpuInstanceId,
            compute_instance = computeInstanceId,
        });
        same_layout!(FabricInfo = nvmlGpuFabricInfo_t, size 28, {
            cluster_uuid = clusterUuid, status = status, clique_id = cliqueId, state = state,
        });
        // Versions two and three contain the fields of our `info` directly.
        same_layout!(FabricInfoV2 = nvmlGpuFabricInfo_v2_t, size 36, {
            version = version, info = clusterUuid, health_mask = healthMask,
        });
        same_layout!(FabricInfoV3 = nvmlGpuFabricInfo_v3_t, size 40, {
            version = version, info = clusterUuid, health_mask = healthMask, health_summary = healthSummary,
        });
        assert_eq!(
            offset_of!(FabricInfoV3, info) + offset_of!(FabricInfo, state),
            offset_of!(nvml::nvmlGpuFabricInfo_v3_t, state)
        );
        same_layout!(GpmSupport = nvmlGpmSupport_t, size 8, { version = version, is_supported = isSupportedDevice });
        // In the bindings, the three names are a separate struct.
        same_layout!(GpmMetric = nvmlGpmMetric_t, size 40, {
            id = metricId, status = nvmlReturn, value = value,
            short_name = metricInfo, long_name = metricInfo.longName, unit = metricInfo.unit,
        });
        same_layout!(Temperature = nvmlTemperature_v1_t, size 12, {
            version = version, sensor = sensorType, degrees = temperature,
        });
        same_layout!(SramEcc = nvmlEccSramErrorStatus_v1_t, size 104, {
            version = version, aggregate_parity = aggregateUncParity, aggregate_sec_ded = aggregateUncSecDed,
            aggregate_corrected = aggregateCor, volatile_parity = volatileUncParity,
            volatile_sec_ded = volatileUncSecDed, volatile_corrected = volatileCor, in_l2 = aggregateUncBucketL2,
            in_multiprocessors = aggregateUncBucketSm, in_pcie = aggregateUncBucketPcie,
            in_microcontrollers = aggregateUncBucketMcu, elsewhere = aggregateUncBucketOther,
            threshold_exceeded = bThresholdExceeded,
        });
        same_layout!(RowHistogram = nvmlRowRemapperHistogramValues_t, size 20, {
            max = max, high = high, partial = partial, low = low, none = none,
        });
        same_layout!(PlatformInfo = nvmlPlatformInfo_v1_t, size 44, {
            version = version, ib_guid = ibGuid, chassis_serial = rackGuid, slot = chassisPhysicalSlotNumber,
            tray = computeSlotIndex, host = nodeIndex, peer_type = peerType, module = moduleId,
        });
        same_layout!(PlatformInfo = nvmlPlatformInfo_v2_t, size 44, {
            version = version, ib_guid = ibGuid, chassis_serial = chassisSerialNumber, slot = slotNumber,
            tray = trayIndex, host = hostId, peer_type = peerType, module = moduleId,
        });
        same_layout!(ConfComputeState = nvmlConfComputeSystemState_t, size 12, {
            environment = environment, feature = ccFeature, developer_tools = devToolsMode,
        });
        same_layout!(DeviceAttributes = nvmlDeviceAttributes_t, size 40, {
            multiprocessors = multiprocessorCount, copy_engines = sharedCopyEngineCount,
            decoders = sharedDecoderCount, encoders = sharedEncoderCount, jpegs = sharedJpegCount,
            optical_flows = sharedOfaCount, gpu_instance_slices = gpuInstanceSliceCount,
            compute_instance_slices = computeInstanceSliceCount, memory_mib = memorySizeMB,
        });
    }

    #[test]
    fn gpm_metrics_follow_their_request() {
        assert_eq!(size_of::<GpmRequest>(), 24);
        assert_eq!(
            offset_of!(nvml::nvmlGpmMetricsGet_t, metrics),
            size_of::<GpmRequest>()
        );
        assert_eq!(
            offset_of!(nvml::nvmlGpmMetricsGet_t, sample2),
            offset_of!(GpmRequest, sample2)
        );
    }

    #[test]
    fn version_words_are_nvml_s() {
        assert_eq!(version_of::<MemoryV2>(2), 0x0200_0028);
        assert_eq!(version_of::<ProcessesUtilization>(1), 0x0100_0018);
        assert_eq!(version_of::<FabricInfoV2>(2), 0x0200_0024);
        assert_eq!(version_of::<FabricInfoV3>(3), 0x0300_0028);
        assert_eq!(version_of::<Temperature>(1), 0x0100_000c);
        assert_eq!(version_of::<SramEcc>(1), 0x0100_0068);
        assert_eq!(version_of::<PlatformInfo>(1), 0x0100_002c);
        assert_eq!(version_of::<PlatformInfo>(2), 0x0200_002c);
    }
}
