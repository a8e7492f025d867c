//! Asks one GPU, and judges what its answers and errors say about it.

use std::collections::HashSet;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::meter::Meter;

/// The GPU does not answer any more.
pub(crate) struct GpuLost(pub(crate) NvmlError);

/// Asks one GPU; remembers what it cannot answer, so that it is asked only once.
pub(crate) struct Asker<'a> {
    pub(super) index: u32,
    pub(super) device: Device<'a>,
    meter: &'a Meter,
    refused: HashSet<&'static str>,
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
            refused: HashSet::new(),
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
            Err(
                NvmlError::NotSupported
                | NvmlError::FailedToLoadSymbol(_)
                | NvmlError::FunctionNotFound
                | NvmlError::InvalidArg
                | NvmlError::NoPermission,
            ) => {
                self.refuse(what);
                Ok(None)
            }
            Err(error) => {
                self.failure = Some(error);
                Ok(None)
            }
        }
    }

    /// A GPU that answered nothing at all in a round, but errors, is lost too.
    pub(super) fn end_round(&mut self) -> Result<(), GpuLost> {
        let answers = std::mem::take(&mut self.answers);
        match self.failure.take() {
            Some(error) if answers == 0 => Err(GpuLost(error)),
            _ => Ok(()),
        }
    }
}
