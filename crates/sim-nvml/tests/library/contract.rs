//! NVML's rules at the C boundary: codes for misuse, sizes, versions, and memory that must not be changed.

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::{fs, mem, ptr};

use libloading::Symbol;
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::*;
use object::{Object as _, ObjectSymbol as _};

use crate::simulator::{self, Simulator};

impl Simulator {
    fn raw<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: each use below names the type the published bindings give.
        unsafe { self.library.get(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

/// Reads fields (id, scope) with one guard entry after them, which must not change.
pub(crate) fn fields(gpu: &Device<'_>, asked: &[(u32, u32)]) -> Vec<nvmlFieldValue_t> {
    // SAFETY: plain C structs, for which zero is a value; the count leaves the guard out.
    unsafe {
        let mut values = vec![mem::zeroed::<nvmlFieldValue_t>(); asked.len() + 1];
        for (value, (id, scope)) in values.iter_mut().zip(asked) {
            (value.fieldId, value.scopeId) = (*id, *scope);
        }
        values[asked.len()].timestamp = -77;
        let get = gpu.nvml().lib().nvmlDeviceGetFieldValues.as_ref().unwrap();
        assert_eq!(get(gpu.handle(), asked.len() as i32, values.as_mut_ptr()), 0);
        assert_eq!(values.pop().unwrap().timestamp, -77, "the guard");
        values
    }
}

/// Corrected, uncorrected, pending, failed.
pub(crate) fn remapped_rows(gpu: &Device<'_>) -> [u32; 4] {
    let mut rows = [9; 4];
    let [corrected, uncorrected, pending, failed] = &mut rows;
    // SAFETY: four places to write to.
    unsafe {
        let get = gpu.nvml().lib().nvmlDeviceGetRemappedRows.as_ref().unwrap();
        assert_eq!(get(gpu.handle(), corrected, uncorrected, pending, failed), 0);
    }
    rows
}

#[test]
fn the_library_exports_the_promised_symbols_and_nothing_else() {
    let promised: Vec<&str> = include_str!("../symbols.txt").lines().collect();
    assert_eq!(exported(&simulator::built()), promised);
    // A client that finds the first and not the second assumes that processes have 32 bytes.
    let pair = [
        "nvmlDeviceGetConfComputeMemSizeInfo",
        "nvmlDeviceGetRunningProcessDetailList",
    ];
    let found = pair.iter().filter(|name| promised.contains(name)).count();
    assert_ne!(found, 1, "export both of {pair:?}, or neither");
}

/// Returns the sorted names that a library exports.
fn exported(library: &Path) -> Vec<String> {
    let bytes = fs::read(library).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let defined = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    let mut names: Vec<String> = defined.map(|symbol| symbol.name().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn nothing_works_before_init_and_users_are_counted() {
    let simulator = Simulator::new("h100x3");
    let init = simulator.raw::<unsafe extern "C" fn() -> u32>("nvmlInit_v2");
    let init_flags = simulator.raw::<unsafe extern "C" fn(u32) -> u32>("nvmlInitWithFlags");
    let shutdown = simulator.raw::<unsafe extern "C" fn() -> u32>("nvmlShutdown");
    let count = simulator.raw::<unsafe extern "C" fn(*mut u32) -> u32>("nvmlDeviceGetCount_v2");
    let mut gpus = 0;
    // SAFETY: signatures of the bindings, one place to write to.
    unsafe {
        assert_eq!((count(&mut gpus), shutdown()), (1, 1));
        assert_eq!((init(), init_flags(0), count(&mut gpus), gpus), (0, 0, 0, 3));
        assert_eq!((shutdown(), count(&mut gpus)), (0, 0), "one user is left");
        assert_eq!((shutdown(), count(&mut gpus), shutdown()), (0, 1, 1));
        assert_eq!((init(), count(&mut gpus)), (0, 0), "and it starts again");
    }
}

#[test]
fn misuse_gets_the_code_of_its_kind() {
    let simulator = Simulator::new("h100x1");
    let nvml = simulator.nvml();
    let (lib, gpu) = (nvml.lib(), nvml.device_by_index(0).unwrap());
    // SAFETY: null where the library must notice, valid places elsewhere.
    unsafe {
        let gpu = gpu.handle();
        let mut text = [0x55 as c_char; 96];
        let name = lib.nvmlDeviceGetName.as_ref().unwrap();
        assert_eq!(
            name(gpu, text.as_mut_ptr(), 21),
            7,
            "21 characters need a zero too"
        );
        assert_eq!(text[0], 0x55, "and nothing was written");
        assert_eq!(name(gpu, text.as_mut_ptr(), 22), 0);
        assert_eq!(
            CStr::from_ptr(text.as_ptr()).to_str().unwrap(),
            "NVIDIA H100 80GB HBM3"
        );
        assert_eq!(name(gpu, ptr::null_mut(), 96), 2);
        assert_eq!(name(ptr::null_mut(), text.as_mut_ptr(), 96), 2);
        assert_eq!(
            name(gpu.wrapping_byte_add(8), text.as_mut_ptr(), 96),
            2,
            "not a handle"
        );
        assert_eq!(
            name(gpu.wrapping_byte_add(0x100), text.as_mut_ptr(), 96),
            2,
            "one GPU too far"
        );

        let mut handle = ptr::null_mut();
        assert_eq!(
            lib.nvmlDeviceGetHandleByIndex_v2.as_ref().unwrap()(1, &mut handle),
            2
        );
        assert_eq!(
            lib.nvmlDeviceGetHandleByUUID.as_ref().unwrap()(c"GPU-0".as_ptr(), &mut handle),
            6
        );
        assert_eq!(
            lib.nvmlDeviceGetHandleByUUID.as_ref().unwrap()(ptr::null(), &mut handle),
            2
        );

        let mut memory: nvmlMemory_v2_t = mem::zeroed();
        for (version, status) in [(0, 25), (1, 25), (0x0100_0028, 25), (0x0200_0028, 0)] {
            memory.version = version;
            assert_eq!(
                lib.nvmlDeviceGetMemoryInfo_v2.as_ref().unwrap()(gpu, &mut memory),
                status,
                "{version:#x}"
            );
        }
        assert_eq!(
            lib.nvmlDeviceGetMemoryInfo_v2.as_ref().unwrap()(gpu, ptr::null_mut()),
            2
        );
        let mut clock = 0;
        assert_eq!(
            lib.nvmlDeviceGetClockInfo.as_ref().unwrap()(gpu, 9, &mut clock),
            2
        );
        assert_eq!(
            lib.nvmlDeviceGetFieldValues.as_ref().unwrap()(gpu, 0, ptr::null_mut()),
            2
        );
        assert_eq!(
            lib.nvmlDeviceGetFanSpeed.as_ref().unwrap()(gpu, &mut clock),
            3,
            "no fan of its own"
        );
        assert_eq!(lib.nvmlGpmSampleFree.as_ref().unwrap()(0x1234 as _), 2);
    }
}

#[test]
fn lists_say_how_much_room_they_need() {
    let simulator = Simulator::new("h100x1");
    let nvml = simulator.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    // SAFETY: counts never exceed the room there is.
    unsafe {
        let list = nvml
            .lib()
            .nvmlDeviceGetComputeRunningProcesses_v3
            .as_ref()
            .unwrap();
        let mut room = 0;
        assert_eq!((list(gpu.handle(), &mut room, ptr::null_mut()), room), (7, 1));
        let mut infos: [nvmlProcessInfo_t; 2] = mem::zeroed();
        room = 0;
        assert_eq!(
            (
                list(gpu.handle(), &mut room, infos.as_mut_ptr()),
                room,
                infos[0].pid
            ),
            (7, 1, 0)
        );
        room = 2;
        assert_eq!((list(gpu.handle(), &mut room, infos.as_mut_ptr()), room), (0, 1));
        assert_eq!((infos[0].gpuInstanceId, infos[1].pid), (u32::MAX, 0));
        assert_eq!(list(gpu.handle(), ptr::null_mut(), infos.as_mut_ptr()), 2);

        let detail = nvml.lib().nvmlDeviceGetProcessesUtilizationInfo.as_ref().unwrap();
        let mut rows: [nvmlProcessUtilizationInfo_v1_t; 1] = mem::zeroed();
        let mut request = nvmlProcessesUtilizationInfo_v1_t {
            version: 0x0100_0018,
            processSamplesCount: 0,
            lastSeenTimeStamp: 0,
            procUtilArray: rows.as_mut_ptr(),
        };
        assert_eq!(
            (detail(gpu.handle(), &mut request), request.processSamplesCount),
            (7, 1)
        );
        assert_eq!(detail(gpu.handle(), &mut request), 0);
        assert!(rows[0].pid == infos[0].pid && rows[0].smUtil > 80 && rows[0].timeStamp > 0);
        request.version = 1;
        assert_eq!(detail(gpu.handle(), &mut request), 25);
    }
}

#[test]
fn gpm_touches_only_the_metrics_asked_for() {
    let simulator = Simulator::new("h100x2");
    let nvml = simulator.nvml();
    let lib = nvml.lib();
    let (one, other) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    // SAFETY: samples are freed once, the request outlives its call.
    unsafe {
        let (mut first, mut second) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(lib.nvmlGpmSampleAlloc.as_ref().unwrap()(&mut first), 0);
        assert_eq!(lib.nvmlGpmSampleAlloc.as_ref().unwrap()(&mut second), 0);
        let take = lib.nvmlGpmSampleGet.as_ref().unwrap();
        let metrics = lib.nvmlGpmMetricsGet.as_ref().unwrap();
        let mut request: nvmlGpmMetricsGet_t = mem::zeroed();
        (
            request.version,
            request.numMetrics,
            request.sample1,
            request.sample2,
        ) = (1, 2, first, second);
        (request.metrics[0].metricId, request.metrics[1].metricId) = (2, 9_999);
        (request.metrics[2].metricId, request.metrics[2].value) = (2, -5.0);

        assert_eq!(metrics(&mut request), 2, "samples that were never taken");
        assert_eq!((take(one.handle(), first), take(other.handle(), second)), (0, 0));
        assert_eq!(metrics(&mut request), 2, "samples of two GPUs");
        assert_eq!(take(one.handle(), second), 0);
        assert_eq!(metrics(&mut request), 0);
        assert!(
            request.metrics[0].nvmlReturn == 0 && request.metrics[0].value.is_nan(),
            "too short an interval"
        );
        assert_eq!(request.metrics[1].nvmlReturn, 3);
        assert_eq!(
            (request.metrics[2].value, request.metrics[2].metricInfo.unit),
            (-5.0, ptr::null_mut())
        );
        (request.sample1, request.sample2) = (second, first);
        assert_eq!(metrics(&mut request), 2, "the later sample first");
        for version in [0, 2, 0x0100_2118] {
            request.version = version;
            assert_eq!(metrics(&mut request), 25, "{version}");
        }
        let free = lib.nvmlGpmSampleFree.as_ref().unwrap();
        assert_eq!(
            (free(first), free(second), free(second)),
            (0, 0, 2),
            "freed twice"
        );
    }
}

#[test]
fn versioned_structs_are_filled_to_their_own_size() {
    let simulator = Simulator::new("h100x1");
    let nvml = simulator.nvml();
    let (lib, gpu) = (nvml.lib(), nvml.device_by_index(0).unwrap());
    // SAFETY: every struct is at least as large as the version it names.
    unsafe {
        let gpu = gpu.handle();
        let mut fabric: nvmlGpuFabricInfo_v3_t = mem::zeroed();
        let get = lib.nvmlDeviceGetGpuFabricInfoV.as_ref().unwrap();
        (fabric.version, fabric.healthSummary) = (0x0200_0024, 77);
        assert_eq!(
            (get(gpu, &mut fabric), fabric.state, fabric.healthSummary),
            (0, 3, 77),
            "version 2 ends before"
        );
        fabric.version = 0x0300_0028;
        assert_eq!((get(gpu, &mut fabric), fabric.healthSummary), (0, 1));
        fabric.version = 0x0400_0028;
        assert_eq!(get(gpu, &mut fabric), 25);

        let mut temperature = nvmlTemperature_v1_t {
            version: 0x0100_000c,
            sensorType: 0,
            temperature: -1,
        };
        assert_eq!(
            lib.nvmlDeviceGetTemperatureV.as_ref().unwrap()(gpu, &mut temperature),
            0
        );
        assert!((40..80).contains(&temperature.temperature));
        let mut sram: nvmlEccSramErrorStatus_v1_t = mem::zeroed();
        sram.version = 0x0100_0068;
        assert_eq!(
            lib.nvmlDeviceGetSramEccErrorStatus.as_ref().unwrap()(gpu, &mut sram),
            0
        );
        let mut rows: nvmlRowRemapperHistogramValues_t = mem::zeroed();
        assert_eq!(
            lib.nvmlDeviceGetRowRemapperHistogram.as_ref().unwrap()(gpu, &mut rows),
            0
        );
        assert!(rows.max > 0);
        assert_eq!(
            CStr::from_ptr(lib.nvmlErrorString.as_ref().unwrap()(15))
                .to_str()
                .unwrap(),
            "GPU is lost"
        );
    }
}

#[test]
fn freed_event_sets_are_refused() {
    let simulator = Simulator::new("h100x1");
    let nvml = simulator.nvml();
    let lib = nvml.lib();
    // SAFETY: the set is a number, not an address; using it after its end is what is tested.
    unsafe {
        let (mut set, mut data) = (ptr::null_mut(), mem::zeroed());
        assert_eq!(lib.nvmlEventSetCreate.as_ref().unwrap()(&mut set), 0);
        let wait = lib.nvmlEventSetWait_v2.as_ref().unwrap();
        assert_eq!(wait(set, &mut data, 0), 10, "returns at once");
        assert_eq!(wait(set, ptr::null_mut(), 0), 2);
        let free = lib.nvmlEventSetFree.as_ref().unwrap();
        assert_eq!((free(set), free(set), wait(set, &mut data, 0)), (0, 2, 2));
    }
}

#[test]
fn specs_are_refused_with_a_reason() {
    let simulator = Simulator::load();
    assert_eq!(simulator.configure("h100x8:burn"), 2);
    assert!(
        simulator.error().contains("use one of healthy, idle"),
        "{}",
        simulator.error()
    );
    assert_eq!(simulator.configure("b200x2"), 0);
    assert_eq!(simulator.error(), "");
    let nvml = simulator.nvml();
    assert_eq!(simulator.configure("h100x8"), 19, "in use");
    assert!(simulator.error().contains("nvmlShutdown"));
    assert_eq!(nvml.device_by_index(0).unwrap().name().unwrap(), "NVIDIA B200");
    drop(nvml);
    assert_eq!(simulator.configure("h100x8"), 0);
    assert_eq!(simulator.nvml().device_count().unwrap(), 8);
}
