//! Reads the GPU's membership in an NVLink domain that spans nodes.

use std::fmt::Write;

use domain::series::Labels;
use domain::time::TimestampMs;

use super::queries::{GpuLost, GpuQueries};
use super::raw;
use crate::sample::Samples;
use crate::sample::series::{Family, series};

/// The membership of one GPU, if it has one.
#[derive(Default)]
pub(super) struct Fabric {
    info: Option<Labels>,
}

impl Fabric {
    /// Reads the membership. Its name may change when the fabric is set up again.
    pub(super) fn read(
        &mut self,
        queries: &mut GpuQueries<'_>,
        family: &mut Family,
        samples: &Samples,
        at_ms: TimestampMs,
    ) -> Result<(), GpuLost> {
        let Some(fabric) = queries.query("fabric", raw::fabric)? else {
            return Ok(());
        };
        let gpu = queries.index.to_string();
        let (cluster, clique) = (uuid(fabric.cluster), fabric.clique.to_string());
        let labels = [("gpu", gpu.as_str()), ("cluster", &cluster), ("clique", &clique)];
        let info = series("gpu_fabric_info", &labels);
        if let Some(before) = self.info.replace(info.clone())
            && before != info
        {
            samples.end(&before, at_ms);
        }
        samples.push(&info, at_ms, 1.0);
        let out = &mut family.at(samples, at_ms);
        out.put("gpu_fabric_state", fabric.state);
        out.put("gpu_fabric_status", fabric.status);
        if let Some(health) = fabric.health {
            out.put("gpu_fabric_health", health);
        }
        Ok(())
    }
}

/// Formats a UUID in the usual form 8-4-4-4-12.
fn uuid(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (n, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&n) {
            text.push('-');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_cluster_reads_like_a_uuid() {
        let bytes = std::array::from_fn(|n| n as u8 * 0x11);
        assert_eq!(super::uuid(bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
