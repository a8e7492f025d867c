//! Multi-instance GPUs: how a GPU can be partitioned, and its current partition.
//!
//! ```text
//!  memory slices   0   1   2   3   4   5   6   7        compute slices: seven
//!                 └──── 3g: id 1 ┘└─── 3g: id 2 ─┘       a half
//!                 └ 2g: 3 ┘└─ 4 ─┘└─ 5 ──┘               a quarter
//!                 └ 7 ┘└ 8┘└ 9 ┘ …       └13 ┘           an eighth of the memory, a seventh of the rest
//! ```
//!
//! Sizes and counts are those of NVIDIA's MIG guide and of `nvidia-smi mig -lgip`. The multiprocessors and memory of B200's instances are
//! computed from the guide's fractions.

use super::noise::Noise;

/// A kind of instance and its resources.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The usual name: `1g.10gb`.
    pub name: &'static str,
    /// Compute slices, of seven.
    pub compute: u32,
    /// Memory slices, of eight.
    pub eighths: u32,
    pub memory_mib: u64,
    pub multiprocessors: u32,
    pub copy_engines: u32,
    pub decoders: u32,
    pub jpegs: u32,
    pub optical_flows: u32,
    /// How many instances of this kind fit on an otherwise empty GPU.
    pub instances_max: u32,
}

const COMPUTE_SLICES: u32 = 7;
const MEMORY_SLICES: u32 = 8;
/// The share of an instance's memory that its process uses: the minimum, and the range above it.
const USED_MIN: f64 = 0.5;
const USED_SPAN: f64 = 0.4;
const LOAD_MIN: f64 = 0.6;

const CHANNEL_UUID: u64 = 0x300;
const CHANNEL_USED: u64 = 0x340;
const CHANNEL_LOAD: u64 = 0x350;

/// An existing instance: a GPU instance with one compute instance that fills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instance {
    pub slice: &'static Slice,
    /// The id of the GPU instance. The id of the compute instance is 0.
    pub id: u32,
    /// The first memory slice.
    start: u32,
}

/// The instances of a GPU, in the order of their ids. Their indices are their positions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Layout(pub Vec<Instance>);

impl Layout {
    /// Parses `3g.40gb+2g.20gb+1g.10gb`, or `none` for a GPU in MIG mode without instances. Returns `None` if an instance is unknown or
    /// does not fit.
    pub(crate) fn parse(text: &str, slices: &'static [Slice]) -> Option<Layout> {
        let mut layout = Layout::default();
        if text == "none" {
            return Some(layout);
        }
        let named = |name| slices.iter().find(|slice| slice.name == name);
        let mut chosen: Vec<&Slice> = text.split('+').map(named).collect::<Option<_>>()?;
        // Place the instances with the fewest possible places first.
        chosen.sort_by_key(|slice| slice.instances_max);
        for slice in chosen {
            layout.place(slice)?;
        }
        layout.0.sort_by_key(|instance| instance.id);
        Some(layout)
    }

    /// Returns a layout with as many instances of a kind as fit.
    pub(crate) fn filled_with(slice: &'static Slice) -> Layout {
        let mut layout = Layout::default();
        while layout.place(slice).is_some() {}
        layout
    }

    /// Adds an instance at the first place where it fits.
    fn place(&mut self, slice: &'static Slice) -> Option<()> {
        let compute: u32 = self.0.iter().map(|instance| instance.slice.compute).sum();
        if compute + slice.compute > COMPUTE_SLICES {
            return None;
        }
        let places = (0..slice.instances_max).map(|place| place * slice.eighths);
        let start = places
            .into_iter()
            .find(|start| self.is_free(*start, slice.eighths))?;
        let id = MEMORY_SLICES / slice.eighths - 1 + start / slice.eighths;
        self.0.push(Instance { slice, id, start });
        Some(())
    }

    fn is_free(&self, start: u32, eighths: u32) -> bool {
        let apart =
            |other: &Instance| start >= other.start + other.slice.eighths || other.start >= start + eighths;
        start + eighths <= MEMORY_SLICES && self.0.iter().all(apart)
    }
}

impl Instance {
    /// Returns `MIG-` and 32 hexadecimal digits.
    pub(crate) fn uuid(&self, noise: Noise) -> String {
        let high = noise.bits(CHANNEL_UUID + 2 * u64::from(self.id));
        let low = noise.bits(CHANNEL_UUID + 2 * u64::from(self.id) + 1);
        super::identity::uuid("MIG", high, low)
    }

    /// Returns the bytes that the instance's process uses while it runs.
    pub(crate) fn used_bytes(&self, noise: Noise) -> u64 {
        let share = USED_MIN + USED_SPAN * noise.unit(CHANNEL_USED + u64::from(self.id));
        // Allocations are in pages of 2 MiB.
        (self.slice.memory_mib as f64 * share / 2.0) as u64 * (2 << 20)
    }
}

/// Returns the load of the process in an instance, as a share of the load of a whole GPU's process. Each instance has a different one.
pub(crate) fn load(noise: Noise, instance: u32) -> f64 {
    LOAD_MIN + (1.0 - LOAD_MIN) * noise.unit(CHANNEL_LOAD + u64::from(instance))
}

/// Describes the allowed values of `instances=`.
pub(crate) fn expectation(slices: &[Slice]) -> String {
    let names: Vec<&str> = slices.iter().map(|slice| slice.name).collect();
    format!(
        "instances that fit together, such as {0}+{0}, of {1}; or none",
        names.first().unwrap_or(&""),
        names.join(", ")
    )
}

// === The kinds of instances of each model, smallest first ===

/// The columns are as in the guide: compute and memory slices, MiB, SMs, copy engines, decoders, JPEG, optical flow, instances.
const fn slice(
    name: &'static str,
    of: [u32; 2],
    memory_mib: u64,
    engines: [u32; 5],
    instances_max: u32,
) -> Slice {
    Slice {
        name,
        compute: of[0],
        eighths: of[1],
        memory_mib,
        multiprocessors: engines[0],
        copy_engines: engines[1],
        decoders: engines[2],
        jpegs: engines[3],
        optical_flows: engines[4],
        instances_max,
    }
}

pub(crate) static A100_80GB: [Slice; 6] = [
    slice("1g.10gb", [1, 1], 9_728, [14, 1, 0, 0, 0], 7),
    slice("1g.20gb", [1, 2], 19_968, [14, 1, 1, 0, 0], 4),
    slice("2g.20gb", [2, 2], 19_968, [28, 2, 1, 0, 0], 3),
    slice("3g.40gb", [3, 4], 40_192, [42, 3, 2, 0, 0], 2),
    slice("4g.40gb", [4, 4], 40_192, [56, 4, 2, 0, 0], 1),
    slice("7g.80gb", [7, 8], 80_896, [98, 7, 5, 1, 1], 1),
];

pub(crate) static H100_80GB: [Slice; 6] = [
    slice("1g.10gb", [1, 1], 9_984, [16, 1, 1, 1, 0], 7),
    slice("1g.20gb", [1, 2], 20_096, [26, 1, 1, 1, 0], 4),
    slice("2g.20gb", [2, 2], 20_096, [32, 2, 2, 2, 0], 3),
    slice("3g.40gb", [3, 4], 40_448, [60, 3, 3, 3, 0], 2),
    slice("4g.40gb", [4, 4], 40_448, [64, 4, 4, 4, 0], 1),
    slice("7g.80gb", [7, 8], 81_152, [132, 8, 7, 7, 1], 1),
];

pub(crate) static H200: [Slice; 6] = [
    slice("1g.18gb", [1, 1], 16_384, [16, 1, 1, 1, 0], 7),
    slice("1g.35gb", [1, 2], 33_280, [26, 1, 1, 1, 0], 4),
    slice("2g.35gb", [2, 2], 33_280, [32, 2, 2, 2, 0], 3),
    slice("3g.71gb", [3, 4], 71_424, [60, 3, 3, 3, 0], 2),
    slice("4g.71gb", [4, 4], 71_424, [64, 4, 4, 4, 0], 1),
    slice("7g.141gb", [7, 8], 143_360, [132, 8, 7, 7, 1], 1),
];

pub(crate) static B200: [Slice; 6] = [
    slice("1g.23gb", [1, 1], 22_784, [18, 2, 1, 1, 0], 7),
    slice("1g.45gb", [1, 2], 45_632, [18, 2, 1, 1, 0], 4),
    slice("2g.45gb", [2, 2], 45_632, [36, 3, 1, 1, 0], 3),
    slice("3g.90gb", [3, 4], 91_264, [64, 6, 1, 1, 0], 2),
    slice("4g.90gb", [4, 4], 91_264, [72, 8, 1, 1, 0], 1),
    slice("7g.180gb", [7, 8], 182_528, [148, 16, 1, 1, 1], 1),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn ids(text: &str) -> Option<Vec<u32>> {
        let layout = Layout::parse(text, &H100_80GB)?;
        Some(layout.0.iter().map(|instance| instance.id).collect())
    }

    #[test]
    fn instances_take_the_places_they_have_in_life() {
        for (text, expected) in [
            ("none", Some(vec![])),
            ("7g.80gb", Some(vec![0])),
            ("3g.40gb+3g.40gb", Some(vec![1, 2])),
            ("4g.40gb+3g.40gb", Some(vec![1, 2])),
            ("1g.10gb+3g.40gb+4g.40gb", None),
            ("1g.20gb+3g.40gb+1g.10gb", Some(vec![1, 5, 13])),
            ("3g.40gb+4g.40gb", Some(vec![1, 2])),
            ("2g.20gb+2g.20gb+2g.20gb+1g.10gb", Some(vec![3, 4, 5, 13])),
            ("3g.40gb+2g.20gb+1g.10gb", Some(vec![1, 5, 13])),
            ("1g.20gb+1g.20gb+1g.20gb+1g.20gb", Some(vec![3, 4, 5, 6])),
            ("7g.80gb+1g.10gb", None),
            ("4g.40gb+4g.40gb", None),
            ("2g.20gb+2g.20gb+2g.20gb+2g.20gb", None),
            ("3g.40gb+", None),
            ("1g.5gb", None),
        ] {
            assert_eq!(ids(text), expected, "{text}");
        }
    }

    #[test]
    fn every_table_is_sane() {
        for table in [&A100_80GB, &H100_80GB, &H200, &B200] {
            let whole = &table[5];
            for slice in table {
                let filled = Layout::filled_with(slice);
                assert_eq!(filled.0.len() as u32, slice.instances_max, "{}", slice.name);
                let all = slice.memory_mib * u64::from(slice.instances_max);
                assert!(all <= whole.memory_mib + 512, "{}: {all} MiB", slice.name);
                assert!(
                    slice.multiprocessors * slice.instances_max <= whole.multiprocessors,
                    "{}",
                    slice.name
                );
                assert!(
                    slice.name.starts_with(&format!("{}g.", slice.compute)),
                    "{}",
                    slice.name
                );
            }
        }
    }

    #[test]
    fn instances_differ_in_name_and_fill_part_of_their_memory() {
        let noise = Noise::new(0, 0, 0);
        let layout = Layout::filled_with(&H100_80GB[0]);
        let uuids: std::collections::HashSet<String> = layout.0.iter().map(|one| one.uuid(noise)).collect();
        assert_eq!(uuids.len(), 7);
        for instance in &layout.0 {
            let share = instance.used_bytes(noise) as f64 / (instance.slice.memory_mib << 20) as f64;
            assert!((0.49..0.91).contains(&share), "{share}");
        }
    }
}
