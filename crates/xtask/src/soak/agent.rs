//! An agent reads eight simulated GPUs once per second, and ten times per second for its burst, with a collector, for one hour. Neither its
//! memory nor its open files may grow.
//!
//! ```text
//! minute 0          5: the ring is full   5:30 a fault: the burst is sent    7 …………………………………… the end
//! └────────────────────── settles ──────────────────────────────────────────┘ first fifth … last fifth
//! ```

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use super::report::PartReport;
use super::{COLLECTOR, folder_of};
use crate::layout::Layout;
use crate::measure::http::{Address, escape, first_value};
use crate::measure::server::{Plan, Server, free_port};
use crate::measure::{build, folder, process};
use crate::progress::say;

/// Until the ring of five minutes is full and the burst after the fault was sent.
const SETTLE: Duration = Duration::from_secs(7 * 60);
/// One GPU is lost after five and a half minutes, for some seconds.
const SIMULATED: &str = "h100x8:lost,gpu=3,after=330s,for=10s";
/// The interval of the measurements of the agent.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum growth of memory between start and end, for the allocator: a spool segment is written and removed every ten minutes.
const GROWTH_MAX_MIB: f64 = 1.0;
/// Files and sockets that are open for a short time: segments of the spool, a scrape.
const DESCRIPTORS_MORE_MAX: usize = 2;
/// Minimum number of burst samples of each GPU that must reach the collector: five minutes at ten per second, without late samples and the
/// time in which a GPU was lost.
const BURST_READINGS_MIN: f64 = 2_500.0;

/// How long to run, and which build.
#[derive(Args)]
pub(crate) struct Options {
    /// Total minutes; the first seven are for settling.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// A folder with `lockstep` and `libsim_nvml.so`, used instead of a release build.
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
}

/// One measurement of the agent.
#[derive(Debug, Clone, Copy)]
struct AgentSample {
    resident_mib: f64,
    descriptors: usize,
}

/// Runs the agent and measures it.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<PartReport> {
    let whole = Duration::from_secs(options.minutes * 60);
    ensure!(
        whole > SETTLE + SAMPLE_INTERVAL * 20,
        "the agent settles in the first {} minutes; use at least {} minutes",
        SETTLE.as_secs() / 60,
        SETTLE.as_secs() / 60 + 3
    );
    let mut report = PartReport::new("agent", format!("agent --minutes {}", options.minutes));
    if let Some(built) = &options.built {
        report.note(format!(
            "With the build in {}.",
            built.file_name().unwrap_or_default().display()
        ));
    } else {
        build::release(layout, &["--package", "lockstep", "--package", "sim-nvml"])?;
    }
    let programs = options
        .built
        .clone()
        .unwrap_or_else(|| layout.target().join("release"));
    let home = folder_of(layout, "agent");
    folder::empty(&home)?;
    let mut collector = collector(layout, &programs, &home)?;
    let mut agent = agent(layout, &programs, &home, &collector)?;
    let (samples, cores) = watch(&mut agent, &mut collector, whole)?;
    check_growth(&mut report, &samples, cores);
    check_burst(&mut report, &collector)?;
    check_own_metrics(&mut report, agent.address())?;
    Ok(report)
}

fn collector(layout: &Layout, programs: &Path, home: &Path) -> Result<Server> {
    let mut plan = Plan::collector(layout, COLLECTOR, &home.join("collector"), &[])?;
    plan.program = programs.join("lockstep");
    Server::start(layout, plan)
}

fn agent(layout: &Layout, programs: &Path, home: &Path, collector: &Server) -> Result<Server> {
    let port = free_port()?;
    let arguments = vec![
        "agent".to_owned(),
        format!("--collector={}", collector.url()),
        format!("--simulate={SIMULATED}"),
        format!("--nvml-library={}", programs.join("libsim_nvml.so").display()),
        format!("--metrics-listen=127.0.0.1:{port}"),
        format!("--data={}", home.join("agent").display()),
        "--name=soak".to_owned(),
        "--no-runs".to_owned(),
    ];
    let plan = Plan {
        step: "soak-agent".to_owned(),
        program: programs.join("lockstep"),
        arguments,
        variables: vec![collector.join_secret()?],
        folder: home.to_owned(),
        address: Address { port, token: None },
        ready: "/metrics",
    };
    Server::start(layout, plan)
}

/// Measures the agent after it has settled. Returns the measurements, and the share of a core that it used meanwhile.
fn watch(agent: &mut Server, collector: &mut Server, whole: Duration) -> Result<(Vec<AgentSample>, f64)> {
    let pid = agent.pid()?;
    let began = Instant::now();
    say("agent", &format!("settles for {} min", SETTLE.as_secs() / 60));
    while began.elapsed() < SETTLE {
        thread::sleep(SAMPLE_INTERVAL);
        agent.check()?;
        collector.check()?;
    }
    let (settled, cpu_s) = (Instant::now(), process::cpu_s(pid)?);
    let mut samples = Vec::new();
    while began.elapsed() < whole {
        thread::sleep(SAMPLE_INTERVAL);
        agent.check()?;
        collector.check()?;
        // Scrapes the agent meanwhile, as in production.
        agent.address().get("/metrics")?.success("/metrics")?;
        samples.push(AgentSample {
            resident_mib: process::resident_mib(pid)?,
            descriptors: process::descriptors(pid)?,
        });
    }
    let cores = (process::cpu_s(pid)? - cpu_s) / settled.elapsed().as_secs_f64();
    Ok((samples, cores))
}

fn check_growth(report: &mut PartReport, samples: &[AgentSample], cores: f64) {
    let fifth = (samples.len() / 5).max(1);
    let (first, last) = (&samples[..fifth], &samples[samples.len() - fifth..]);
    let mean = |samples: &[AgentSample]| {
        samples.iter().map(|sample| sample.resident_mib).sum::<f64>() / samples.len() as f64
    };
    let most = |samples: &[AgentSample]| {
        samples
            .iter()
            .map(|sample| sample.descriptors)
            .max()
            .unwrap_or_default()
    };
    let peak = samples
        .iter()
        .map(|sample| sample.resident_mib)
        .fold(0.0, f64::max);
    report.check(
        mean(last) <= mean(first) + GROWTH_MAX_MIB,
        format!(
            "Resident memory over the first fifth after settling: {:.2} MiB; over the last: {:.2} MiB; at most {peak:.2} MiB, in {} samples.",
            mean(first),
            mean(last),
            samples.len()
        ),
    );
    report.check(
        most(last) <= most(first) + DESCRIPTORS_MORE_MAX,
        format!(
            "Open descriptors: at most {} in the first fifth, {} in the last.",
            most(first),
            most(last)
        ),
    );
    report.note(format!("Processor: {:.2} % of a core.", cores * 100.0));
}

/// Checks that the burst around the fault was stored.
fn check_burst(report: &mut PartReport, collector: &Server) -> Result<()> {
    let readings = query(collector, "min(count_over_time(gpu_burst_power_watts[24h]))")?;
    report.check(
        readings >= BURST_READINGS_MIN,
        format!("The collector has at least {readings} readings of each GPU around the fault."),
    );
    Ok(())
}

/// Checks the agent's own metrics.
fn check_own_metrics(report: &mut PartReport, agent: &Address) -> Result<()> {
    let text = agent.get("/metrics")?.success("/metrics")?;
    let own = |metric: &str| {
        let line = text.lines().find(|line| line.starts_with(metric));
        let value = line.and_then(|line| line.rsplit_once(' '));
        value
            .and_then(|(_, value)| value.parse::<f64>().ok())
            .with_context(|| format!("the agent does not export {metric}"))
    };
    let (period, burst) = (
        own("lockstep_agent_nvml_period_seconds")?,
        own("lockstep_agent_burst_period_seconds")?,
    );
    let (cut, dropped) = (
        own("lockstep_agent_readings_cut")?,
        own("lockstep_agent_spool_dropped_samples_total")?,
    );
    report.check(
        period <= 1.0 && burst > 0.0 && cut == 0.0 && dropped == 0.0,
        format!(
            "At the end: {period} s between rounds, {burst} s between burst rows, {} series, {dropped} samples dropped, {} rounds skipped.",
            own("lockstep_agent_series")?,
            own("lockstep_agent_rounds_late_total")?
        ),
    );
    Ok(())
}

/// Returns the single value of a query.
fn query(collector: &Server, query: &str) -> Result<f64> {
    let path = format!("/api/v1/query?query={}", escape(query));
    let answer = collector.address().get(&path)?.json(&path)?;
    first_value(&answer).with_context(|| format!("{query} has no value"))
}
