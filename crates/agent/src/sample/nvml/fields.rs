//! The numbered fields of each tier: their numbers, their meaning, and the series they become.
//!
//! All fields of a tier are read with one call. A field that a GPU does not support is removed from the call.
//!
//! The numbers are those of NVML 12. From driver 580.82 on, NVIDIA has renumbered 251 to 273.

use super::queries::{GpuLost, GpuQueries};
use super::raw::{ALL_LINKS, FieldBatch};
use crate::sample::series::Writer;

/// A field and where its value is written.
pub(super) struct Field {
    /// The name of the query if a GPU does not support it.
    pub(super) name: &'static str,
    id: u32,
    scope: u32,
    target: Target,
}

/// Where a value is written.
#[derive(Clone, Copy)]
enum Target {
    /// Written to a series, multiplied by a factor that converts it to base units.
    To(&'static str, f64),
    /// Written to a series with one more label, multiplied by a factor.
    By(&'static str, (&'static str, &'static str), f64),
    /// Written to a series with one more label, as 0 or 1.
    Flag(&'static str, (&'static str, &'static str)),
    /// Returned to the caller.
    Back,
}

const fn field(name: &'static str, id: u32, scope: u32, target: Target) -> Field {
    Field {
        name,
        id,
        scope,
        target,
    }
}

const fn to(name: &'static str, id: u32, metric: &'static str, factor: f64) -> Field {
    field(name, id, 0, Target::To(metric, factor))
}

const fn back(name: &'static str, id: u32, scope: u32) -> Field {
    field(name, id, scope, Target::Back)
}

/// An error count of NVLink, summed over the links.
const fn of_links(name: &'static str, id: u32, kind: &'static str) -> Field {
    let target = Target::By("gpu_nvlink_errors_total", ("type", kind), 1.0);
    field(name, id, ALL_LINKS, target)
}

/// Read every second.
pub(super) const CORE: [Field; 6] = [
    to("energy", 83, "gpu_energy_joules_total", 1e-3),
    to(POWER_FIELD, 185, "gpu_power_watts", 1e-3),
    back("nvlink tx", 138, ALL_LINKS),
    back("nvlink rx", 139, ALL_LINKS),
    back("pcie tx", 197, 0),
    back("pcie rx", 198, 0),
];
/// The positions in [`CORE`] of the values that are returned.
pub(super) const NVLINK_BYTES: usize = 2;
pub(super) const PCIE_BYTES: usize = 4;
/// The driver's average over one second. GPUs before Ampere only have the call.
pub(super) const POWER_FIELD: &str = "power field";
/// Fields that can also be read with a call. See [`super::health`].
pub(super) const POWER_LIMIT_FIELD: &str = "power limit field";
pub(super) const ECC_FIELD: &str = "ecc field";
pub(super) const ROWS_FIELD: &str = "remapped rows field";
pub(super) const REPLAYS_FIELD: &str = "pcie replays field";

const ECC: &str = "gpu_ecc_errors_total";
const ECC_LIFETIME: &str = "gpu_ecc_lifetime_errors_total";
const ROWS: &str = "gpu_remapped_rows";
const PAGES: &str = "gpu_retired_pages";
const PCIE: &str = "gpu_pcie_errors_total";

/// Read every ten seconds: the health of the GPU and its links.
pub(super) const SLOW: [Field; 44] = [
    to("memory temperature", 82, "gpu_memory_temperature_celsius", 1.0),
    to(POWER_LIMIT_FIELD, 190, "gpu_power_limit_watts", 1e-3),
    to("recovery action", 230, "gpu_recovery_action", 1.0),
    by_type(ECC_FIELD, 3, ECC, "corrected"),
    by_type("ecc field uncorrected", 4, ECC, "uncorrected"),
    by_type("ecc lifetime corrected", 5, ECC_LIFETIME, "corrected"),
    by_type("ecc lifetime uncorrected", 6, ECC_LIFETIME, "uncorrected"),
    by_type(ROWS_FIELD, 142, ROWS, "corrected"),
    by_type("remapped rows field uncorrected", 143, ROWS, "uncorrected"),
    flag("remapped rows field pending", 144, ROWS, "pending"),
    flag("remapped rows field failed", 145, ROWS, "failed"),
    by_type("retired pages corrected", 29, PAGES, "corrected"),
    by_type("retired pages uncorrected", 30, PAGES, "uncorrected"),
    flag("retired pages pending", 31, PAGES, "pending"),
    to(REPLAYS_FIELD, 94, "gpu_pcie_replays_total", 1.0),
    by_type("pcie recovery", 169, PCIE, "recovery"),
    by_type("pcie correctable", 173, PCIE, "correctable"),
    by_type("pcie naks received", 174, PCIE, "nak_received"),
    by_type("pcie receiver", 175, PCIE, "receiver"),
    by_type("pcie bad tlp", 176, PCIE, "bad_tlp"),
    by_type("pcie naks sent", 177, PCIE, "nak_sent"),
    by_type("pcie bad dllp", 178, PCIE, "bad_dllp"),
    by_type("pcie non-fatal", 179, PCIE, "non_fatal"),
    by_type("pcie fatal", 180, PCIE, "fatal"),
    by_type("pcie unsupported request", 181, PCIE, "unsupported_request"),
    by_type("pcie lcrc", 182, PCIE, "lcrc"),
    by_type("pcie lane", 183, PCIE, "lane"),
    throttled("throttle time power", 74, "sw_power_cap"),
    throttled("throttle time sync boost", 76, "sync_boost"),
    throttled("throttle time board limit", 77, "board_limit"),
    throttled("throttle time reliability", 79, "reliability"),
    throttled("throttle time sw thermal", 251, "sw_thermal_slowdown"),
    throttled("throttle time hw thermal", 252, "hw_thermal_slowdown"),
    throttled("throttle time power brake", 253, "hw_power_brake"),
    // Up to NVLink 4.
    zero_scope(of_links("nvlink crc flit", 38, "crc_flit")),
    zero_scope(of_links("nvlink crc data", 45, "crc_data")),
    zero_scope(of_links("nvlink replay", 52, "replay")),
    zero_scope(of_links("nvlink recovery", 59, "recovery")),
    zero_scope(of_links("nvlink ecc data", 160, "ecc_data")),
    // From NVLink 5 on.
    of_links("nvlink receive", 208, "receive"),
    of_links("nvlink recovered", 213, "recovery_successful"),
    of_links("nvlink recovery failed", 214, "recovery_failed"),
    of_links("nvlink effective", 219, "effective"),
    of_links("nvlink symbol", 221, "symbol"),
];

/// Read every minute: settings.
pub(super) const RARE: [Field; 3] = [
    to("power limit min", 187, "gpu_power_limit_min_watts", 1e-3),
    to("power limit max", 188, "gpu_power_limit_max_watts", 1e-3),
    to("power limit default", 189, "gpu_power_limit_default_watts", 1e-3),
];

/// The totals of NVLink 4 and older have their own field numbers instead of a scope.
const fn zero_scope(field: Field) -> Field {
    Field { scope: 0, ..field }
}

const fn by_type(name: &'static str, id: u32, metric: &'static str, value: &'static str) -> Field {
    field(name, id, 0, Target::By(metric, ("type", value), 1.0))
}

const fn flag(name: &'static str, id: u32, metric: &'static str, value: &'static str) -> Field {
    field(name, id, 0, Target::Flag(metric, ("type", value)))
}

/// The time for which the clocks were reduced for a reason, in nanoseconds.
const fn throttled(name: &'static str, id: u32, reason: &'static str) -> Field {
    let target = Target::By("gpu_throttle_seconds_total", ("reason", reason), 1e-9);
    field(name, id, 0, target)
}

// === Reading ===

/// How a driver numbers the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    V12,
    /// From driver 580.82 on.
    V13,
}

impl Numbering {
    /// Returns the numbering of a driver with this version, such as `580.95.05`. An unreadable version counts as old.
    pub(super) fn of_driver(version: &str) -> Self {
        let mut parts = version.split('.').map(str::parse::<u32>);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (580, 82) => Self::V13,
            _ => Self::V12,
        }
    }

    /// Converts a field number of NVML 12 to this numbering.
    pub(super) fn translate(self, id: u32) -> u32 {
        match (self, id) {
            (Self::V13, 251..=255) => id + 18,
            (Self::V13, 256..=273) => id - 5,
            _ => id,
        }
    }
}

/// The fields of one tier that one GPU supports.
pub(super) struct Tier<const N: usize> {
    fields: &'static [Field; N],
    /// The indexes of the fields in the batch, in its order.
    supported: Vec<usize>,
    batch: FieldBatch,
    name: &'static str,
}

impl<const N: usize> Tier<N> {
    /// Creates a tier with all its fields. `name` is the name of the query.
    pub(super) fn new(name: &'static str, fields: &'static [Field; N], numbering: Numbering) -> Self {
        let wanted = fields
            .iter()
            .map(|field| (numbering.translate(field.id), field.scope));
        Self {
            fields,
            supported: (0..N).collect(),
            batch: FieldBatch::new(wanted),
            name,
        }
    }

    /// Reads the fields that this GPU supports, writes those that have a series, and returns all values by their index in the table.
    pub(super) fn read(
        &mut self,
        queries: &mut GpuQueries<'_>,
        out: &mut Writer<'_>,
    ) -> Result<[Option<f64>; N], GpuLost> {
        let mut given = [None; N];
        if self.supported.is_empty() || queries.query(self.name, |gpu| self.batch.query(gpu))?.is_none() {
            return Ok(given);
        }
        for (&n, answer) in self.supported.iter().zip(self.batch.answers()) {
            let field = &self.fields[n];
            if let Some(value) = queries.judge(field.name, answer)? {
                field.target.put(value, out);
                given[n] = Some(value);
            }
        }
        self.remove_refused(queries);
        Ok(given)
    }

    /// Removes from the batch the fields that the GPU does not support, also if other code found that.
    fn remove_refused(&mut self, queries: &GpuQueries<'_>) {
        let (fields, supported) = (self.fields, &self.supported);
        let has = |n: &usize| !queries.is_refused(fields[*n].name);
        if supported.iter().all(has) {
            return;
        }
        self.batch.retain(|position| has(&supported[position]));
        self.supported.retain(has);
    }
}

impl Target {
    fn put(self, value: f64, out: &mut Writer<'_>) {
        match self {
            Self::To(metric, factor) => out.put(metric, value * factor),
            Self::By(metric, label, factor) => out.put_by(metric, label, value * factor),
            Self::Flag(metric, label) => out.put_by(metric, label, value != 0.0),
            Self::Back => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_driver() {
        for (driver, id, expected) in [
            ("570.172.08", 251, 251),
            ("580.65.06", 253, 253),
            ("580.82.07", 251, 269),
            ("580.95.05", 255, 273),
            ("595.45.04", 256, 251),
            ("595.45.04", 273, 268),
            ("595.45.04", 230, 230),
            ("garbage", 251, 251),
        ] {
            assert_eq!(
                Numbering::of_driver(driver).translate(id),
                expected,
                "{driver} {id}"
            );
        }
    }

    /// Compares `docs/nvml-fields.md` with these tables. `cargo xtask generate` writes it.
    #[test]
    fn the_page_on_fields_is_made_from_the_tables() {
        let mut page = "# Numbered fields of NVML\n\nWritten by `cargo xtask generate` from the tables in \
            [fields.rs](../crates/agent/src/sample/nvml/fields.rs): what one `nvmlDeviceGetFieldValues` call per tier asks of each GPU, and what becomes of \
            it. Numbers are NVML 12's. What is asked in other ways is in [signals.md](signals.md).\n\n\
            | field | tier | name | series |\n|---:|---|---|---|\n"
            .to_owned();
        for (tier, fields) in [("1 s", &CORE[..]), ("10 s", &SLOW), ("60 s", &RARE)] {
            for Field { id, name, target, .. } in fields {
                let series = match target {
                    Target::To(metric, _) => format!("`{metric}`"),
                    Target::By(metric, (label, value), _) | Target::Flag(metric, (label, value)) => {
                        format!("`{metric}`, {label} {value}")
                    }
                    Target::Back => "bytes of the link".to_owned(),
                };
                page += &format!("| {id} | {tier} | {name} | {series} |\n");
            }
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nvml-fields.md");
        if std::env::var_os("LOCKSTEP_GENERATE").is_some() {
            std::fs::write(file, &page).expect("the page can be written");
        }
        let kept = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            kept == page,
            "docs/nvml-fields.md is not what the tables say: run `cargo xtask generate`"
        );
    }

    #[test]
    fn fields_have_names_of_their_own_and_metrics_of_the_catalogue() {
        let mut names = std::collections::BTreeSet::new();
        for field in CORE.iter().chain(&SLOW).chain(&RARE) {
            assert!(names.insert(field.name), "{} twice", field.name);
            let (metric, label) = match field.target {
                Target::To(metric, _) => (metric, None),
                Target::By(metric, label, _) | Target::Flag(metric, label) => (metric, Some(label.0)),
                Target::Back => continue,
            };
            let found = domain::metric::find(metric).unwrap_or_else(|| panic!("no metric {metric}"));
            let labels: Vec<_> = std::iter::once("gpu").chain(label).collect();
            assert_eq!(found.labels, labels, "{metric}");
        }
        assert_eq!((CORE[NVLINK_BYTES].id, CORE[PCIE_BYTES].id), (138, 197));
    }
}
