//! What single GPUs of several kinds report, and the series that it becomes.

use agent::AgentConfig;

use crate::collector::{Behaviour, Collector};
use crate::exposition::read_once;
use crate::support::{Running, config_towards, folder, simulated, until};

fn with(metric: &str, label: &str, value: &str) -> String {
    let mut labels = [("gpu", "0"), ("node", "n1"), (label, value)];
    labels.sort_unstable();
    let labels: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{value}\""))
        .collect();
    format!("{metric}{{{}}}", labels.join(","))
}

#[tokio::test]
async fn field_numbers_follow_the_driver() {
    for driver in ["570.172.08", "580.95.05"] {
        let samples = read_once(&format!("h100x1:throttle,after=0s,driver={driver}")).await;
        let series = with("gpu_throttle_seconds_total", "reason", "hw_thermal_slowdown");
        let seconds = samples.get(&series);
        assert!(
            seconds.is_some_and(|seconds| *seconds > 0.0),
            "{driver}: {seconds:?}"
        );
    }
}

#[tokio::test]
async fn a_link_that_is_down_is_named() {
    let samples = read_once("h100x1:link-down,link=3,after=0s").await;
    let up: Vec<_> = samples
        .iter()
        .filter(|(series, _)| series.starts_with("gpu_nvlink_up"))
        .collect();
    let down = with("gpu_nvlink_up", "nvlink", "3");
    assert_eq!(up, [(&down, &0.0)], "links that were never down have no series");
    let all = samples["gpu_nvlinks_active{gpu=\"0\",node=\"n1\"}"];
    assert_eq!(all, 17.0);
    for link in ["0", "17"] {
        let series = with("gpu_nvlink_transmit_bytes_total", "nvlink", link);
        assert!(samples[&series] >= 0.0);
    }
}

#[tokio::test]
async fn pipes_and_limits_are_read() {
    let samples = read_once("h100x1:healthy").await;
    let half = samples[&with("gpu_pipe_active_ratio", "pipe", "tensor_hmma")];
    let whole = samples["gpu_tensor_active_ratio{gpu=\"0\",node=\"n1\"}"];
    assert!(half > 0.0 && half <= whole, "{half} of {whole}");
    assert_eq!(
        samples["gpu_power_limit_default_watts{gpu=\"0\",node=\"n1\"}"],
        700.0
    );
    let slowdown = samples[&with("gpu_temperature_limit_celsius", "type", "slowdown")];
    assert!((60.0..110.0).contains(&slowdown), "{slowdown}");
    let peak = samples["gpu_power_max_watts{gpu=\"0\",node=\"n1\"}"];
    assert!((50.0..900.0).contains(&peak), "{peak}");
    assert_eq!(samples["gpu_sram_threshold_exceeded{gpu=\"0\",node=\"n1\"}"], 0.0);
}

#[tokio::test]
async fn a_blackwell_gpu_has_counters_of_another_kind() {
    let samples = read_once("b200x1:healthy").await;
    let sent = with("gpu_nvlink_transmit_bytes_total", "nvlink", "0");
    assert!(samples.contains_key(&sent));
    assert!(samples.contains_key(&with("gpu_nvlink_errors_total", "type", "symbol")));
}

#[tokio::test]
async fn links_without_counters_are_measured_by_rates() {
    let folder = folder();
    let collector = Collector::start().await;
    let agent = Running::start(AgentConfig {
        nvml: simulated(
            folder.path(),
            "h100x2:link-down,link=3,after=0s,without=138+139+202+204",
        ),
        ..config_towards(folder.path(), &collector.url())
    });
    let of_link = |metric: &str, link: u32| {
        let series = format!("gpu_nvlink_{metric}_bytes_total{{gpu=\"0\", nvlink=\"{link}\"}}");
        collector.received().values(&series)
    };
    // Links are read every ten seconds.
    until("a second round", || of_link("transmit", 0).len() > 1).await;
    agent.stop().await;
    for metric in ["transmit", "receive"] {
        let sent = of_link(metric, 17);
        assert_eq!(sent[0], 0.0, "{metric}: counted from the start on");
        assert!(sent[1] > 1e9, "{metric}: {sent:?}");
        assert!(of_link(metric, 3).is_empty(), "it is down, and always was");
    }
    // The sum over 17 equal links is also a metric of GPM, which is read every second. Both are compared at the time of the second round.
    let received = collector.received();
    let (at_ms, one) = received.series["gpu_nvlink_transmit_bytes_total{gpu=\"0\", nvlink=\"0\"}"]
        .iter()
        .nth(1)
        .unwrap();
    let (_, total) = received.series["link_transmit_bytes_total{gpu=\"0\", link=\"nvlink\"}"]
        .range(..=*at_ms)
        .next_back()
        .unwrap();
    let all = total / 17.0;
    assert!((0.6..1.7).contains(&(one / all)), "{one} of {all}");
    let unanswered = &received.inventories.last().unwrap().gpus[0].unanswered;
    assert!(
        !unanswered.iter().any(|what| what.starts_with("gpm")),
        "{unanswered:?}"
    );
}

#[tokio::test]
async fn an_idle_gpu_is_idle_and_not_dead() {
    let samples = read_once("h100x1:idle").await;
    let busy = samples["gpu_utilization_ratio{gpu=\"0\",node=\"n1\"}"];
    assert!((0.0..0.1).contains(&busy), "{busy}");
}

#[tokio::test]
async fn what_a_gpu_cannot_answer_is_in_the_inventory() {
    let folder = folder();
    let collector = Collector::start().await;
    let agent = Running::start(AgentConfig {
        nvml: simulated(folder.path(), "a100x1:healthy"),
        ..config_towards(folder.path(), &collector.url())
    });
    until("a hello", || !collector.received().inventories.is_empty()).await;
    let gpu = collector.received().inventories[0].gpus[0].clone();
    assert!(!gpu.gpm && gpu.unanswered.contains(&"gpm".to_owned()), "{gpu:?}");
    assert!(
        !gpu.unanswered.contains(&"memory".to_owned()) && gpu.virtualization.is_empty(),
        "{gpu:?}"
    );
    agent.stop().await;
}

#[tokio::test]
async fn the_seconds_before_a_fault_are_sent_at_ten_readings_each() {
    let folder = folder();
    let collector = Collector::start().await;
    let agent = Running::start(AgentConfig {
        nvml: simulated(folder.path(), "h100x2:lost,gpu=1,after=8s"),
        ..config_towards(folder.path(), &collector.url())
    });
    let power = "gpu_burst_power_watts{gpu=\"0\"}";
    until("the burst", || collector.received().values(power).len() > 50).await;
    check_burst(&collector, power);
    agent.stop().await;
}

fn check_burst(collector: &Collector, power: &str) {
    let received = collector.received();
    let fault = received
        .events
        .iter()
        .find(|event| event.kind == "gpu_lost")
        .unwrap()
        .at_ms;
    let times: Vec<i64> = received.series[power].keys().copied().collect();
    let before = times.iter().filter(|at| **at < fault).count();
    assert!(before >= 20, "{before} readings before the fault");
    let mut steps: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    steps.sort_unstable();
    let median = steps[steps.len() / 2];
    assert!((95..=160).contains(&median), "a reading each {median} ms");
    let busy = received.values("gpu_burst_sm_active_ratio{gpu=\"1\"}");
    assert!(busy.iter().any(|ratio| (0.01..=1.0).contains(ratio)), "{busy:?}");
    assert!(
        !received
            .values("gpu_burst_transmit_bytes_per_second{gpu=\"0\", link=\"nvlink\"}")
            .is_empty()
    );
}

#[tokio::test]
async fn what_an_alert_asks_for_is_sent_at_ten_readings_each_second() {
    let folder = folder();
    let collector = Collector::start().await;
    collector.behave(Behaviour {
        wants_burst: true,
        ..Behaviour::default()
    });
    let agent = Running::start(AgentConfig {
        nvml: simulated(folder.path(), "h100x1:healthy"),
        ..config_towards(folder.path(), &collector.url())
    });
    let power = "gpu_burst_power_watts{gpu=\"0\"}";
    until("the burst", || collector.received().values(power).len() > 30).await;
    agent.stop().await;
}

#[tokio::test]
async fn without_a_fault_no_burst_is_sent() {
    let samples = read_once("h100x1:healthy").await;
    assert!(!samples.keys().any(|series| series.starts_with("gpu_burst_")));
}

#[tokio::test]
async fn the_instances_of_a_divided_gpu_have_series_of_their_own() {
    let samples = read_once("h100x1:mig,instances=3g.40gb+3g.40gb,after=0s").await;
    let of = |metric: &str, instance: &str| samples[&with(metric, "instance", instance)];
    for instance in ["1/0", "2/0"] {
        let (used, total) = (
            of("gpu_mig_memory_used_bytes", instance),
            of("gpu_mig_memory_total_bytes", instance),
        );
        assert!(
            used > 0.0 && used < total && total < 45e9,
            "{instance}: {used} of {total}"
        );
        let busy = of("gpu_mig_sm_active_ratio", instance);
        assert!((0.0..=1.0).contains(&busy), "{instance}: {busy}");
    }
    let infos = samples.keys().filter(|series| series.starts_with("gpu_mig_info"));
    assert_eq!(infos.count(), 2);
}

#[tokio::test]
async fn an_undivided_gpu_has_no_instances() {
    let samples = read_once("h100x1:healthy").await;
    assert!(!samples.keys().any(|series| series.starts_with("gpu_mig_")));
}

/// Returns true if a series is about GPUs, their links or the switches between them.
fn is_of_gpus(name: &str) -> bool {
    ["gpu_", "link_", "nvswitch_"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Returns the series of GPUs that a text names in backticks.
fn named(text: &str) -> std::collections::BTreeSet<&str> {
    let codes = text.split('`').skip(1).step_by(2);
    codes.filter(|code| is_of_gpus(code)).collect()
}

#[test]
fn the_pages_on_signals_and_the_catalogue_name_the_same_series() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages =
        ["signals.md", "nvml-fields.md"].map(|page| std::fs::read_to_string(docs.join(page)).unwrap());
    let documented: std::collections::BTreeSet<&str> = pages.iter().flat_map(|page| named(page)).collect();
    let catalogue = domain::metric::CATALOGUE.iter().map(|metric| metric.name);
    assert_eq!(documented, catalogue.filter(|name| is_of_gpus(name)).collect());
}
