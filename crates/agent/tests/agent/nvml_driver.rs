//! The driver of the GPUs: it goes away and comes back, another program needs the GPUs, and it is slow.
#![allow(
    unsafe_code,
    reason = "the test does to NVML what a driver change does: it shuts it down under the agent, by NVML's own C function"
)]

use std::ffi::{c_int, c_uint};
use std::time::Duration;

use agent::{AgentConfig, NvmlSource, release};
use libloading::Library;

use crate::collector::{Behaviour, Collector};
use crate::support::{Running, config, config_towards, folder, simulated, until};

/// `NVML_ERROR_UNINITIALIZED`.
const UNINITIALIZED: c_int = 1;

/// The library that the agent uses, opened by the test: the same file is the same library.
struct FromTheSide(Library);

impl FromTheSide {
    fn open(source: &NvmlSource) -> Self {
        let NvmlSource::Simulated {
            library: Some(path), ..
        } = source
        else {
            unreachable!()
        };
        // SAFETY: the simulator, which the agent loads too.
        Self(unsafe { Library::new(path) }.unwrap())
    }

    fn shut_down(&self) {
        // SAFETY: NVML's own signature.
        let code = unsafe {
            self.0
                .get::<unsafe extern "C" fn() -> c_int>(b"nvmlShutdown\0")
                .unwrap()()
        };
        assert_eq!(code, 0);
    }

    /// Returns true if NVML is in use in this process.
    fn is_in_use(&self) -> bool {
        type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
        let mut count = 0;
        // SAFETY: NVML's own signature, and the number is ours.
        let code = unsafe { self.0.get::<Count>(b"nvmlDeviceGetCount_v2\0").unwrap()(&mut count) };
        code != UNINITIALIZED
    }
}

#[tokio::test]
async fn an_unloaded_driver_is_released_and_found_again() {
    let folder = folder();
    let collector = Collector::start().await;
    let nvml = simulated(folder.path(), "h100x2:healthy");
    let side = FromTheSide::open(&nvml);
    let agent = Running::start(AgentConfig {
        nvml,
        ..config_towards(folder.path(), &collector.url())
    });
    let values = |series: &str| collector.received().values(series);
    until("readings", || values("gpu_power_watts{gpu=\"1\"}").len() > 1).await;
    side.shut_down();
    until("the event", || {
        collector.received().kinds().contains(&"nvml_gone")
    })
    .await;
    until("the end of its readings", || {
        let power = values("gpu_power_watts{gpu=\"1\"}");
        power.iter().any(|value| domain::series::is_stale(*value))
    })
    .await;
    until("its return", || {
        collector.received().kinds().contains(&"nvml_back")
    })
    .await;
    until("readings again", || {
        let (power, up) = (values("gpu_power_watts{gpu=\"1\"}"), values("gpu_up{gpu=\"1\"}"));
        power.last().is_some_and(|value| value.is_finite()) && up.last() == Some(&1.0)
    })
    .await;
    assert!(
        !collector.received().kinds().contains(&"gpu_lost"),
        "no GPU was lost"
    );
    agent.stop().await;
}

#[tokio::test]
async fn a_driver_that_is_reloaded_is_waited_for() {
    let folder = folder();
    let collector = Collector::start().await;
    let agent = Running::start(AgentConfig {
        nvml: simulated(folder.path(), "h100x1:driver-reload,after=3s,for=8s"),
        ..config_towards(folder.path(), &collector.url())
    });
    let values = |series: &str| collector.received().values(series);
    until("the end of the driver", || {
        collector.received().kinds().contains(&"nvml_gone")
    })
    .await;
    until("every GPU to be down", || {
        values("gpu_up{gpu=\"0\"}").contains(&0.0)
    })
    .await;
    until("its return", || {
        collector.received().kinds().contains(&"nvml_back")
    })
    .await;
    until("readings", || values("gpu_up{gpu=\"0\"}").last() == Some(&1.0)).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_library_that_does_not_match_the_driver_is_reported_with_a_remedy() {
    let folder = folder();
    let collector = Collector::start().await;
    let agent = Running::start(AgentConfig {
        nvml: simulated(folder.path(), "h100x1:driver-mismatch,after=0s"),
        ..config_towards(folder.path(), &collector.url())
    });
    until("the event", || !collector.received().events.is_empty()).await;
    let event = collector.received().events[0].clone();
    assert_eq!(event.kind, "nvml_version_mismatch");
    assert!(event.message.contains("restart the agent"), "{}", event.message);
    agent.stop().await;
}

#[tokio::test]
async fn released_gpus_are_free_until_they_are_given_back() {
    let folder = folder();
    let collector = Collector::start().await;
    let nvml = simulated(folder.path(), "h100x2:healthy");
    let side = FromTheSide::open(&nvml);
    let config = AgentConfig {
        nvml,
        ..config_towards(folder.path(), &collector.url())
    };
    let data = config.data_dir.clone();
    let agent = Running::start(config);
    let values = |series: &str| collector.received().values(series);
    until("readings", || !values("gpu_power_watts{gpu=\"1\"}").is_empty()).await;
    assert!(side.is_in_use());
    release::release(&data, Duration::from_secs(3_600)).await.unwrap();
    assert!(!side.is_in_use(), "NVML is shut down");
    until("the event", || {
        collector.received().kinds().contains(&"gpus_released")
    })
    .await;
    until("gpu_up to end", || {
        let up = values("gpu_up{gpu=\"1\"}");
        up.last().is_some_and(|value| domain::series::is_stale(*value))
    })
    .await;
    let seen = values("node_load1").len();
    until("host samples", || values("node_load1").len() > seen + 1).await;
    assert!(!side.is_in_use());
    release::end_release(&data).unwrap();
    until("them back", || {
        collector.received().kinds().contains(&"gpus_taken_back")
    })
    .await;
    until("readings", || values("gpu_up{gpu=\"1\"}").last() == Some(&1.0)).await;
    assert!(side.is_in_use() && !collector.received().kinds().contains(&"gpu_lost"));
    agent.stop().await;
}

#[tokio::test]
async fn a_release_ends_by_itself_and_outlives_the_agent() {
    let folder = folder();
    let nvml = simulated(folder.path(), "h100x1:healthy");
    let side = FromTheSide::open(&nvml);
    let config = AgentConfig {
        nvml,
        ..config(folder.path())
    };
    let agent = Running::start(config.clone());
    until("NVML", || side.is_in_use()).await;
    release::release(&config.data_dir, Duration::from_secs(3_600))
        .await
        .unwrap();
    agent.stop().await;
    let answer = config.data_dir.join("gpus.released");
    std::fs::remove_file(&answer).unwrap();
    let agent = Running::start(config.clone());
    until("the answer of the restarted agent", || answer.exists()).await;
    assert!(!side.is_in_use(), "a restarted agent keeps away too");
    // A shorter release replaces it. On a stalled machine it may be over before the agent sees it.
    let _seen_in_time = release::release(&config.data_dir, Duration::from_secs(2)).await;
    until("the end of the release", || side.is_in_use()).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_changed_inventory_is_sent_on_the_open_connection() {
    for (takes_more_hellos, connections) in [(true, 1), (false, 2)] {
        let folder = folder();
        let collector = Collector::start().await;
        collector.behave(Behaviour {
            takes_more_hellos,
            ..Behaviour::default()
        });
        let config = AgentConfig {
            nvml: simulated(folder.path(), "h100x1:healthy"),
            ..config_towards(folder.path(), &collector.url())
        };
        let agent = Running::start(config.clone());
        until("a hello", || !collector.received().inventories.is_empty()).await;
        release::release(&config.data_dir, Duration::from_secs(3_600))
            .await
            .unwrap();
        agent.stop().await;
        let before = collector.received().tokens.len();
        let agent = Running::start(config.clone());
        let gpus = || {
            collector
                .received()
                .inventories
                .last()
                .map(|last| last.gpus.len())
        };
        until("a hello without GPUs", || gpus() == Some(0)).await;
        release::end_release(&config.data_dir).unwrap();
        until("a hello with one", || gpus() == Some(1)).await;
        assert_eq!(collector.received().tokens.len() - before, connections);
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_slow_driver_is_read_less_often() {
    let folder = folder();
    let collector = Collector::start().await;
    let agent = Running::start(AgentConfig {
        nvml: simulated(folder.path(), "h100x1:slow-call,after=2s,delay=60ms"),
        ..config_towards(folder.path(), &collector.url())
    });
    let values = |series: &str| collector.received().values(series);
    until("a longer period", || {
        values("lockstep_agent_nvml_period_seconds")
            .iter()
            .any(|period| *period > 1.0)
    })
    .await;
    assert_eq!(values("lockstep_agent_nvml_period_seconds")[0], 1.0);
    until("rarer beats", || {
        values("lockstep_agent_burst_period_seconds")
            .iter()
            .any(|period| *period > 0.5)
    })
    .await;
    // A slow driver does not count as hung.
    assert!(!collector.received().kinds().contains(&"nvml_unresponsive"));
    until("its calls to be reported as slow", || {
        let p99 = values("lockstep_agent_nvml_call_p99_seconds");
        p99.iter().any(|seconds| (0.05..0.2).contains(seconds))
    })
    .await;
    agent.stop().await;
}
