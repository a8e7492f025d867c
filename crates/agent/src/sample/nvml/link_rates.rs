//! Bytes over each NVLink of a GPU whose counters have no answer for single links: GPM's rates, averaged over the whole time since the last
//! look, so that their sum is what went over. One sample and one call a round, and none at all where counters answer, which cost nothing more.

use nvml_wrapper::error::NvmlError;

use super::asker::{Asker, GpuLost, is_refusal};
use super::counters::{MIB, first_sample};
use super::links::{Flow, Pair};
use super::raw::Gpm;

/// What is asked, and where it is refused by all links.
const WHAT: &str = "gpm nvlink by link";
/// `NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC`; sending is behind each link's receiving. From link 18 on they go on elsewhere.
const FIRST: u32 = 62;
const FIRST_OF_18: u32 = 212;
const LINKS_BEFORE: usize = 18;

/// The links of one GPU.
#[derive(Default)]
pub(super) struct LinkRates<'a> {
    gpm: Option<Gpm<'a>>,
    /// Of links that are up, or were.
    flows: Vec<Option<Flow>>,
}

impl<'a> LinkRates<'a> {
    /// Bytes sent and received over each link since it was first seen up; nothing without GPM.
    pub(super) fn read(
        &mut self,
        asker: &mut Asker<'a>,
        up: &[bool],
    ) -> Result<impl Iterator<Item = Option<Pair>> + '_, GpuLost> {
        self.ask(asker, up)?;
        Ok(self.flows.iter().map(|flow| flow.as_ref().map(Flow::total)))
    }

    fn ask(&mut self, asker: &mut Asker<'a>, up: &[bool]) -> Result<(), GpuLost> {
        if asker.is_refused(WHAT) {
            *self = Self::default();
            return Ok(());
        }
        let active: Vec<usize> = (0..up.len()).filter(|link| up[*link]).collect();
        // GPM takes no empty question.
        if active.is_empty() {
            return Ok(());
        }
        let Some(gpm) = &mut self.gpm else {
            self.gpm = first_sample(asker)?;
            if self.gpm.is_some() {
                self.flows = up.iter().map(|up| up.then(Flow::default)).collect();
            }
            return Ok(());
        };
        let ids = active.iter().flat_map(|link| ids(*link));
        // By a name of its own: what becomes of it says nothing of the counters of the whole GPU.
        let Some(interval) = asker.ask(WHAT, |_| gpm.ask(ids))?.flatten() else {
            return Ok(());
        };
        let answers: Vec<Result<f64, NvmlError>> = gpm.answers().collect();
        for (link, pair) in active.iter().zip(answers.chunks(2)) {
            if let [Ok(received), Ok(sent)] = pair {
                let rates: Pair = [sent * MIB, received * MIB];
                match &mut self.flows[*link] {
                    Some(flow) => _ = flow.rated_if(Some((interval, rates))),
                    // From here on.
                    first => *first = Some(Flow::default()),
                }
            }
        }
        let is_refused = |answer: &Result<f64, NvmlError>| answer.as_ref().is_err_and(is_refusal);
        if answers.iter().all(is_refused) {
            asker.refuse(WHAT);
        }
        Ok(())
    }
}

/// Receiving and sending of a link.
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
