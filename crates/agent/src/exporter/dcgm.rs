//! The default metrics of dcgm-exporter, computed from the agent's own values and written byte for byte as dcgm-exporter 4.5 writes them:
//! names, HELP texts, order of fields and labels, units, digits. Dashboards made for it (Grafana 12239) work unchanged, without DCGM.
//!
//! ```text
//! NAME{gpu="0",UUID="GPU-…",pci_bus_id="…",device="nvidia0",modelName="…",hostname="…",DCGM_FI_DRIVER_VERSION="…"} value
//! ```
//! Families are in the order of DCGM's field numbers. Whole numbers are truncated, not rounded; ratios and watts have six digits. A value
//! that was not read is left out, as DCGM leaves out its blank values. Sources: `etc/default-counters.csv` and `rendermetrics` of
//! NVIDIA/dcgm-exporter, and for units `DcgmCacheManager.cpp` of NVIDIA/DCGM.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use domain::ident::NodeName;
use domain::metric::Kind;
use domain::time::TimestampMs;

use super::text::Writer;
use crate::sample::sink::Sample;

/// The name of the label with the host name. dcgm-exporter changed it in May 2026.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostLabel {
    /// `hostname`, the name that dcgm-exporter uses now.
    Lower,
    /// `Hostname`, the name before 4.8.3, which most dashboards still use.
    Upper,
}

/// One metric of dcgm-exporter.
struct Field {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    value: fn(&Gpu<'_>) -> Option<Value>,
}

/// DCGM's two kinds of numbers.
enum Value {
    Whole(f64),
    Real(f64),
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Gpu<'_>) -> Option<Value>) -> Field {
    Field {
        name,
        kind: Kind::Gauge,
        help,
        value,
    }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Gpu<'_>) -> Option<Value>) -> Field {
    Field {
        name,
        kind: Kind::Counter,
        help,
        value,
    }
}

const MIB: f64 = 1_048_576.0;

/// The metrics in the order of their field numbers: 100, 101, 140, 150, 155, 156, 202, 203, 204, 206, 207, 230, 251 to 253, 393 to 395,
/// 449, 526, 1001, 1004, 1005, 1009, 1010.
const FIELDS: [Field; 25] = [
    gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", |gpu| {
        gpu.whole("gpu_sm_clock_hertz", 1e-6)
    }),
    gauge(
        "DCGM_FI_DEV_MEM_CLOCK",
        "Memory clock frequency (in MHz).",
        |gpu| gpu.whole("gpu_memory_clock_hertz", 1e-6),
    ),
    gauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", |gpu| {
        gpu.whole("gpu_memory_temperature_celsius", 1.0)
    }),
    gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", |gpu| {
        gpu.whole("gpu_temperature_celsius", 1.0)
    }),
    gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", |gpu| {
        gpu.real("gpu_power_watts")
    }),
    counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Total energy consumption since boot (in mJ).",
        |gpu| gpu.whole("gpu_energy_joules_total", 1e3),
    ),
    counter(
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "Total number of PCIe retries.",
        |gpu| gpu.whole("gpu_pcie_replays_total", 1.0),
    ),
    gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", |gpu| {
        gpu.whole("gpu_utilization_ratio", 100.0)
    }),
    gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", |gpu| {
        gpu.whole("gpu_memory_utilization_ratio", 100.0)
    }),
    gauge("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %).", |gpu| {
        gpu.whole("gpu_encoder_utilization_ratio", 100.0)
    }),
    gauge("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %).", |gpu| {
        gpu.whole("gpu_decoder_utilization_ratio", 100.0)
    }),
    gauge(
        "DCGM_FI_DEV_XID_ERRORS",
        "Value of the last XID error encountered.",
        |gpu| Some(Value::Whole(f64::from(gpu.last_xid))),
    ),
    gauge(
        "DCGM_FI_DEV_FB_FREE",
        "Framebuffer memory free (in MiB).",
        |gpu| {
            let reserved = gpu.get("gpu_memory_reserved_bytes").unwrap_or(0.0);
            let taken = gpu.get("gpu_memory_used_bytes")? + reserved;
            Some(Value::Whole((gpu.get("gpu_memory_total_bytes")? - taken) / MIB))
        },
    ),
    gauge(
        "DCGM_FI_DEV_FB_USED",
        "Framebuffer memory used (in MiB).",
        |gpu| gpu.whole("gpu_memory_used_bytes", 1.0 / MIB),
    ),
    gauge(
        "DCGM_FI_DEV_FB_RESERVED",
        "Framebuffer memory reserved (in MiB).",
        |gpu| gpu.whole("gpu_memory_reserved_bytes", 1.0 / MIB),
    ),
    counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for uncorrectable errors",
        |gpu| gpu.by("gpu_remapped_rows", "uncorrected"),
    ),
    counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for correctable errors",
        |gpu| gpu.by("gpu_remapped_rows", "corrected"),
    ),
    gauge(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "Whether remapping of rows has failed",
        |gpu| gpu.by("gpu_remapped_rows", "failed"),
    ),
    // DCGM calls this a counter, but its value is a rate in thousands of KiB per second.
    counter(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "Total number of NVLink bandwidth counters for all lanes.",
        |gpu| {
            let rates = gpu.rates.get("nvlink")?;
            Some(Value::Whole((rates[0] + rates[1]) / 1_024.0 / 1e3))
        },
    ),
    // DCGM reports 0 for a GPU that is not a vGPU. The license status of a vGPU is not known here, so no value is written.
    gauge("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "vGPU License status", |gpu| {
        (!gpu.is_virtual()).then_some(Value::Whole(0.0))
    }),
    gauge(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Ratio of time the graphics engine is active.",
        |gpu| gpu.real("gpu_graphics_active_ratio"),
    ),
    gauge(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        |gpu| gpu.real("gpu_tensor_active_ratio"),
    ),
    gauge(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        |gpu| gpu.real("gpu_dram_active_ratio"),
    ),
    gauge(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second.",
        |gpu| Some(Value::Whole(gpu.rates.get("pcie")?[0])),
    ),
    gauge(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second.",
        |gpu| Some(Value::Whole(gpu.rates.get("pcie")?[1])),
    ),
];

/// The values of one GPU.
#[derive(Default)]
struct Gpu<'a> {
    index: &'a str,
    uuid: &'a str,
    name: &'a str,
    pci_bus_id: &'a str,
    driver: &'a str,
    /// The values by metric and by the value of the label `type` (empty if the metric has no such label).
    values: HashMap<(&'a str, &'a str), f64>,
    /// The time of the last reading of each link, and the bytes sent and received until then.
    sent: HashMap<&'a str, (TimestampMs, [f64; 2])>,
    rates: HashMap<&'a str, [f64; 2]>,
    xids: Vec<(u32, f64)>,
    last_xid: u32,
}

/// Writes the page. Stores the previous readings that rates need, and the last Xid of each GPU.
#[derive(Debug)]
pub(super) struct Dcgm {
    host_label: &'static str,
    host: String,
    histories: Mutex<HashMap<String, GpuHistory>>,
}

/// The stored state of one GPU.
#[derive(Debug, Default)]
struct GpuHistory {
    links: HashMap<String, Link>,
    xids: HashMap<u32, f64>,
    last_xid: u32,
}

/// The last reading of a link, and the rate at that time.
#[derive(Debug, Clone, Copy)]
struct Link {
    at_ms: TimestampMs,
    bytes: [f64; 2],
    rate: [f64; 2],
}

impl Dcgm {
    pub(super) fn new(label: HostLabel, node: &NodeName) -> Self {
        Self {
            host_label: match label {
                HostLabel::Lower => "hostname",
                HostLabel::Upper => "Hostname",
            },
            host: node.to_string(),
            histories: Mutex::default(),
        }
    }

    /// Writes all families that have at least one value.
    pub(super) fn write(&self, out: &mut Writer, latest: &[Sample]) {
        let mut gpus = gather(latest);
        let mut histories = self.histories.lock().unwrap_or_else(PoisonError::into_inner);
        histories.retain(|index, _| gpus.values().any(|gpu| gpu.index == index));
        for gpu in gpus.values_mut() {
            histories.entry(gpu.index.to_owned()).or_default().update(gpu);
        }
        for field in &FIELDS {
            let values: Vec<_> = gpus
                .values()
                .filter_map(|gpu| Some((gpu, (field.value)(gpu)?)))
                .collect();
            if !values.is_empty() {
                out.family(field.name, field.kind, None, field.help);
            }
            for (gpu, value) in values {
                self.line(out, field, gpu, &value);
            }
        }
    }

    fn line(&self, out: &mut Writer, field: &Field, gpu: &Gpu<'_>, value: &Value) {
        let device = format!("nvidia{}", gpu.index);
        let xid = gpu.last_xid.to_string();
        let mut labels = vec![
            ("gpu", gpu.index),
            ("UUID", gpu.uuid),
            ("pci_bus_id", gpu.pci_bus_id),
            ("device", &device),
            ("modelName", gpu.name),
            (self.host_label, &self.host),
        ];
        if !gpu.driver.is_empty() {
            labels.push(("DCGM_FI_DRIVER_VERSION", gpu.driver));
        }
        if field.name == "DCGM_FI_DEV_XID_ERRORS" {
            labels.extend([("err_code", xid.as_str()), ("err_msg", xid_text(gpu.last_xid))]);
        }
        let written = match value {
            Value::Whole(value) => format!("{}", nearly_whole(*value)),
            Value::Real(value) => format!("{value:.6}"),
        };
        out.written(labels.into_iter(), &written);
    }
}

impl GpuHistory {
    /// Adds the stored rates and last Xid to `gpu`, and stores its current values.
    fn update(&mut self, gpu: &mut Gpu<'_>) {
        for (name, (at_ms, bytes)) in &gpu.sent {
            let now = match self.links.get(*name) {
                Some(before) => before.after(*at_ms, *bytes),
                // As in DCGM, the first rate is zero.
                None => Link {
                    at_ms: *at_ms,
                    bytes: *bytes,
                    rate: [0.0; 2],
                },
            };
            gpu.rates.insert(name, now.rate);
            self.links.insert((*name).to_owned(), now);
        }
        for (xid, count) in &gpu.xids {
            let before = self.xids.insert(*xid, *count).unwrap_or(0.0);
            if *count > before {
                self.last_xid = *xid;
            }
        }
        gpu.last_xid = self.last_xid;
    }
}

impl Link {
    /// Returns the state of the link after a new reading. If the counter was reset, the rate is 0; if the reading is the same one, the rate
    /// does not change.
    fn after(&self, at_ms: TimestampMs, bytes: [f64; 2]) -> Self {
        let seconds = (at_ms - self.at_ms) as f64 / 1e3;
        if seconds <= 0.0 {
            return *self;
        }
        let rate = [0, 1].map(|way| ((bytes[way] - self.bytes[way]) / seconds).max(0.0));
        Self { at_ms, bytes, rate }
    }
}

/// Returns the GPUs by index.
fn gather(latest: &[Sample]) -> BTreeMap<u32, Gpu<'_>> {
    let mut gpus: BTreeMap<u32, Gpu<'_>> = BTreeMap::new();
    for sample in latest {
        let (Some(metric), Some(index)) = (sample.series.metric_name(), sample.series.get("gpu")) else {
            continue;
        };
        let Ok(number) = index.parse() else { continue };
        let gpu = gpus.entry(number).or_default();
        gpu.index = index;
        gpu.take(metric, sample);
    }
    // A GPU without `gpu_info` has no identifying labels.
    gpus.retain(|_, gpu| !gpu.uuid.is_empty());
    gpus
}

impl<'a> Gpu<'a> {
    fn take(&mut self, metric: &'a str, sample: &'a Sample) {
        let label = |name| sample.series.get(name).unwrap_or_default();
        let way = match metric {
            "link_transmit_bytes_total" => 0,
            "link_receive_bytes_total" => 1,
            "gpu_info" => {
                self.uuid = label("uuid");
                self.name = label("name");
                self.pci_bus_id = label("pci_bus_id");
                self.driver = label("driver_version");
                return;
            }
            "gpu_xid_errors_total" => {
                let xid = label("xid").parse();
                self.xids.extend(xid.ok().map(|xid: u32| (xid, sample.value)));
                return;
            }
            _ => {
                self.values.insert((metric, label("type")), sample.value);
                return;
            }
        };
        let link = self.sent.entry(label("link")).or_insert((0, [0.0; 2]));
        link.0 = link.0.max(sample.at_ms);
        link.1[way] = sample.value;
    }

    fn get(&self, metric: &str) -> Option<f64> {
        self.values.get(&(metric, "")).copied()
    }

    fn whole(&self, metric: &str, factor: f64) -> Option<Value> {
        Some(Value::Whole(self.get(metric)? * factor))
    }

    fn real(&self, metric: &str) -> Option<Value> {
        self.get(metric).map(Value::Real)
    }

    fn by(&self, metric: &str, kind: &str) -> Option<Value> {
        self.values.get(&(metric, kind)).copied().map(Value::Whole)
    }

    /// Returns true for NVIDIA's names of vGPUs: a product, a dash, a size, a letter, as in `GRID A100-40C`.
    fn is_virtual(&self) -> bool {
        self.name.starts_with("GRID ")
    }
}

/// Truncates a value, but rounds if it was a whole number before the conversion to base units: 0.29 × 100 must not become 28.
fn nearly_whole(value: f64) -> i64 {
    let rounded = value.round();
    let whole = if (value - rounded).abs() < 1e-6 * value.abs().max(1.0) {
        rounded
    } else {
        value.trunc()
    };
    whole as i64
}

/// Returns the text beside an Xid. dcgm-exporter has its own table of texts; here the number beside the text is enough.
fn xid_text(xid: u32) -> &'static str {
    if xid == 0 { "No Error" } else { "Unknown Error" }
}

#[cfg(test)]
#[path = "dcgm_tests.rs"]
mod tests;
