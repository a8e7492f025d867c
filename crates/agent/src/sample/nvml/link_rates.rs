//! Counts the bytes over each NVLink of a GPU that has no byte counters per link. The counts come from GPM's rates, averaged over the whole
//! time since the last reading, so their sum is what was transferred. This takes one sample and one call per round. GPUs with byte counters
//! do not need it, and their counters cost nothing more.

use nvml_wrapper::error::NvmlError;

use super::counters::{MIB, first_sample};
use super::links::{Flow, Pair};
use super::queries::{GpuLost, GpuQueries, is_refusal};
use super::raw::Gpm;

/// The name of the query. It counts as unsupported if all links refuse it.
const WHAT: &str = "gpm nvlink by link";
/// `NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC`: receiving on link 0. The number after it is sending on the same link. The numbers of link 18 and
/// later ones start at [`FIRST_OF_18`].
const FIRST: u32 = 62;
const FIRST_OF_18: u32 = 212;
const LINKS_BEFORE: usize = 18;

/// The links of one GPU.
#[derive(Default)]
pub(super) struct LinkRates<'a> {
    gpm: Option<Gpm<'a>>,
    /// One entry per link; `None` if the link was never up.
    flows: Vec<Option<Flow>>,
}

impl<'a> LinkRates<'a> {
    /// Returns the bytes sent and received over each link since it was first up. Returns nothing if the GPU has no GPM.
    pub(super) fn read(
        &mut self,
        queries: &mut GpuQueries<'a>,
        up: &[bool],
    ) -> Result<impl Iterator<Item = Option<Pair>> + '_, GpuLost> {
        self.query(queries, up)?;
        Ok(self.flows.iter().map(|flow| flow.as_ref().map(Flow::total)))
    }

    fn query(&mut self, queries: &mut GpuQueries<'a>, up: &[bool]) -> Result<(), GpuLost> {
        if queries.is_refused(WHAT) {
            *self = Self::default();
            return Ok(());
        }
        let active: Vec<usize> = (0..up.len()).filter(|link| up[*link]).collect();
        // GPM does not accept an empty list.
        if active.is_empty() {
            return Ok(());
        }
        let Some(gpm) = &mut self.gpm else {
            self.gpm = first_sample(queries)?;
            if self.gpm.is_some() {
                self.flows = up.iter().map(|up| up.then(Flow::default)).collect();
            }
            return Ok(());
        };
        let ids = active.iter().flat_map(|link| ids(*link));
        // The query has its own name: its failure says nothing about the counters of the whole GPU.
        let Some(interval) = queries.query(WHAT, |_| gpm.query(ids))?.flatten() else {
            return Ok(());
        };
        let answers: Vec<Result<f64, NvmlError>> = gpm.answers().collect();
        for (link, pair) in active.iter().zip(answers.chunks(2)) {
            if let [Ok(received), Ok(sent)] = pair {
                let rates: Pair = [sent * MIB, received * MIB];
                match &mut self.flows[*link] {
                    Some(flow) => _ = flow.rated_if(Some((interval, rates))),
                    // The link is new; count from here on.
                    first => *first = Some(Flow::default()),
                }
            }
        }
        let is_refused = |answer: &Result<f64, NvmlError>| answer.as_ref().is_err_and(is_refusal);
        if answers.iter().all(is_refused) {
            queries.refuse(WHAT);
        }
        Ok(())
    }
}

/// Returns the numbers of receiving and sending on a link.
fn ids(link: usize) -> [u32; 2] {
    let (first, link) = match link.checked_sub(LINKS_BEFORE) {
        Some(later) => (FIRST_OF_18, later),
        None => (FIRST, link),
    };
    let receiving = first + 2 * link as u32;
    [receiving, receiving + 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_the_numbers_of_the_header() {
        assert_eq!([ids(0), ids(17), ids(18)], [[62, 63], [96, 97], [212, 213]]);
    }
}
