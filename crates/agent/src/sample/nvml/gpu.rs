//! One GPU: asked tier by tier, given up when it is lost, tried again later.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use domain::event::{Event, Severity};
use domain::series::Labels;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::links::{Flow, Pair, pcie_bytes_per_second};
use super::meter::Meter;
use super::processes::{Naming, Processes};
use super::raw::{self, ALL_LINKS, Gpm};
use crate::sample::Samples;
use crate::sample::schedule::Tick;
use crate::sample::series::{Family, Writer};
use crate::uplink::Events;

/// How long a lost GPU is left alone before the first try, and at most: a reset takes seconds, a repair does not hurry.
const RETRY_MIN: Duration = Duration::from_secs(5);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(300);

/// NVML's clocks event reasons that hold clocks down, in our words. Idle and "as asked" are no throttling.
const THROTTLE_REASONS: [(u64, &str); 7] = [
    (0x04, "sw_power_cap"),
    (0x08, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake"),
    (0x100, "display_clock_setting"),
];

/// Series that outlive the GPU's answers: whether it answers, what it is, who used it, and what it complained of.
const OUTLIVING: [&str; 4] = [
    "gpu_up",
    "gpu_info",
    "gpu_assignment_info",
    "gpu_xid_errors_total",
];

/// Whether a series stops when this GPU (or, with `None`, any GPU) stops answering.
pub(crate) fn ends_with_gpu(series: &Labels, gpu: Option<u32>) -> bool {
    let of_gpu = series
        .get("gpu")
        .is_some_and(|index| gpu.is_none_or(|gpu| index == gpu.to_string()));
    of_gpu && !series.metric_name().is_some_and(|name| OUTLIVING.contains(&name))
}

/// Where readings go, and what they are made with.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) nvml: &'a Nvml,
    pub(crate) meter: &'a Meter,
    pub(crate) samples: &'a Samples,
    pub(crate) events: &'a Events,
}

/// A place for a GPU, whether it answers or not.
pub(crate) struct Slot<'a> {
    index: u32,
    around: Surroundings<'a>,
    reading: Option<Reading<'a>>,
    up: Family,
    lost: Option<Lost>,
}

/// Since when a GPU is not asked, and when it is asked again.
struct Lost {
    wait: Duration,
    retry_at: Instant,
}

/// The GPU does not answer any more.
pub(crate) struct GpuLost(pub(crate) NvmlError);

impl<'a> Slot<'a> {
    /// A slot that has not been asked anything.
    pub(crate) fn new(index: u32, around: Surroundings<'a>) -> Self {
        let up = Family::new(vec![("gpu", index.to_string())]);
        Self {
            index,
            around,
            reading: None,
            up,
            lost: None,
        }
    }

    /// The device, while it answers.
    pub(crate) fn device(&self) -> Option<&Device<'a>> {
        self.reading.as_ref().map(|reading| &reading.asker.device)
    }

    /// Reads what is due.
    pub(crate) fn read(&mut self, tick: &Tick, naming: &mut Naming<'_>) {
        if self
            .lost
            .as_ref()
            .is_some_and(|lost| Instant::now() < lost.retry_at)
        {
            return self.put_up(tick, false);
        }
        match self.try_read(tick, naming) {
            Ok(()) => self.answered(tick),
            Err(GpuLost(error)) => self.gave_up(tick, &error),
        }
    }

    fn try_read(&mut self, tick: &Tick, naming: &mut Naming<'_>) -> Result<(), GpuLost> {
        if self.reading.is_none() {
            let around = self.around;
            let device = around
                .meter
                .call(Some(self.index), || around.nvml.device_by_index(self.index));
            self.reading = Some(Reading::new(self.index, device.map_err(GpuLost)?, around));
        }
        self.reading
            .as_mut()
            .map_or(Ok(()), |reading| reading.read(tick, naming))
    }

    fn answered(&mut self, tick: &Tick) {
        if self.lost.take().is_some() {
            self.report(
                tick,
                Severity::Info,
                "gpu_recovered",
                format!("GPU {} answers again", self.index),
            );
        }
        self.put_up(tick, true);
    }

    fn gave_up(&mut self, tick: &Tick, error: &NvmlError) {
        let wait = match &self.lost {
            Some(lost) => (lost.wait * 2).min(RETRY_MAX),
            None => {
                let message = format!("GPU {} does not answer any more: {error}", self.index);
                self.report(tick, Severity::Critical, "gpu_lost", message);
                RETRY_MIN
            }
        };
        self.reading = None;
        self.lost = Some(Lost {
            wait,
            retry_at: Instant::now() + wait,
        });
        self.put_up(tick, false);
        self.around
            .samples
            .end_where(tick.at_ms, |series| ends_with_gpu(series, Some(self.index)));
    }

    fn put_up(&mut self, tick: &Tick, up: bool) {
        self.up.at(self.around.samples, tick.at_ms).put("gpu_up", up);
    }

    fn report(&self, tick: &Tick, severity: Severity, kind: &str, message: String) {
        let (at_ms, gpu) = (tick.at_ms, Some(self.index));
        self.around.events.report(Event {
            at_ms,
            severity,
            kind: kind.into(),
            node: None,
            gpu,
            run: None,
            message,
        });
    }
}

// === Asking ===

/// Asks one GPU; remembers what it cannot answer, so that it is asked only once.
pub(crate) struct Asker<'a> {
    index: u32,
    device: Device<'a>,
    meter: &'a Meter,
    refused: HashSet<&'static str>,
    answers: u32,
    failure: Option<NvmlError>,
}

impl<'a> Asker<'a> {
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

    /// Never ask that again.
    fn refuse(&mut self, what: &'static str) {
        self.refused.insert(what);
    }

    fn judge<T>(&mut self, what: &'static str, answer: Result<T, NvmlError>) -> Result<Option<T>, GpuLost> {
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
    fn end_round(&mut self) -> Result<(), GpuLost> {
        let answers = std::mem::take(&mut self.answers);
        match self.failure.take() {
            Some(error) if answers == 0 => Err(GpuLost(error)),
            _ => Ok(()),
        }
    }
}

// === Reading ===

/// All that is known of a GPU that answers.
struct Reading<'a> {
    asker: Asker<'a>,
    family: Family,
    traffic: Traffic<'a>,
    processes: Processes,
    samples: &'a Samples,
    info: Option<Labels>,
}

impl<'a> Reading<'a> {
    fn new(index: u32, device: Device<'a>, around: Surroundings<'a>) -> Self {
        let asker = Asker {
            index,
            device,
            meter: around.meter,
            refused: HashSet::new(),
            answers: 0,
            failure: None,
        };
        Self {
            asker,
            family: Family::new(vec![("gpu", index.to_string())]),
            traffic: Traffic::default(),
            processes: Processes::new(index),
            samples: around.samples,
            info: None,
        }
    }

    fn read(&mut self, tick: &Tick, naming: &mut Naming<'_>) -> Result<(), GpuLost> {
        let out = &mut self.family.at(self.samples, tick.at_ms);
        read_core(&mut self.asker, out)?;
        if tick.slow {
            // Limits first: utilization is measured against them.
            self.traffic.read_limits(&mut self.asker, out)?;
            read_health(&mut self.asker, out)?;
        }
        self.traffic.read(&mut self.asker, out)?;
        if tick.slow {
            self.read_processes(tick, naming)?;
            self.put_info(tick)?;
        }
        self.asker.end_round()
    }

    fn read_processes(&mut self, tick: &Tick, naming: &mut Naming<'_>) -> Result<(), GpuLost> {
        if let Some(running) = self.asker.ask("processes", raw::compute_processes)? {
            self.family
                .at(self.samples, tick.at_ms)
                .put("gpu_processes", running.len() as f64);
            self.processes.show(running, naming, self.samples, tick.at_ms);
        }
        Ok(())
    }

    fn put_info(&mut self, tick: &Tick) -> Result<(), GpuLost> {
        if self.info.is_none() {
            self.info = info(&mut self.asker)?;
        }
        if let Some(info) = &self.info {
            self.samples.push(info, tick.at_ms, 1.0);
        }
        Ok(())
    }
}

fn info(asker: &mut Asker<'_>) -> Result<Option<Labels>, GpuLost> {
    let uuid = asker.ask("uuid", |gpu| gpu.uuid())?.unwrap_or_default();
    let name = asker.ask("name", |gpu| gpu.name())?.unwrap_or_default();
    let pci = asker
        .ask("pci", |gpu| gpu.pci_info())?
        .map(|pci| pci.bus_id)
        .unwrap_or_default();
    let driver = asker
        .ask("driver", |gpu| gpu.nvml().sys_driver_version())?
        .unwrap_or_default();
    let index = asker.index.to_string();
    let labels = [
        ("gpu", index.as_str()),
        ("uuid", &uuid),
        ("name", &name),
        ("pci_bus_id", &pci),
        ("driver_version", &driver),
    ];
    Ok((!uuid.is_empty()).then(|| crate::sample::series::series("gpu_info", &labels)))
}

fn read_core(asker: &mut Asker<'_>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
    if let Some(memory) = asker.ask("memory", |gpu| gpu.memory_info())? {
        out.put("gpu_memory_used_bytes", memory.used as f64);
        out.put("gpu_memory_total_bytes", memory.total as f64);
    }
    if let Some(busy) = asker.ask("utilization", |gpu| gpu.utilization_rates())? {
        out.put("gpu_utilization_ratio", f64::from(busy.gpu) / 100.0);
        out.put("gpu_memory_utilization_ratio", f64::from(busy.memory) / 100.0);
    }
    if let Some(megahertz) = asker.ask("sm clock", |gpu| gpu.clock_info(Clock::SM))? {
        out.put("gpu_sm_clock_hertz", f64::from(megahertz) * 1e6);
    }
    if let Some(megahertz) = asker.ask("memory clock", |gpu| gpu.clock_info(Clock::Memory))? {
        out.put("gpu_memory_clock_hertz", f64::from(megahertz) * 1e6);
    }
    if let Some(milliwatts) = asker.ask("power", |gpu| gpu.power_usage())? {
        out.put("gpu_power_watts", f64::from(milliwatts) / 1e3);
    }
    if let Some(reasons) = asker.ask("throttle", raw::clocks_event_reasons)? {
        for (bit, reason) in THROTTLE_REASONS {
            out.put_by("gpu_throttle", ("reason", reason), reasons & bit != 0);
        }
    }
    Ok(())
}

fn read_health(asker: &mut Asker<'_>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
    if let Some(celsius) = asker.ask("temperature", |gpu| gpu.temperature(TemperatureSensor::Gpu))? {
        out.put("gpu_temperature_celsius", celsius);
    }
    if let Some(milliwatts) = asker.ask("power limit", |gpu| gpu.enforced_power_limit())? {
        out.put("gpu_power_limit_watts", f64::from(milliwatts) / 1e3);
    }
    if let Some(megahertz) = asker.ask("sm clock max", |gpu| gpu.max_clock_info(Clock::SM))? {
        out.put("gpu_sm_clock_max_hertz", f64::from(megahertz) * 1e6);
    }
    let ecc = [
        ("corrected", MemoryError::Corrected),
        ("uncorrected", MemoryError::Uncorrected),
    ];
    for (kind, error) in ecc {
        let count = asker.ask(kind, |gpu| gpu.total_ecc_errors(error, EccCounter::Volatile))?;
        if let Some(count) = count {
            out.put_by("gpu_ecc_errors_total", ("type", kind), count as f64);
        }
    }
    if let Some(rows) = asker.ask("remapped rows", raw::remapped_rows)? {
        out.put_by("gpu_remapped_rows", ("type", "corrected"), rows.corrected);
        out.put_by("gpu_remapped_rows", ("type", "uncorrected"), rows.uncorrected);
        out.put_by("gpu_remapped_rows", ("type", "pending"), rows.pending);
        out.put_by("gpu_remapped_rows", ("type", "failed"), rows.failed);
    }
    if let Some(replays) = asker.ask("pcie replays", |gpu| gpu.pcie_replay_counter())? {
        out.put("gpu_pcie_replays_total", replays);
    }
    Ok(())
}

// === Fields ===

/// A numbered field, where it is asked and where it goes.
struct Field {
    name: &'static str,
    id: u32,
    scope: u32,
}

const fn field(name: &'static str, id: u32, scope: u32) -> Field {
    Field { name, id, scope }
}

/// Asked together every second.
const FAST_FIELDS: [Field; 5] = [
    field("energy", 83, 0),
    field("nvlink tx", 138, ALL_LINKS),
    field("nvlink rx", 139, ALL_LINKS),
    field("pcie tx", 197, 0),
    field("pcie rx", 198, 0),
];

/// Asked together in the slow tier: memory temperature, and NVLink errors summed over links.
const SLOW_FIELDS: [Field; 5] = [
    field("memory temperature", 82, 0),
    field("crc_flit", 38, 0),
    field("crc_data", 45, 0),
    field("replay", 52, 0),
    field("recovery", 59, 0),
];

/// `NVML_FI_DEV_NVLINK_GET_SPEED`: megabytes a second of one link in one direction.
const LINK_SPEED: u32 = 164;
/// `NVML_FI_DEV_NVLINK_LINK_COUNT`.
const LINK_COUNT: u32 = 91;

/// Reads fields that this GPU has; the others are `None`.
fn read_fields<const N: usize>(
    asker: &mut Asker<'_>,
    fields: &[Field; N],
) -> Result<[Option<f64>; N], GpuLost> {
    let asked: Vec<usize> = (0..N)
        .filter(|&n| !asker.refused.contains(fields[n].name))
        .collect();
    let mut values = [None; N];
    if asked.is_empty() {
        return Ok(values);
    }
    let ids: Vec<_> = asked.iter().map(|&n| (fields[n].id, fields[n].scope)).collect();
    let answers = asker
        .ask("fields", |gpu| raw::fields(gpu, &ids))?
        .unwrap_or_default();
    for (n, answer) in asked.into_iter().zip(answers) {
        values[n] = asker.judge(fields[n].name, answer)?;
    }
    Ok(values)
}

// === Traffic ===

/// GPM metric ids: SM active, occupancy, tensor, DRAM in percent; PCIe and NVLink in MiB/s.
const GPM_IDS: [u32; 8] = [2, 3, 5, 10, 20, 21, 61, 60];
const GPM_RATIOS: [&str; 4] = [
    "gpu_sm_active_ratio",
    "gpu_sm_occupancy_ratio",
    "gpu_tensor_active_ratio",
    "gpu_dram_active_ratio",
];
const MIB: f64 = 1_048_576.0;

/// What goes over the links, and what the performance counters say.
#[derive(Default)]
struct Traffic<'a> {
    gpm: Option<Gpm<'a>>,
    nvlink: Flow,
    pcie: Flow,
    nvlink_max: Option<f64>,
    pcie_max: Option<f64>,
}

impl<'a> Traffic<'a> {
    fn read(&mut self, asker: &mut Asker<'a>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
        let activity = self.read_gpm(asker, out)?;
        let now = Instant::now();
        let [energy, nvlink_tx, nvlink_rx, pcie_tx, pcie_rx] = read_fields(asker, &FAST_FIELDS)?;
        if let Some(millijoules) = energy {
            out.put("gpu_energy_joules_total", millijoules / 1e3);
        }
        // The counters of NVLink are exact, those of PCIe wrap within a tenth of a second: there GPM comes first.
        let nvlink = match (nvlink_tx, nvlink_rx, &activity) {
            (Some(tx), Some(rx), _) => self.nvlink.counted(now, [tx * 1024.0, rx * 1024.0]),
            (_, _, Some(activity)) => activity.add_to(&mut self.nvlink, activity.nvlink),
            _ => None,
        };
        let pcie = match (activity, pcie_tx, pcie_rx) {
            (Some(activity), None, None) => activity.add_to(&mut self.pcie, activity.pcie),
            (_, Some(tx), Some(rx)) => self.pcie.counted(now, [tx, rx]),
            _ => None,
        };
        put_link(out, "nvlink", &self.nvlink, nvlink, self.nvlink_max);
        put_link(out, "pcie", &self.pcie, pcie, self.pcie_max);
        Ok(())
    }

    fn read_gpm(&mut self, asker: &mut Asker<'a>, out: &mut Writer<'_>) -> Result<Option<Activity>, GpuLost> {
        let Some(gpm) = &mut self.gpm else {
            self.gpm = asker.ask("gpm", |gpu| match gpu.gpm_support() {
                Ok(true) => Gpm::new(gpu),
                Ok(false) => Err(NvmlError::NotSupported),
                Err(error) => Err(error),
            })?;
            return Ok(None);
        };
        let Some((interval, values)) = asker.ask("gpm metrics", |gpu| gpm.read(gpu, &GPM_IDS))?.flatten()
        else {
            return Ok(None);
        };
        for (metric, percent) in GPM_RATIOS.into_iter().zip(&values) {
            if percent.is_finite() {
                out.put(metric, percent / 100.0);
            }
        }
        let pair = |first: usize| -> Pair { [values[first] * MIB, values[first + 1] * MIB] };
        let activity = Activity {
            interval,
            pcie: pair(4),
            nvlink: pair(6),
        };
        if activity.pcie.iter().all(|rate| rate.is_finite()) {
            asker.refuse("pcie tx");
            asker.refuse("pcie rx");
        }
        Ok(Some(activity))
    }

    /// How much each link can carry, and how healthy it is.
    fn read_limits(&mut self, asker: &mut Asker<'a>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
        self.read_pcie_limits(asker, out)?;
        self.read_nvlink_limits(asker, out)?;
        let [memory_temperature, errors @ ..] = read_fields(asker, &SLOW_FIELDS)?;
        if let Some(celsius) = memory_temperature {
            out.put("gpu_memory_temperature_celsius", celsius);
        }
        for (field, count) in SLOW_FIELDS[1..].iter().zip(errors) {
            if let Some(count) = count {
                out.put_by("gpu_nvlink_errors_total", ("type", field.name), count);
            }
        }
        Ok(())
    }

    fn read_pcie_limits(&mut self, asker: &mut Asker<'a>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
        if let Some(generation) = asker.ask("pcie gen", |gpu| gpu.current_pcie_link_gen())? {
            out.put("gpu_pcie_generation", generation);
        }
        if let Some(width) = asker.ask("pcie width", |gpu| gpu.current_pcie_link_width())? {
            out.put("gpu_pcie_width", width);
        }
        let generation = asker.ask("pcie gen max", |gpu| gpu.max_pcie_link_gen())?;
        let width = asker.ask("pcie width max", |gpu| gpu.max_pcie_link_width())?;
        if let (Some(generation), Some(width)) = (generation, width) {
            out.put("gpu_pcie_generation_max", generation);
            out.put("gpu_pcie_width_max", width);
            self.pcie_max = pcie_bytes_per_second(generation, width);
        }
        Ok(())
    }

    fn read_nvlink_limits(&mut self, asker: &mut Asker<'a>, out: &mut Writer<'_>) -> Result<(), GpuLost> {
        let Some(links) = asker.ask("nvlinks", nvlinks)? else {
            return Ok(());
        };
        let mut active = 0_u32;
        for link in 0..links {
            // A link that cannot say is not up; the question stays allowed for the others.
            let state = asker.ask("nvlink state", |gpu| {
                match gpu.link_wrapper_for(link).is_active() {
                    Err(NvmlError::InvalidArg | NvmlError::NotSupported) => Ok(false),
                    answer => answer,
                }
            })?;
            active += u32::from(state == Some(true));
        }
        out.put("gpu_nvlinks", links);
        out.put("gpu_nvlinks_active", active);
        let speeds: Vec<_> = (0..links).map(|link| (LINK_SPEED, link)).collect();
        let speeds = asker
            .ask("nvlink speed", |gpu| raw::fields(gpu, &speeds))?
            .unwrap_or_default();
        let megabytes: f64 = speeds.iter().filter_map(|speed| speed.as_ref().ok()).sum();
        // Measured against all links: one that is down makes the GPU slower, not its links fuller.
        let up = f64::from(active.max(1)) / f64::from(links.max(1));
        self.nvlink_max = (megabytes > 0.0).then_some(megabytes * 1e6 / up);
        Ok(())
    }
}

/// How many NVLinks there are; a GPU without any says it is not supported, or zero.
pub(crate) fn nvlinks(device: &Device<'_>) -> Result<u32, NvmlError> {
    let count = raw::fields(device, &[(LINK_COUNT, 0)])?
        .pop()
        .unwrap_or(Err(NvmlError::NotSupported))?;
    if count > 0.0 {
        Ok(count as u32)
    } else {
        Err(NvmlError::NotSupported)
    }
}

/// Rates in bytes a second over the interval between two GPM samples.
struct Activity {
    interval: Duration,
    pcie: Pair,
    nvlink: Pair,
}

impl Activity {
    fn add_to(&self, flow: &mut Flow, rates: Pair) -> Option<Pair> {
        let known = rates.iter().all(|rate| rate.is_finite());
        known.then(|| flow.rated(self.interval, rates)).map(|()| rates)
    }
}

fn put_link(out: &mut Writer<'_>, link: &'static str, flow: &Flow, rates: Option<Pair>, max: Option<f64>) {
    let Some(rates) = rates else { return };
    let link = ("link", link);
    let [sent, received] = flow.total();
    out.put_by("link_transmit_bytes_total", link, sent);
    out.put_by("link_receive_bytes_total", link, received);
    if let Some(max) = max {
        out.put_by("link_bandwidth_bytes_per_second", link, max);
        out.put_by("link_utilization_ratio", link, rates[0].max(rates[1]) / max);
    }
}
