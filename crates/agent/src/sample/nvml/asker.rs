//! Asks one GPU, and judges what its answers and errors say about it.

use std::collections::BTreeSet;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::meter::Meter;

/// "The struct's version is not mine" and "this call is no more": NVML codes the wrapper has no names for.
const VERSION_MISMATCH: u32 = 25;
/// See [`VERSION_MISMATCH`].
const DEPRECATED: u32 = 26;

/// The GPU does not answer any more.
pub(crate) struct GpuLost(pub(crate) NvmlError);

/// Whether it is not the GPU that is gone but the driver under it: unloaded, replaced, or shut down by somebody else in this
/// process. Every handle is worth nothing then.
pub(crate) fn is_of_driver(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch
    )
}

/// Whether this GPU, library or user will never have an answer.
pub(super) fn is_refusal(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            | NvmlError::InvalidArg
            | NvmlError::NoPermission
            | NvmlError::UnexpectedVariant(VERSION_MISMATCH | DEPRECATED)
    )
}

/// Asks one GPU; remembers what it cannot answer, so that it is asked only once.
pub(crate) struct Asker<'a> {
    pub(super) index: u32,
    pub(super) device: Device<'a>,
    meter: &'a Meter,
    refused: BTreeSet<&'static str>,
    answers: u32,
    failure: Option<NvmlError>,
}

impl<'a> Asker<'a> {
    /// Nothing asked yet.
    pub(super) fn new(index: u32, device: Device<'a>, meter: &'a Meter) -> Self {
        Self {
            index,
            device,
            meter,
            refused: BTreeSet::new(),
            answers: 0,
            failure: None,
        }
    }

    /// The answer, if this GPU has one.
    pub(crate) fn ask<T>(
        &mut self,
        what: &'static str,
        call: impl FnOnce(&Device<'a>) -> Result<T, NvmlError>,
    ) -> Result<Option<T>, GpuLost> {
        if self.refused.contains(what) {
            return Ok(None);
        }
        let answer = self.meter.call(Some(self.index), || call(&self.device));
        self.judge(what, answer)
    }

    /// Whether that need not be asked.
    pub(super) fn is_refused(&self, what: &'static str) -> bool {
        self.refused.contains(what)
    }

    /// All that need not be asked, in alphabetical order.
    pub(super) fn refused(&self) -> impl Iterator<Item = &'static str> {
        self.refused.iter().copied()
    }

    /// Never ask that again.
    pub(super) fn refuse(&mut self, what: &'static str) {
        self.refused.insert(what);
    }

    pub(super) fn judge<T>(
        &mut self,
        what: &'static str,
        answer: Result<T, NvmlError>,
    ) -> Result<Option<T>, GpuLost> {
        match answer {
            Ok(value) => {
                self.answers += 1;
                Ok(Some(value))
            }
            Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => Err(GpuLost(error)),
            Err(error) if is_of_driver(&error) => Err(GpuLost(error)),
            Err(error) if is_refusal(&error) => {
                self.refuse(what);
                Ok(None)
            }
            // Idle counters and rings have nothing to say, and that is no failure.
            Err(NvmlError::NoData | NvmlError::NotFound) => Ok(None),
            Err(error) => {
                self.failure = Some(error);
                Ok(None)
            }
        }
    }

    /// A GPU that answered nothing at all in a round is lost too: after a reset its handle may be refused everywhere, and a
    /// new one, with nothing refused, is what it takes.
    pub(super) fn end_round(&mut self) -> Result<(), GpuLost> {
        let answers = std::mem::take(&mut self.answers);
        let failure = self.failure.take();
        if answers > 0 {
            return Ok(());
        }
        Err(GpuLost(failure.unwrap_or(NvmlError::InvalidArg)))
    }
}
