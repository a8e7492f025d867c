//! Names and addresses of simulated nodes.

/// Addresses of one subnet: 10.0.N.1 to 10.0.N.250.
const ADDRESSES_A_SUBNET: usize = 250;

/// Returns the name of the node with this index, from 0, in a cluster of `nodes`. All names of a cluster have the same length, at
/// least two digits, so that they sort by index.
#[must_use]
pub fn node_name(prefix: &str, index: u32, nodes: u32) -> String {
    let digits = nodes.saturating_sub(1).checked_ilog10().unwrap_or(0) as usize + 1;
    format!("{prefix}-{index:0width$}", width = digits.max(2))
}

/// Returns the address of the node with this index.
pub(crate) fn address(index: usize) -> String {
    let (subnet, host) = (index / ADDRESSES_A_SUBNET, index % ADDRESSES_A_SUBNET + 1);
    format!("10.0.{subnet}.{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_cluster_sort_by_index() {
        for (index, nodes, expected) in [
            (0, 1, "sim-00"),
            (7, 8, "sim-07"),
            (99, 100, "sim-99"),
            (7, 101, "sim-007"),
            (999, 1_000, "sim-999"),
        ] {
            assert_eq!(node_name("sim", index, nodes), expected);
        }
    }

    #[test]
    fn addresses_are_valid_in_large_clusters() {
        for (index, expected) in [
            (0, "10.0.0.1"),
            (249, "10.0.0.250"),
            (250, "10.0.1.1"),
            (999, "10.0.3.250"),
        ] {
            assert_eq!(address(index), expected);
        }
    }
}
