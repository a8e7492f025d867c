//! Sends queries to one GPU, and decides what its answers and errors mean.

use std::collections::BTreeSet;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::meter::Meter;

/// NVML error codes that the wrapper has no names for. This one: the version of the struct is not supported.
const VERSION_MISMATCH: u32 = 25;
/// The call is no longer supported. See [`VERSION_MISMATCH`].
const DEPRECATED: u32 = 26;

/// The GPU no longer answers.
pub(crate) struct GpuLost(pub(crate) NvmlError);

/// Returns true if the driver is gone, not only the GPU: it was unloaded or replaced, or other code in this process shut NVML down. All
/// handles are then invalid.
pub(crate) fn is_driver_gone(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch
    )
}

/// Returns true if the error is permanent for this GPU, library or user.
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

/// Sends queries to one GPU. It stores which queries the GPU does not support, so that each of them is sent only once.
pub(crate) struct GpuQueries<'a> {
    pub(super) index: u32,
    pub(super) device: Device<'a>,
    meter: &'a Meter,
    refused: BTreeSet<&'static str>,
    answers: u32,
    failure: Option<NvmlError>,
}

impl<'a> GpuQueries<'a> {
    /// Creates the queries of a GPU, with none sent yet.
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

    /// Returns the answer, or `None` if the GPU has no answer to this query now or does not support it.
    pub(crate) fn query<T>(
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

    /// Returns true if the GPU does not support this query.
    pub(super) fn is_refused(&self, what: &'static str) -> bool {
        self.refused.contains(what)
    }

    /// Returns all queries that the GPU does not support, in alphabetical order.
    pub(super) fn refused(&self) -> impl Iterator<Item = &'static str> {
        self.refused.iter().copied()
    }

    /// Records that the GPU does not support this query.
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
            Err(error) if is_driver_gone(&error) => Err(GpuLost(error)),
            Err(error) if is_refusal(&error) => {
                self.refuse(what);
                Ok(None)
            }
            // Idle counters and rings have no data. That is not a failure.
            Err(NvmlError::NoData | NvmlError::NotFound) => Ok(None),
            Err(error) => {
                self.failure = Some(error);
                Ok(None)
            }
        }
    }

    /// Ends a round. A GPU that answered no query in the round counts as lost: after a reset its handle may be refused everywhere. It then
    /// needs a new handle and an empty list of unsupported queries.
    pub(super) fn end_round(&mut self) -> Result<(), GpuLost> {
        let answers = std::mem::take(&mut self.answers);
        let failure = self.failure.take();
        if answers > 0 {
            return Ok(());
        }
        Err(GpuLost(failure.unwrap_or(NvmlError::InvalidArg)))
    }
}
