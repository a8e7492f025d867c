//! Tests what a collector receives through outages, refusals, restarts and wrong tokens.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use agent::{AgentConfig, Secret};

use crate::collector::{Behaviour, Collector};
use crate::support::{Running, config_towards, folder, until};

const LOAD: &str = "node_load1";

/// Returns true if there is a sample for each whole second between the first and the last, except for the first, unaligned one.
fn gapless(times: &[i64]) -> bool {
    times.windows(2).skip(1).all(|pair| pair[1] - pair[0] == 1_000)
}

fn times(collector: &Collector) -> Vec<i64> {
    collector
        .received()
        .series
        .get(LOAD)
        .map(|samples| samples.keys().copied().collect())
        .unwrap_or_default()
}

#[tokio::test]
async fn the_join_token_is_exchanged_once_for_a_credential_that_only_its_user_can_read() {
    let folder = folder();
    let collector = Collector::start().await;
    let agent = Running::start(config_towards(folder.path(), &collector.url()));
    until("samples", || !times(&collector).is_empty()).await;
    agent.stop().await;
    let credential = folder.path().join("data/credential");
    assert_eq!(std::fs::read_to_string(&credential).unwrap(), "lsc_credential");
    assert_eq!(credential.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let agent = Running::start(AgentConfig {
        join_token: None,
        ..config_towards(folder.path(), &collector.url())
    });
    until("the credential", || collector.received().tokens.len() >= 2).await;
    agent.stop().await;
    assert_eq!(
        collector.received().tokens,
        ["Bearer lsj_test", "Bearer lsc_credential"]
    );
}

#[tokio::test]
async fn the_join_token_replaces_a_credential_that_is_no_longer_known() {
    let folder = folder();
    std::fs::create_dir_all(folder.path().join("data")).unwrap();
    std::fs::write(folder.path().join("data/credential"), "lsc_forgotten").unwrap();
    let collector = Collector::start().await;
    let agent = Running::start(config_towards(folder.path(), &collector.url()));
    until("samples", || !times(&collector).is_empty()).await;
    agent.stop().await;
    assert_eq!(
        collector.received().tokens,
        ["Bearer lsc_forgotten", "Bearer lsj_test"]
    );
}

#[tokio::test]
async fn an_agent_with_nothing_to_show_does_not_start() {
    let folder = folder();
    let config = |url: &str, join_token| AgentConfig {
        join_token,
        ..config_towards(folder.path(), url)
    };
    let start = |config| agent::run(config, tokio_util::sync::CancellationToken::new());
    let error = start(config("http://127.0.0.1:1", None))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("lockstep token join"), "{error}");
    let token = || Some(Secret::new("lsj_test"));
    let error = start(config("collector:8470", token()))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("http://"), "{error}");
    let error = start(config("https://127.0.0.1:1", token()))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("--tls-ca"), "{error}");
}

#[tokio::test]
async fn two_agents_do_not_share_a_folder() {
    let folder = folder();
    let collector = Collector::start().await;
    let agent = Running::start(config_towards(folder.path(), &collector.url()));
    until("samples", || !times(&collector).is_empty()).await;
    let second = agent::run(
        config_towards(folder.path(), &collector.url()),
        Default::default(),
    )
    .await;
    assert!(matches!(second, Err(agent::AgentError::Running { .. })));
    agent.stop().await;
}

#[tokio::test]
async fn an_outage_leaves_no_gap() {
    let folder = folder();
    let before = Collector::start().await;
    let (url, address) = (before.url(), before.address);
    let agent = Running::start(config_towards(folder.path(), &url));
    until("samples", || times(&before).len() >= 2).await;
    let seen = times(&before);
    drop(before);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = Collector::start_at(address).await;
    let newest = *seen.last().unwrap();
    until("live samples", || {
        times(&after).last().is_some_and(|last| *last > newest + 4_000)
    })
    .await;
    until("no gap", || {
        let mut all = seen.clone();
        all.extend(times(&after).iter().filter(|at| **at > newest));
        gapless(&all)
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn live_samples_are_sent_before_the_backlog_of_an_earlier_agent() {
    let folder = folder();
    let silent = Collector::start().await;
    silent.behave(Behaviour {
        silent: true,
        ..Behaviour::default()
    });
    let address = silent.address;
    let agent = Running::start(config_towards(folder.path(), &silent.url()));
    until("unacknowledged batches", || silent.received().batches.len() >= 3).await;
    agent.stop().await;
    let unacknowledged = silent.received().batches.clone();
    drop(silent);

    let collector = Collector::start_at(address).await;
    let agent = Running::start(config_towards(folder.path(), &collector.url()));
    // The batches have the same numbers; the last number stands for all joined ones. So a collector that already has them recognises them.
    until("the backlog", || {
        let received = collector.received();
        let stood_for = |(segment, seq): &(String, u64)| {
            received
                .batches
                .iter()
                .any(|(name, last)| name == segment && last >= seq)
        };
        unacknowledged.iter().all(stood_for)
    })
    .await;
    until("live samples", || {
        collector
            .received()
            .batches
            .iter()
            .any(|(segment, _)| *segment != unacknowledged[0].0)
    })
    .await;
    agent.stop().await;
    for entry in std::fs::read_dir(folder.path().join("data/spool")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            !name.contains(&unacknowledged[0].0),
            "an acknowledged segment is left: {name}"
        );
    }
}

#[tokio::test]
async fn a_collector_that_hangs_up_again_and_again_gets_everything() {
    let folder = folder();
    let collector = Collector::start().await;
    collector.behave(Behaviour {
        close_after: Some(2),
        ..Behaviour::default()
    });
    let agent = Running::start(config_towards(folder.path(), &collector.url()));
    until("several connections", || {
        collector.received().inventories.len() >= 4
    })
    .await;
    collector.behave(Behaviour::default());
    let newest = times(&collector).last().copied().unwrap_or_default();
    until("live samples", || {
        times(&collector)
            .last()
            .is_some_and(|last| *last > newest + 1_000)
    })
    .await;
    until("no gap", || gapless(&times(&collector))).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_refused_batch_is_counted_and_the_next_ones_arrive() {
    let folder = folder();
    let collector = Collector::start().await;
    collector.behave(Behaviour {
        refuse_seq: Some(2),
        ..Behaviour::default()
    });
    let agent = Running::start(config_towards(folder.path(), &collector.url()));
    let dropped = || {
        collector
            .received()
            .values("lockstep_agent_spool_dropped_samples_total")
    };
    until("the count", || dropped().last().is_some_and(|count| *count > 0.0)).await;
    let (first, _) = collector.received().batches[0].clone();
    until("later batches", || {
        collector.received().batches.contains(&(first.clone(), 4))
    })
    .await;
    assert!(!collector.received().batches.contains(&(first, 2)));
    agent.stop().await;
}

#[tokio::test]
async fn a_clock_that_is_seconds_off_is_measured_and_reported() {
    let folder = folder();
    let collector = Collector::start().await;
    let behind = |ms| Behaviour {
        clock_ahead_ms: ms,
        ..Behaviour::default()
    };
    collector.behave(behind(-7_000));
    let agent = Running::start(config_towards(folder.path(), &collector.url()));
    let offset = || {
        collector
            .received()
            .values("lockstep_agent_clock_offset_seconds")
            .last()
            .copied()
    };
    let near = |expected: f64| offset().is_some_and(|offset| (offset - expected).abs() < 0.25);
    until("seven seconds ahead", || near(7.0)).await;
    // On a busy machine the first exchanges are slow. The fastest one of the last minute counts.
    let delays = || collector.received().values("lockstep_agent_clock_delay_seconds");
    until("a fast exchange", || {
        delays().last().is_some_and(|delay| *delay < 0.5)
    })
    .await;
    assert!(delays().iter().all(|delay| *delay >= 0.0), "{:?}", delays());
    agent.stop().await;
}
