//! Tests of scenarios as tables: what GPUs show at given times, and what must be true at all times.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::ecc::{Errors, Span};
use super::fault::{CallEffect, MemoryKind};
use super::fields::{self, ALL_LINKS, Value};
use super::gpm::{self, Scope};
use super::gpu::Gpu;
use super::node::Node;
use super::pcie::Direction;
use super::power::{Clock, reason};
use super::samples;
use super::spec::Spec;
use super::status::Status;

fn node(spec: &str) -> Node {
    Node::new(&Spec::parse(spec, |_| Err("no file is needed".to_owned())).unwrap())
}

/// A node with the incidents of these lines.
fn scripted(machine: &str, lines: &str) -> Node {
    let spec = Spec::parse(&format!("{machine}:file=lines"), |_| Ok(lines.to_owned()));
    Node::new(&spec.unwrap_or_else(|error| panic!("{error}")))
}

fn metric(gpu: &Gpu, id: u32, from: f64, to: f64) -> Result<f64, Status> {
    gpm::metric(gpu, Scope::Gpu, id, from, to)
}

fn field(gpu: &Gpu, id: u32, scope: u32, t: f64) -> Result<u64, Status> {
    fields::read(gpu, id, scope, t).map(|value| match value {
        Value::Unsigned(value) => u64::from(value),
        Value::Unsigned64(value) => value,
        Value::Signed(value) => value as u64,
    })
}

const SPECS: [&str; 19] = [
    "h100x8",
    "h200x1",
    "b200x8",
    "a100x8",
    "rtx4090x2",
    "h100x8:idle",
    "rtx4090x2:idle",
    "h100x4:throttle,gpu=1,for=20s",
    "h100x4:memory-pressure,for=20s",
    "h100x4:ecc,for=20s",
    "h100x4:xid,for=20s",
    "h100x4:link-down,gpu=2,link=3,for=20s",
    "b200x4:link-down,gpu=2,link=3,for=20s",
    "a100x4:lost,for=20s",
    "h100x4:throttle,reason=power,for=20s",
    "h100x4:ecc,where=sram,for=20s",
    "h100x4:link-errors,for=20s",
    "h100x4:pcie-degraded,for=20s",
    "h100x4:mig,gpu=0-1,for=20s",
];

/// Many overlapping incidents.
const BAD_DAY: &str = "
    5s  throttle gpu=0 for=20s
    7s  throttle gpu=1 for=9s reason=power-brake
    8s  link-down gpu=2 link=3 for=5s
    9s  link-down gpu=2 link=4 for=30s
    10s link-errors gpu=2 link=3 rate=50 for=12s
    15s link-down gpu=2 link=3 for=1s
    16s idle for=4s
    18s lost gpu=3 for=10s
    19s ecc gpu=1 for=8s
    21s ecc gpu=1 where=sram for=25s
    22s mig gpu=2 for=6s
    30s pcie-degraded gpu=0 width=4 generation=2 for=9s
    31s memory-pressure for=3s
    40s mig gpu=2 instances=3g.40gb+3g.40gb for=5s
";

fn nodes() -> Vec<(&'static str, Node)> {
    let mut nodes: Vec<_> = SPECS.iter().map(|spec| (*spec, node(spec))).collect();
    nodes.push(("a bad day", scripted("h100x4", BAD_DAY)));
    nodes
}

#[test]
fn gauges_stay_within_the_model() {
    for (spec, node) in nodes() {
        for gpu in &node.gpus {
            for step in 0..300 {
                let t = f64::from(step) * 0.37;
                check_gauges(spec, gpu, t);
            }
        }
    }
}

fn check_gauges(spec: &str, gpu: &Gpu, t: f64) {
    let at = format!("{spec} gpu {} at {t}", gpu.index);
    let profile = gpu.profile;
    let memory = gpu.memory(t);
    assert_eq!(memory.total, memory.reserved + memory.used + memory.free, "{at}");
    assert!(
        gpu.utilization(t) <= 100 && gpu.memory_utilization(t) <= 100,
        "{at}"
    );
    let watts = gpu.power_mw(t, 1.0) / 1_000;
    assert!(
        (profile.power_idle_w - 1..=profile.power_default_w).contains(&watts),
        "{at}: {watts} W"
    );
    let degrees = gpu.temperature(t);
    assert!(
        (25..profile.temperature_shutdown).contains(&degrees),
        "{at}: {degrees} °C"
    );
    for clock in [Clock::Graphics, Clock::Sm, Clock::Memory, Clock::Video] {
        let mhz = gpu.clock_mhz(clock, t);
        assert!(
            mhz > 0 && mhz <= gpu.clock_max_mhz(clock),
            "{at}: {clock:?} {mhz}"
        );
    }
}

#[test]
fn counters_never_run_backwards() {
    for (spec, node) in nodes() {
        for gpu in &node.gpus {
            let mut last = counters(gpu, -1.0);
            for step in 0..4_000 {
                let t = f64::from(step) * 0.0137;
                let now = counters(gpu, t);
                assert!(
                    now.iter().zip(&last).all(|(now, last)| now >= last),
                    "{spec} gpu {} at {t}: {last:?} then {now:?}",
                    gpu.index
                );
                last = now;
            }
        }
    }
}

fn counters(gpu: &Gpu, t: f64) -> Vec<u64> {
    let ids = [
        (138, ALL_LINKS),
        (141, ALL_LINKS),
        (138, 3),
        (202, 3),
        (83, 0),
        (197, 0),
        (198, 0),
        (163, 3),
        (3, 0),
        (4, 0),
        (74, 0),
        (75, 0),
        (94, 0),
        (271, 0),
    ];
    ids.iter()
        .filter_map(|(id, scope)| field(gpu, *id, *scope, t).ok())
        .collect()
}

#[test]
fn healthy_node_is_inside_every_target_band() {
    for spec in ["h100x8", "h200x2", "b200x8"] {
        for gpu in &node(spec).gpus {
            for t in [0.0, 1.3, 77.7] {
                let memory = gpu.memory(t);
                let share = (memory.used + memory.reserved) as f64 / memory.total as f64;
                assert!((0.78..0.82).contains(&share), "{spec} memory {share}");
                assert!(gpu.utilization(t) >= 90);
            }
            assert!((85.0..=100.0).contains(&metric(gpu, 2, 0.0, 30.0).unwrap()));
            let nvlink = gpu.nvlink().unwrap();
            let bytes = (field(gpu, 138, ALL_LINKS, 30.0).unwrap() - field(gpu, 138, ALL_LINKS, 0.0).unwrap())
                as f64
                * 1024.0;
            let max = f64::from(nvlink.links * nvlink.megabytes_per_second) * 1e6 * 30.0;
            assert!(
                (0.6..0.8).contains(&(bytes / max)),
                "{spec} nvlink {}",
                bytes / max
            );
            assert_eq!(gpu.clock_reasons(5.0), 0);
            assert_eq!(gpu.ecc(Span::Aggregate, 1e6), Errors::default());
        }
    }
}

#[test]
fn idle_node_does_nothing() {
    for gpu in &node("h100x2:idle").gpus {
        assert_eq!((gpu.utilization(9.0), gpu.processes(9.0).len()), (0, 0));
        assert_eq!(gpu.clock_reasons(9.0), reason::GPU_IDLE);
        assert_eq!(gpu.power_mw(9.0, 1.0) / 1_000, gpu.profile.power_idle_w);
        assert_eq!(field(gpu, 138, ALL_LINKS, 9.0), Ok(0));
        assert_eq!(samples::since(gpu, 1, 0.0, 60.0), Err(Status::NotFound));
    }
    assert_eq!(node("rtx4090x1:idle").gpus[0].performance_state(9.0), 8);
}

#[test]
fn throttle_heats_one_gpu_and_slows_all() {
    let node = node("h100x8:throttle,gpu=3,after=30s,for=60s");
    let (hot, cool) = (&node.gpus[3], &node.gpus[4]);
    for (t, throttled) in [(29.0, false), (31.0, true), (89.0, true), (91.0, false)] {
        assert_eq!(
            hot.clock_reasons(t) & reason::HW_THERMAL != 0,
            throttled,
            "at {t}"
        );
        assert_eq!(hot.clock_mhz(Clock::Sm, t) < 1_200, throttled, "at {t}");
        assert_eq!(cool.clock_reasons(t), 0);
    }
    assert!(hot.temperature(60.0) >= 88 && cool.temperature(60.0) < 70);
    assert!(hot.temperature(120.0) < 70, "it cools again");
    for gpu in [hot, cool] {
        let rate = |from, to| metric(gpu, 60, from, to).unwrap();
        let slowed = rate(35.0, 85.0) / rate(0.0, 28.0);
        assert!((0.5..0.6).contains(&slowed), "{slowed}");
    }
    assert_eq!(field(hot, 75, 0, 40.0), Ok(10_000_000_000));
}

#[test]
fn memory_pressure_fills_memory() {
    let share = |gpu: &Gpu, t| 1.0 - gpu.memory(t).free as f64 / gpu.memory(t).total as f64;
    let node = node("h100x2:memory-pressure,after=5s");
    for gpu in &node.gpus {
        assert!(share(gpu, 4.0) < 0.82 && (0.975..0.985).contains(&share(gpu, 6.0)));
    }
}

#[test]
fn ecc_storm_ends_in_an_uncorrectable_error() {
    let node = node("h100x2:ecc,gpu=1,after=10s");
    let gpu = &node.gpus[1];
    for (t, corrected, uncorrected) in [(9.0, 0, 0), (15.0, 200, 0), (31.0, 840, 1)] {
        assert_eq!(
            (field(gpu, 3, 0, t), field(gpu, 4, 0, t)),
            (Ok(corrected), Ok(uncorrected)),
            "at {t}"
        );
        assert_eq!(
            (field(gpu, 143, 0, t), field(gpu, 230, 0, t)),
            (Ok(uncorrected), Ok(uncorrected)),
            "at {t}"
        );
        assert_eq!(field(&node.gpus[0], 3, 0, t), Ok(0));
    }
    let xids: Vec<u64> = node
        .events
        .iter()
        .filter(|event| event.data > 1)
        .map(|event| event.data)
        .collect();
    assert_eq!(xids, [48, 63, 94]);
}

#[test]
fn xid_79_takes_the_gpu_and_stops_the_job() {
    let node = node("h100x4:xid,gpu=2,after=10s");
    assert_eq!(node.gpus[2].call_effect(9.0), CallEffect::Normal);
    assert_eq!(node.gpus[2].call_effect(10.0), CallEffect::Lost);
    assert_eq!(
        (node.events[0].gpu, node.events[0].data, node.events[0].at),
        (2, 79, 10.0)
    );
    let other = &node.gpus[0];
    assert_eq!(metric(other, 60, 15.0, 25.0), Ok(0.0));
    assert!(
        other.utilization(20.0) == 100 && other.power_mw(20.0, 1.0) < 200_000,
        "it spins"
    );
}

#[test]
fn link_down_stops_one_link_and_leaves_errors() {
    for (spec, errors) in [
        ("h100x4:link-down,gpu=1,link=5", 163),
        ("b200x4:link-down,gpu=1,link=5", 221),
    ] {
        let node = node(spec);
        let gpu = &node.gpus[1];
        assert_eq!(
            (
                gpu.link_is_up(5, 9.0),
                gpu.link_is_up(5, 11.0),
                gpu.link_is_up(4, 11.0)
            ),
            (Ok(true), Ok(false), Ok(true))
        );
        assert_eq!((gpu.links_up(9.0), gpu.links_up(11.0)), (18, 17));
        assert_eq!(
            field(gpu, 138, 5, 11.0),
            field(gpu, 138, 5, 60.0),
            "nothing passes"
        );
        assert!(field(gpu, 138, 4, 11.0).unwrap() < field(gpu, 138, 4, 60.0).unwrap());
        assert_eq!(field(gpu, errors, 5, 9.0), Ok(0));
        assert!(field(gpu, errors, 5, 11.0).unwrap() > 0);
        assert_eq!(field(gpu, 164, 5, 11.0), Ok(0));
        assert_eq!(node.gpus[0].links_up(11.0), 18);
    }
}

#[test]
fn models_have_what_they_have_in_life() {
    let (h100, b200, a100, rtx) = (node("h100x2"), node("b200x2"), node("a100x2"), node("rtx4090x2"));
    let cases = [
        // (gpu, links, link speed of link 0, replay field 161, packets field 201)
        (
            &h100.gpus[0],
            Ok(18),
            Ok(26_562),
            Ok(0),
            Err(Status::NotSupported),
        ),
        (
            &b200.gpus[0],
            Ok(18),
            Ok(53_125),
            Err(Status::NotSupported),
            Ok(()),
        ),
        (
            &a100.gpus[0],
            Ok(12),
            Ok(25_000),
            Ok(0),
            Err(Status::NotSupported),
        ),
        (
            &rtx.gpus[0],
            Err(Status::NotSupported),
            Err(Status::NotSupported),
            Err(Status::NotSupported),
            Err(Status::NotSupported),
        ),
    ];
    for (gpu, links, speed, replays, packets) in cases {
        let name = gpu.profile.name;
        assert_eq!(field(gpu, 91, 0, 1.0), links, "{name}");
        assert_eq!(field(gpu, 164, 0, 1.0), speed, "{name}");
        assert_eq!(field(gpu, 161, 0, 1.0), replays, "{name}");
        assert_eq!(field(gpu, 201, 0, 1.0).map(|_| ()), packets, "{name}");
        assert!(
            field(gpu, 198, 0, 2.0).unwrap() > field(gpu, 198, 0, 1.0).unwrap(),
            "{name}"
        );
    }
    assert_eq!(
        field(&h100.gpus[0], 138, 18, 1.0),
        Err(Status::InvalidArgument),
        "a link too far"
    );
    assert_eq!(field(&h100.gpus[0], 9_999, 0, 1.0), Err(Status::NotSupported));
    assert_eq!(
        field(&rtx.gpus[0], 3, 0, 1.0),
        Err(Status::NotSupported),
        "ECC is off"
    );
    assert!(rtx.gpus[0].fan_percent(1.0).is_some() && h100.gpus[0].fan_percent(1.0).is_none());
}

#[test]
fn one_gpu_alone_sends_nothing_over_nvlink() {
    assert_eq!(field(&node("h200x1").gpus[0], 138, ALL_LINKS, 100.0), Ok(0));
    assert!(field(&node("h200x1,nodes=2").gpus[0], 138, ALL_LINKS, 100.0).unwrap() > 0);
}

#[test]
fn sum_of_links_is_the_aggregate() {
    let node = node("h100x8");
    let gpu = &node.gpus[0];
    let links: u64 = (0..18).map(|link| field(gpu, 138, link, 5.0).unwrap()).sum();
    let all = field(gpu, 138, ALL_LINKS, 5.0).unwrap();
    assert!(all.abs_diff(links) <= 18, "{all} and {links}");
}

#[test]
fn gpm_averages_agree_with_counters() {
    let node = node("h100x8");
    let gpu = &node.gpus[0];
    let counted =
        (field(gpu, 139, ALL_LINKS, 8.0).unwrap() - field(gpu, 139, ALL_LINKS, 7.0).unwrap()) as f64 / 1024.0;
    let measured = metric(gpu, 60, 7.0, 8.0).unwrap();
    assert!(
        (counted / measured - 1.0).abs() < 1e-6,
        "{counted} and {measured}"
    );
    // Each link in both directions: 62 and 63 are those of link 0.
    for (id, link) in [(62, 0), (63, 0), (73, 5), (96, 17)] {
        let counted =
            (field(gpu, 139, link, 8.0).unwrap() - field(gpu, 139, link, 7.0).unwrap()) as f64 / 1024.0;
        let measured = metric(gpu, id, 7.0, 8.0).unwrap();
        assert!(
            (counted / measured - 1.0).abs() < 1e-5,
            "{id}: {counted} and {measured}"
        );
    }
    let pcie = (gpu.pcie_bytes(Direction::Receive, 8.0) - gpu.pcie_bytes(Direction::Receive, 7.0)) as f64
        / 1_048_576.0;
    assert!((pcie / metric(gpu, 21, 7.0, 8.0).unwrap() - 1.0).abs() < 1e-6);
}

#[test]
fn gpm_has_the_limits_of_the_hardware() {
    let node = node("h100x8");
    let gpu = &node.gpus[0];
    assert!(metric(gpu, 2, 5.0, 5.001).unwrap().is_nan(), "1 ms is not valid");
    assert!(metric(gpu, 2, 5.0, 5.0).unwrap().is_nan());
    assert_eq!(metric(gpu, 2, 6.0, 5.0), Err(Status::InvalidArgument));
    assert_eq!(metric(gpu, 248, 5.0, 6.0), Err(Status::NotSupported));
    assert!(metric(gpu, 97, 5.0, 6.0).unwrap() > 0.0);
    for id in (1..=13).chain([20, 21]).chain(60..=97) {
        assert!(!gpm::label(id).short.is_empty(), "{id}");
    }
}

#[test]
fn a_field_may_be_left_without_an_answer() {
    let node = node("h100x8:healthy,without=138+139");
    let gpu = &node.gpus[0];
    for scope in [ALL_LINKS, 0] {
        assert_eq!(field(gpu, 138, scope, 8.0), Err(Status::NotSupported));
        assert!(field(gpu, 140, scope, 8.0).is_ok());
    }
    assert!(metric(gpu, 62, 7.0, 8.0).unwrap() > 0.0, "and GPM still tells");
}

#[test]
fn sample_ring_gives_only_what_is_new() {
    let node = node("h100x8");
    let gpu = &node.gpus[0];
    let all = samples::since(gpu, 0, f64::NEG_INFINITY, 100.0).unwrap();
    assert_eq!(all.len(), samples::RING);
    assert!(all.windows(2).all(|pair| pair[0].t < pair[1].t));
    let newest = all[all.len() - 1].t;
    assert_eq!(samples::since(gpu, 0, newest, 100.0), Err(Status::NotFound));
    assert_eq!(samples::since(gpu, 0, newest, 101.0).unwrap().len(), 7);
    assert_eq!(samples::since(gpu, 99, 0.0, 100.0), Err(Status::InvalidArgument));
}

#[test]
fn nodes_and_seeds_make_other_machines_but_the_same_spec_the_same() {
    let uuid = |spec: &str| node(spec).gpus[0].identity.uuid.clone();
    assert_eq!(uuid("h100x8"), uuid("h100x8:throttle"));
    assert_ne!(uuid("h100x8,nodes=2,node=1"), uuid("h100x8,nodes=2,node=0"));
    assert_ne!(uuid("h100x8,seed=1"), uuid("h100x8"));
    let reading = |spec: &str| counters(&node(spec).gpus[1], 12.34);
    assert_eq!(reading("h100x8"), reading("h100x8"));
}

#[test]
fn gpus_are_found_by_every_name() {
    let node = node("h100x8");
    for gpu in &node.gpus {
        assert_eq!(node.with_uuid(&gpu.identity.uuid).unwrap().index, gpu.index);
        assert_eq!(node.at_bus_id(&gpu.identity.bus_id()).unwrap().index, gpu.index);
        assert_eq!(
            node.at_bus_id(&gpu.identity.bus_id_legacy().to_lowercase())
                .unwrap()
                .index,
            gpu.index
        );
    }
    assert!(node.with_uuid("GPU-0").is_none() && node.at_bus_id("0000:00:00.0").is_none());
    assert_eq!((node.socket(&node.gpus[3]), node.socket(&node.gpus[4])), (0, 1));
}

// === Scenarios with several incidents ===

#[test]
fn incidents_come_one_after_another() {
    let node = scripted(
        "h100x4",
        "10s throttle gpu=1 for=10s reason=power\n15s throttle gpu=2 for=10s reason=power-brake\n40s throttle gpu=1 for=5s",
    );
    let reasons = |gpu: usize, t| node.gpus[gpu].clock_reasons(t);
    let hot = reason::HW_SLOWDOWN | reason::HW_THERMAL | reason::SW_THERMAL;
    for (t, of_1, of_2) in [
        (9.0, 0, 0),
        (12.0, reason::SW_POWER_CAP, 0),
        (
            17.0,
            reason::SW_POWER_CAP,
            reason::HW_SLOWDOWN | reason::HW_POWER_BRAKE,
        ),
        (22.0, 0, reason::HW_SLOWDOWN | reason::HW_POWER_BRAKE),
        (30.0, 0, 0),
        (42.0, hot, 0),
        (46.0, 0, 0),
    ] {
        assert_eq!((reasons(1, t), reasons(2, t)), (of_1, of_2), "at {t}");
    }
    // The job has the pace of the slowest GPU: 0.8, then 0.5, then 0.55.
    let rate = |from, to| {
        metric(&node.gpus[0], 60, from, to).unwrap() / metric(&node.gpus[0], 60, 0.0, 9.6).unwrap()
    };
    for (from, to, pace) in [
        (10.0, 14.8, 0.8),
        (15.2, 24.8, 0.5),
        (26.0, 39.2, 1.0),
        (40.0, 44.8, 0.55),
    ] {
        let rate = rate(from, to);
        assert!((rate - pace).abs() < 0.1, "{rate} from {from} to {to}");
    }
    // Nanoseconds by cause: power, heat, power brake in the newer numbering.
    let spent = |gpu: usize, id| field(&node.gpus[gpu], id, 0, 100.0).unwrap() / 1_000_000_000;
    assert_eq!((spent(1, 74), spent(1, 75), spent(1, 271)), (10, 5, 0));
    assert_eq!((spent(2, 74), spent(2, 75), spent(2, 271)), (0, 0, 10));
}

#[test]
fn a_pause_leaves_the_gpus_idle_and_the_job_comes_back() {
    let node = scripted("h100x2", "10s idle for=10s");
    let gpu = &node.gpus[1];
    for (t, working) in [(9.0, true), (15.0, false), (25.0, true)] {
        assert_eq!(gpu.processes(t).len() == 1, working, "at {t}");
        assert_eq!(gpu.memory(t).used > 0, working, "at {t}");
        assert_eq!(gpu.utilization(t) > 85, working, "at {t}");
        assert_eq!(gpu.clock_reasons(t) == reason::GPU_IDLE, !working, "at {t}");
    }
    assert_eq!(metric(gpu, 2, 11.0, 19.0), Ok(0.0));
    assert_eq!(gpu.power_mw(15.0, 1.0) / 1_000, gpu.profile.power_idle_w);
}

#[test]
fn gpus_may_be_lost_and_found_more_than_once() {
    let node = scripted(
        "h100x2",
        "5s lost gpu=1 for=5s\n7s hang gpu=1 for=10s\n20s slow-call for=1s delay=5ms\n30s xid gpu=1",
    );
    let effects = |t| node.gpus[1].call_effect(t);
    assert_eq!(
        (effects(4.0), effects(8.0), effects(12.0)),
        (CallEffect::Normal, CallEffect::Lost, CallEffect::HangsUntil(17.0))
    );
    assert!(
        matches!(effects(20.5), CallEffect::Slow(_))
            && effects(25.0) == CallEffect::Normal
            && effects(30.0) == CallEffect::Lost
    );
    assert!(
        matches!(node.gpus[0].call_effect(20.5), CallEffect::Slow(_))
            && node.gpus[0].call_effect(30.0) == CallEffect::Normal
    );
}

#[test]
fn links_fail_one_by_one_and_make_errors_before() {
    let node = scripted(
        "h100x2",
        "5s link-errors link=3 rate=100 for=5s\n10s link-down link=3 for=10s\n15s link-down link=7",
    );
    let gpu = &node.gpus[0];
    let up: Vec<u32> = [9.0, 11.0, 16.0, 21.0].map(|t| gpu.links_up(t)).into();
    assert_eq!(up, [18, 17, 16, 17]);
    assert_eq!(field(gpu, 163, 3, 7.5), Ok(250), "errors a second");
    assert!(field(gpu, 163, 3, 10.0).unwrap() > 500 && field(gpu, 163, 4, 30.0) == Ok(0));
    let moved = |link, from, to| field(gpu, 138, link, to).unwrap() - field(gpu, 138, link, from).unwrap();
    assert!(moved(3, 5.0, 10.0) > 0 && moved(3, 10.1, 19.9) == 0 && moved(3, 20.0, 30.0) > 0);
    assert!(moved(7, 16.0, 60.0) == 0 && moved(0, 16.0, 60.0) > 0);
    let links: u64 = (0..18).map(|link| field(gpu, 138, link, 25.0).unwrap()).sum();
    assert!(field(gpu, 138, ALL_LINKS, 25.0).unwrap().abs_diff(links) <= 18);
}

#[test]
fn pcie_trains_down_and_sends_again() {
    let node = scripted("a100x2", "10s pcie-degraded gpu=1 width=4 generation=2 for=10s");
    let gpu = &node.gpus[1];
    for (t, width, generation, replays) in [(9.0, 16, 4, 0), (15.0, 4, 2, 15), (25.0, 16, 4, 30)] {
        assert_eq!(
            (gpu.pcie_width(t), gpu.pcie_generation(t)),
            (width, generation),
            "at {t}"
        );
        assert_eq!(field(gpu, 94, 0, t), Ok(replays), "at {t}");
    }
    assert_eq!(
        (node.gpus[0].pcie_width(15.0), field(&node.gpus[0], 94, 0, 15.0)),
        (16, Ok(0))
    );
}

#[test]
fn errors_in_sram_remap_no_row() {
    let node = scripted("h100x2", "10s ecc gpu=1 where=sram");
    let gpu = &node.gpus[1];
    for (t, corrected, uncorrected, too_many) in
        [(15.0, 10, 0, false), (30.0, 40, 1, false), (45.0, 70, 4, true)]
    {
        assert_eq!(
            gpu.ecc_in(MemoryKind::Sram, Span::Volatile, t),
            Errors {
                corrected,
                uncorrected
            },
            "at {t}"
        );
        assert_eq!(gpu.sram_threshold_exceeded(t), too_many, "at {t}");
        assert_eq!((gpu.rows_remapped(t), field(gpu, 12, 0, t)), (0, Ok(0)), "at {t}");
        assert_eq!(field(gpu, 4, 0, t), Ok(uncorrected), "the total has them");
    }
    let xids: Vec<u64> = node
        .events
        .iter()
        .map(|event| event.data)
        .filter(|data| *data > 1)
        .collect();
    assert_eq!(xids, [95]);
}

#[test]
fn counters_begin_again_with_the_driver() {
    let node = scripted("h100x1", "2s ecc for=6s\n20s driver-reload for=5s to=590.48.01");
    let gpu = &node.gpus[0];
    assert_eq!(
        (node.driver.at(19.0).to_string(), node.driver.at(26.0).to_string()),
        ("580.95.05".to_owned(), "590.48.01".to_owned())
    );
    assert!(field(gpu, 83, 0, 19.0).unwrap() > 1_000_000_000);
    assert!(
        field(gpu, 83, 0, 26.0).unwrap() < 1_000_000,
        "a second's millijoules"
    );
    assert!(field(gpu, 198, 0, 26.0).unwrap() < field(gpu, 198, 0, 19.0).unwrap());
    // Volatile errors are reset and the row is replaced; aggregate errors stay.
    let health = |t| [3, 4, 5, 6, 143, 144, 230].map(|id| field(gpu, id, 0, t).unwrap());
    assert_eq!(health(19.0), [240, 1, 240, 1, 1, 1, 1]);
    assert_eq!(health(26.0), [0, 0, 240, 1, 1, 0, 0]);
    assert!(gpu.processes(22.0).is_empty() && gpu.processes(26.0).len() == 1);
}

#[test]
fn a_partitioned_gpu_has_instances_instead_of_utilization() {
    let node = scripted(
        "h100x2",
        "10s mig gpu=1 instances=3g.40gb+2g.20gb+1g.10gb for=20s",
    );
    let (whole, gpu) = (&node.gpus[0], &node.gpus[1]);
    assert!(gpu.instances(9.0).is_none() && gpu.instances(31.0).is_none() && whole.instances(15.0).is_none());
    let instances = gpu.instances(15.0).unwrap();
    assert_eq!(
        instances.iter().map(|one| one.slice.name).collect::<Vec<_>>(),
        ["3g.40gb", "2g.20gb", "1g.10gb"]
    );
    assert_eq!(
        (gpu.utilization_rates(9.0).is_ok(), gpu.utilization_rates(15.0)),
        (true, Err(Status::NotSupported))
    );
    assert_eq!(samples::since(gpu, 1, 0.0, 15.0), Err(Status::NotSupported));
    assert!(samples::since(gpu, 0, 0.0, 15.0).is_ok(), "power is the board's");

    let processes = gpu.processes(15.0);
    let used: u64 = instances
        .iter()
        .map(|one| gpu.instance_memory(one, 15.0).used)
        .sum();
    assert_eq!(processes.iter().map(|process| process.memory).sum::<u64>(), used);
    assert_eq!(gpu.memory(15.0).used, used);
    assert_eq!(
        processes
            .iter()
            .map(|process| process.instance)
            .collect::<Vec<_>>(),
        [Some(1), Some(5), Some(13)]
    );
    assert!(
        processes
            .iter()
            .all(|process| gpu.process_name(process.pid, 15.0).is_some())
    );

    let active = |id| gpm::metric(gpu, Scope::Instance(id), 2, 15.0, 17.4).unwrap();
    assert!((50.0..95.0).contains(&active(1)) && (50.0..95.0).contains(&active(5)) && active(1) != active(5));
    for id in [20, 60, 62] {
        assert_eq!(
            gpm::metric(gpu, Scope::Instance(1), id, 15.0, 17.4),
            Err(Status::NotSupported),
            "{id}"
        );
    }
    let moved =
        |from, to| field(gpu, 138, ALL_LINKS, to).unwrap() - field(gpu, 138, ALL_LINKS, from).unwrap();
    assert!(moved(5.0, 9.0) > 0 && moved(10.1, 29.9) == 0 && moved(31.0, 35.0) > 0);
    let uuid = instances[2].uuid(gpu.noise);
    let (owner, found) = node.instance_with_uuid(&uuid, 15.0).unwrap();
    assert_eq!((owner.index, found.id), (1, 13));
    assert!(node.instance_with_uuid(&uuid, 31.0).is_none());
}

#[test]
fn lines_for_another_node_do_not_happen_here() {
    let text = "1s lost gpu=0 node=1\n1s lost gpu=1";
    let read = |_: &str| Ok(text.to_owned());
    let effects = |node: u32| {
        let spec = Spec::parse(&format!("h100x2:file=f,nodes=2,node={node}"), read).unwrap();
        let node = Node::new(&spec);
        [0, 1].map(|gpu: usize| node.gpus[gpu].call_effect(2.0))
    };
    assert_eq!(
        (effects(0), effects(1)),
        (
            [CallEffect::Normal, CallEffect::Lost],
            [CallEffect::Lost, CallEffect::Lost]
        )
    );
}
