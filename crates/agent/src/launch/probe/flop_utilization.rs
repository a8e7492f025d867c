//! Model FLOPs utilization: the share of its GPU's peak that a rank's training uses, estimated as 6 operations per parameter and token.
//!
//! ```text
//! 6 × parameters × tokens per second ÷ peak      2 in the forward pass and 4 in the backward pass; a multiply-add counts as two
//! ```
//! Recomputation and attention are not counted. In a mixture of experts, all experts are counted. The peak is the dense 16-bit peak of the
//! product, whatever number format the run uses, so that runs are comparable. If product, parameters or tokens are unknown, there is no
//! value.

const OPERATIONS: f64 = 6.0;
const TERA: f64 = 1e12;

/// Words of a product's name in NVML, and its dense 16-bit peak in TFLOP/s. The first entry whose words are all in the name applies.
const PEAKS: [(&[&str], f64); 21] = [
    (&["GB200"], 2_500.0),
    (&["B200"], 2_250.0),
    (&["B100"], 1_750.0),
    (&["GH200"], 989.4),
    (&["H200", "NVL"], 835.5),
    (&["H200"], 989.4),
    (&["H100", "NVL"], 835.5),
    (&["H100", "PCIe"], 756.5),
    (&["H100", "HBM3"], 989.4),
    (&["H20"], 148.0),
    (&["A100"], 311.9),
    (&["A800"], 311.9),
    (&["A30"], 165.0),
    (&["A10"], 125.0),
    (&["A40"], 149.7),
    (&["L40S"], 362.0),
    (&["L4"], 121.0),
    (&["V100", "SXM2"], 125.0),
    (&["V100", "SXM3"], 125.0),
    (&["V100", "PCIE"], 112.0),
    (&["T4"], 65.0),
];

/// The operations that a rank needs and the peak that it has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FlopUtilization {
    operations_per_token: f64,
    peak_per_second: f64,
}

impl FlopUtilization {
    /// Returns the estimator for a rank that trains this many parameters on this product.
    pub(super) fn new(parameters: f64, product: &str) -> Option<Self> {
        let words: Vec<&str> = product.split([' ', '-']).collect();
        if words.contains(&"MIG") {
            return None; // a part of a GPU
        }
        let (_, peak) = PEAKS
            .iter()
            .find(|(needed, _)| needed.iter().all(|word| words.contains(word)))?;
        (parameters > 0.0).then_some(Self {
            operations_per_token: OPERATIONS * parameters,
            peak_per_second: peak * TERA,
        })
    }

    /// Returns the utilization at this speed. A value above the peak is impossible: then not every token uses all parameters, and the
    /// result is `None`.
    pub(super) fn ratio(&self, tokens_per_second: f64) -> Option<f64> {
        let ratio = self.operations_per_token * tokens_per_second / self.peak_per_second;
        Some(ratio).filter(|ratio| (0.0..=1.0).contains(ratio))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_known_by_whole_words() {
        let peak = |product| FlopUtilization::new(1e9, product).map(|of| of.peak_per_second / TERA);
        assert_eq!(peak("NVIDIA H100 80GB HBM3"), Some(989.4));
        assert_eq!(peak("NVIDIA H100 PCIe"), Some(756.5));
        assert_eq!(peak("NVIDIA A100-SXM4-80GB"), Some(311.9));
        assert_eq!(peak("Tesla V100-PCIE-16GB"), Some(112.0));
        assert_eq!(peak("NVIDIA L40S"), Some(362.0));
        assert_eq!(peak("NVIDIA A1000 Laptop GPU"), None);
        assert_eq!(peak("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), None);
        assert_eq!(FlopUtilization::new(0.0, "NVIDIA H100 PCIe"), None);
    }

    #[test]
    fn seven_billion_parameters_at_ten_thousand_tokens_per_second() {
        let of = FlopUtilization::new(7e9, "NVIDIA H100 80GB HBM3").expect("a known product");
        let ratio = of.ratio(10_000.0).expect("below the peak");
        assert!((ratio - 0.424_499).abs() < 1e-5, "{ratio}");
        assert_eq!(of.ratio(30_000.0), None);
    }
}
