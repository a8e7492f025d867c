//! The library itself: start, end, versions, error texts, and the configuration of the simulator.

use std::ffi::c_char;

use super::exports;
use super::pointer::{Out, TextIn, TextOut};
use super::session;
use super::structs::ConfComputeState;
use crate::engine::gpu::Gpu;
use crate::engine::status::{Status, describe};

exports! {
    fn nvmlInit_v2() {
        session::init()
    }

    /// The flags only allow a machine without GPUs, or an initialisation that does not attach to them.
    fn nvmlInitWithFlags(_flags: u32) {
        session::init()
    }

    fn nvmlShutdown() {
        session::shutdown()
    }

    fn nvmlSystemGetDriverVersion(version: TextOut, length: u32) {
        let machine = session::machine()?;
        version.put_text(length, &machine.node.driver.at(machine.now()).to_string())
    }

    fn nvmlSystemGetNVMLVersion(version: TextOut, length: u32) {
        let machine = session::machine()?;
        version.put_text(length, &machine.node.driver.at(machine.now()).nvml_version())
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) {
        let machine = session::machine()?;
        version.put(machine.node.driver.at(machine.now()).cuda_version())
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) {
        let machine = session::machine()?;
        version.put(machine.node.driver.at(machine.now()).cuda_version())
    }

    fn nvmlSystemGetProcessName(pid: u32, name: TextOut, length: u32) {
        let machine = session::machine()?;
        let t = machine.now();
        let found = machine.node.gpus.iter().find_map(|gpu| gpu.process_name(pid, t));
        name.put_text(length, found.ok_or(Status::NotFound)?)
    }

    /// Hopper and newer GPUs support confidential computing, but it is off here. Older ones do not support it.
    fn nvmlSystemGetConfComputeState(state: Out<ConfComputeState>) {
        let machine = session::machine()?;
        let is_capable = |gpu: &Gpu| gpu.profile.has_confidential_computing();
        if !machine.node.gpus.iter().any(is_capable) {
            return Err(Status::NotSupported);
        }
        state.put(ConfComputeState { environment: 0, feature: 0, developer_tools: 0 })
    }

    /// Configures what to simulate, before `nvmlInit`: `int lockstep_sim_configure(const char *spec)`.
    ///
    /// Returns 0 on success; 2 if the specification is not valid (`lockstep_sim_error` then returns the reason); 19 while NVML is
    /// initialised. A program recognises the simulator by this symbol.
    fn lockstep_sim_configure(spec: TextIn) {
        session::configure(&spec.get()?)
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    describe(code).as_ptr()
}

/// Returns why the last specification was refused: `const char *lockstep_sim_error(void)`. Never null; empty if it was not refused. The
/// text is valid until the next `lockstep_sim_configure` or `nvmlInit`.
#[unsafe(no_mangle)]
extern "C" fn lockstep_sim_error() -> *const c_char {
    session::error()
}
