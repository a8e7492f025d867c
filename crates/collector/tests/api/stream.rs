//! The event stream from the view of a browser tab.

use std::time::{Duration, Instant};

use domain::api::frames::{Decoder, Frame};
use domain::api::runs::LogSource;
use domain::api::session::Role;
use domain::api::stream::{Push, Request};
use domain::ident::{AttemptNo, Rank};
use domain::run::state::NodeReport;
use futures::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use wire::proto::{ControlUp, LogChunk, control_up};

use crate::harness::{ADMIN, Agent, DEADLINE, Server, answer, is_problem, until};
use crate::remote_write::{push, series};
use crate::runs::{Control, credential, start_ranks, submit};

/// The stream of one browser tab.
pub(crate) struct Tab(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Tab {
    async fn open(server: &Server, headers: &[(&'static str, &str)]) -> Result<Self, StatusCode> {
        Self::open_at(server, "/api/stream", headers).await
    }

    pub(crate) async fn open_at(
        server: &Server,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Self, StatusCode> {
        let mut request = server
            .url(path)
            .replace("http://", "ws://")
            .into_client_request()
            .unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        match connect_async(request).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(response)) => Err(response.status()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn as_admin(server: &Server) -> Self {
        Self::as_admin_at(server, "/api/stream").await
    }

    pub(crate) async fn as_admin_at(server: &Server, path: &str) -> Self {
        Self::open_at(server, path, &[("authorization", &format!("Bearer {ADMIN}"))])
            .await
            .unwrap()
    }

    async fn ask(&mut self, request: &Request) {
        self.0
            .send(Message::text(serde_json::to_string(request).unwrap()))
            .await
            .unwrap();
    }

    /// Returns the next push, or `None` when the collector closes.
    pub(crate) async fn next(&mut self) -> Option<Push> {
        loop {
            match tokio::time::timeout(DEADLINE, self.0.next()).await.unwrap() {
                Some(Ok(Message::Text(text))) => return Some(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// Returns the next binary message.
    async fn next_binary(&mut self) -> Vec<u8> {
        loop {
            match tokio::time::timeout(DEADLINE, self.0.next()).await.unwrap() {
                Some(Ok(Message::Binary(bytes))) => return bytes.to_vec(),
                Some(Ok(Message::Close(_)) | Err(_)) | None => panic!("the stream goes on"),
                Some(Ok(_)) => {}
            }
        }
    }

    /// Reads until `is_last`, and returns the number of run views, including the last push.
    async fn count_views(&mut self, is_last: impl Fn(&Push) -> bool) -> u32 {
        let mut views = 0;
        loop {
            let push = self.next().await.expect("the stream goes on");
            views += u32::from(matches!(push, Push::Run { .. }));
            if is_last(&push) {
                return views;
            }
        }
    }

    /// Returns the first push that `pick` accepts.
    pub(crate) async fn find<T>(&mut self, mut pick: impl FnMut(Push) -> Option<T>) -> T {
        loop {
            if let Some(found) = pick(self.next().await.expect("the stream goes on")) {
                return found;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tab_gets_the_lists_without_a_request() {
    let server = Server::start().await;
    let mut tab = Tab::as_admin(&server).await;
    assert!(matches!(tab.next().await, Some(Push::Welcome { .. })));
    let (mut runs, mut diagnoses, mut nodes) = (false, false, false);
    while !(runs && diagnoses && nodes) {
        match tab.next().await.unwrap() {
            Push::Runs { .. } => runs = true,
            Push::Diagnoses { .. } => diagnoses = true,
            Push::Nodes { nodes: list } => {
                assert!(list.is_empty());
                nodes = true;
            }
            _ => {}
        }
    }
    let _agent = Agent::connect(&server, ADMIN, "n1").await.unwrap();
    let list = tab.find(|push| match push {
        Push::Nodes { nodes } if !nodes.is_empty() => Some(nodes),
        _ => None,
    });
    assert_eq!(list.await[0].name, "n1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_range_grows_step_by_step() {
    let server = Server::start().await;
    let mut agent = Agent::connect(&server, ADMIN, "n1").await.unwrap();
    agent.define("live", 0, &[("gpu_power_watts", "0")]).await;
    let start_ms = collector::clock::now_ms();
    for seq in 1..=5_u64 {
        agent
            .sample("live", seq, start_ms - 7_000 + seq as i64 * 1_000, &[seq as f64])
            .await;
    }
    agent.acked("live", 5).await;

    let mut tab = Tab::as_admin(&server).await;
    tab.ask(&Request::WatchRange {
        id: 7,
        query: "gpu_power_watts".into(),
        range_ms: 10_000,
        step_ms: 1_000,
        extremes: false,
        end_ms: None,
    })
    .await;
    let frame = |push| match push {
        Push::Frame {
            id: 7,
            reset,
            times_ms,
            series,
        } => Some((reset, times_ms, series)),
        _ => None,
    };
    let (reset, times, series) = tab.find(frame).await;
    assert!(reset && times.len() == 11 && series.len() == 1, "{times:?}");
    assert_eq!(series[0].labels.get("node"), Some("n1"));
    assert_eq!(series[0].values.last().unwrap(), &Some(5.0));
    let mut last = *times.last().unwrap();
    for _ in 0..2 {
        let (reset, times, series) = tab.find(frame).await;
        assert!(
            !reset && times[0] == last + 1_000,
            "{times:?} goes on behind {last}"
        );
        assert_eq!(series[0].values.len(), times.len());
        last = *times.last().unwrap();
    }

    tab.ask(&Request::WatchInstant {
        id: 8,
        query: "count(gpu_power_watts)".into(),
    })
    .await;
    let values = tab.find(|push| match push {
        Push::Frame { id: 8, series, .. } => Some(series[0].values.clone()),
        _ => None,
    });
    assert_eq!(values.await, [Some(1.0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tab_with_binary_frames_gets_labels_once_and_then_what_changes() {
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    let quiet = |n: usize| {
        let labels = [("__name__", "quiet"), ("n", &n.to_string())];
        series(&labels, &[(now_ms, 0.1)])
    };
    assert_eq!(
        push(&server, &(0..100).map(quiet).collect::<Vec<_>>()).await.0,
        StatusCode::NO_CONTENT
    );
    let bearer = format!("Bearer {ADMIN}");
    let path = "/api/stream?frames=binary";
    let mut tab = Tab::open_at(&server, path, &[("authorization", &bearer)])
        .await
        .unwrap();
    assert!(
        matches!(tab.next().await, Some(Push::Welcome { .. })),
        "everything else is JSON"
    );
    let watch = Request::WatchInstant {
        id: 3,
        query: "quiet".into(),
    };
    let check = |frame: &Frame| {
        assert!(frame.reset && frame.times_ms.len() == 1, "{frame:?}");
        assert_eq!(frame.series.len(), 100);
        for column in &frame.series {
            assert_eq!(column.labels.metric_name(), Some("quiet"));
            assert_eq!(column.values, [Some(0.1)]);
        }
    };
    let mut decoder = Decoder::default();
    tab.ask(&watch).await;
    // The samples may arrive after the first evaluation.
    let first = loop {
        let message = tab.next_binary().await;
        let frame = decoder.decode(&message).unwrap();
        if !frame.series.is_empty() {
            check(&frame);
            break message;
        }
    };
    assert!(first.len() > 2_000, "{} bytes", first.len());
    let second = tab.next_binary().await;
    check(&decoder.decode(&second).unwrap());
    assert_eq!(second.len(), 38, "nothing has changed");

    // A watch that replaces another gets all labels again.
    tab.ask(&watch).await;
    loop {
        let message = tab.next_binary().await;
        check(&decoder.decode(&message).unwrap());
        if message.len() > 38 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_encoding_of_frames_is_refused() {
    let server = Server::start().await;
    let bearer = format!("Bearer {ADMIN}");
    let path = "/api/stream?frames=cbor";
    let refused = Tab::open_at(&server, path, &[("authorization", &bearer)]).await;
    assert_eq!(refused.err(), Some(StatusCode::BAD_REQUEST));
    let (status, body) = answer(server.request(Method::GET, path)).await;
    assert!(is_problem(&body, status), "{body}");
    let detail = body["detail"].as_str().unwrap();
    assert!(detail.contains("cbor") && detail.contains("`binary`"), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_with_extremes_has_the_spikes_between_its_steps() {
    let server = Server::start().await;
    let mut agent = Agent::connect(&server, ADMIN, "n1").await.unwrap();
    agent.define("live", 0, &[("gpu_power_watts", "0")]).await;
    let start_ms = collector::clock::now_ms();
    for (seq, value) in (1_u64..).zip([5.0, 9.0, 1.0, 5.0, 5.0]) {
        agent
            .sample("live", seq, start_ms - 17_000 + seq as i64 * 1_000, &[value])
            .await;
    }
    agent.acked("live", 5).await;
    let assignment = [
        ("__name__", "gpu_assignment_info"),
        ("gpu", "0"),
        ("node", "n1"),
        ("rank", "3"),
        ("run", "r"),
    ];
    let assigned = series(&assignment, &[(start_ms - 17_000, 1.0)]);
    assert_eq!(push(&server, &[assigned]).await.0, StatusCode::NO_CONTENT);

    let mut tab = Tab::as_admin(&server).await;
    let of_rank = "gpu_power_watts * on (node, gpu) group_left (rank) max by (node, gpu, rank) (gpu_assignment_info{run=\"r\"})";
    for (id, query) in [
        (1, "(gpu_power_watts)"),
        (2, of_rank),
        (3, "sum(gpu_power_watts) / 1"),
    ] {
        tab.ask(&Request::WatchRange {
            id,
            query: query.into(),
            range_ms: 20_000,
            step_ms: 5_000,
            extremes: true,
            end_ms: None,
        })
        .await;
        let column = tab.find(|push| match push {
            Push::Frame {
                id: of, mut series, ..
            } if of == id => series.pop(),
            _ => None,
        });
        let column = column.await;
        assert_eq!(column.labels.get("rank"), (id == 2).then_some("3"));
        assert_eq!(column.min.len(), column.values.len(), "{column:?}");
        assert_eq!(column.min.iter().flatten().copied().reduce(f64::min), Some(1.0));
        assert_eq!(column.max.iter().flatten().copied().reduce(f64::max), Some(9.0));
    }
}

/// Regression: a chart of many lines had no room for extremes, but showed those of its newest minute.
#[tokio::test(flavor = "multi_thread")]
async fn the_frames_after_a_reset_have_extremes_only_if_it_has_them() {
    // The extremes of this many lines over this many steps do not fit into one frame.
    const LINES: usize = 20;
    const STEP_MS: i64 = 2_000;
    const RANGE_MS: i64 = 10_000 * STEP_MS;
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    // Some are in the future, so that each step has samples.
    let samples: Vec<(i64, f64)> = (-30..60).map(|s| (now_ms + s * 1_000, 1.0)).collect();
    let line = |n: usize| series(&[("__name__", "steady"), ("n", &n.to_string())], &samples);
    let lines: Vec<_> = (0..LINES).map(line).collect();
    assert_eq!(push(&server, &lines).await.0, StatusCode::NO_CONTENT);
    let mut tab = Tab::as_admin(&server).await;
    for (id, query, count, has_extremes) in [(1, "steady", LINES, false), (2, "steady{n=\"7\"}", 1, true)] {
        tab.ask(&Request::WatchRange {
            id,
            query: query.into(),
            range_ms: RANGE_MS,
            step_ms: STEP_MS,
            extremes: true,
            end_ms: None,
        })
        .await;
        for expected_reset in [true, false, false] {
            let frame = tab.find(|push| match push {
                Push::Frame {
                    id: of,
                    reset,
                    series,
                    ..
                } if of == id => Some((reset, series)),
                _ => None,
            });
            let (reset, series) = frame.await;
            assert_eq!((reset, series.len()), (expected_reset, count), "{query}");
            for column in &series {
                assert_eq!(column.min.iter().any(Option::is_some), has_extremes, "{query}");
                assert_eq!(column.max.iter().any(Option::is_some), has_extremes, "{query}");
            }
        }
        tab.ask(&Request::Unwatch { id }).await;
    }
}

/// A lost node sends no staleness markers.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_ends_soon_after_the_last_sample_of_its_series() {
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    let gone = series(
        &[("__name__", "gpu_power_watts"), ("node", "n1")],
        &[(now_ms - 110_000, 300.0)],
    );
    assert_eq!(push(&server, &[gone]).await.0, StatusCode::NO_CONTENT);
    let mut tab = Tab::as_admin(&server).await;
    tab.ask(&Request::WatchRange {
        id: 1,
        query: "gpu_power_watts".into(),
        range_ms: 120_000,
        step_ms: 1_000,
        extremes: false,
        end_ms: None,
    })
    .await;
    let column = tab.find(|push| match push {
        Push::Frame {
            id: 1, mut series, ..
        } => series.pop(),
        _ => None,
    });
    let column = column.await;
    assert_eq!(column.values.last(), Some(&None));
    assert_eq!(column.values.iter().flatten().count(), 90);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_past_range_has_its_own_times() {
    let server = Server::start().await;
    let end_ms = collector::clock::now_ms() - 3_600_123;
    let mut tab = Tab::as_admin(&server).await;
    tab.ask(&Request::WatchRange {
        id: 1,
        query: "vector(1)".into(),
        range_ms: 10_000,
        step_ms: 2_000,
        extremes: true,
        end_ms: Some(end_ms),
    })
    .await;
    let frame = tab.find(|push| match push {
        Push::Frame {
            id: 1,
            reset,
            times_ms,
            ..
        } => Some((reset, times_ms)),
        _ => None,
    });
    let times: Vec<i64> = (0..=5).map(|n| end_ms - 10_000 + n * 2_000).collect();
    assert_eq!(frame.await, (true, times));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_cannot_be_served_gets_an_error() {
    let server = Server::start().await;
    let mut tab = Tab::as_admin(&server).await;
    for (id, request) in [
        (
            1,
            Request::WatchInstant {
                id: 1,
                query: "sum(".into(),
            },
        ),
        (
            2,
            Request::WatchRange {
                id: 2,
                query: "up".into(),
                range_ms: 1_000,
                step_ms: 10,
                extremes: false,
                end_ms: None,
            },
        ),
        (
            3,
            Request::WatchRun {
                id: 3,
                run: "none".into(),
            },
        ),
        (
            4,
            Request::WatchRun {
                id: 4,
                run: "../x".into(),
            },
        ),
    ] {
        tab.ask(&request).await;
        let message = tab.find(|push| match push {
            Push::Failed { id: failed, message } if failed == id => Some(message),
            _ => None,
        });
        assert!(!message.await.is_empty());
    }
    tab.0.send(Message::text("{\"op\":\"dance\"}")).await.unwrap();
    while tab.next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn only_our_own_pages_may_open_it_with_a_cookie() {
    let server = Server::start().await;
    let log_in = server
        .anonymous(Method::POST, "/api/session")
        .json(&json!({ "token": ADMIN }))
        .send()
        .await
        .unwrap();
    let cookie = log_in.headers()["set-cookie"]
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let own = server.running.url();
    assert!(
        Tab::open(&server, &[("cookie", &cookie), ("origin", &own)])
            .await
            .is_ok()
    );
    let foreign = Tab::open(&server, &[("cookie", &cookie), ("origin", "http://evil.example")]).await;
    assert_eq!(foreign.err(), Some(StatusCode::FORBIDDEN));
    assert_eq!(
        Tab::open(&server, &[]).await.err(),
        Some(StatusCode::UNAUTHORIZED)
    );
    let scrape = server.token(Role::Scrape, None).await.token;
    let as_scrape = Tab::open(&server, &[("authorization", &format!("Bearer {scrape}"))]).await;
    assert_eq!(as_scrape.err(), Some(StatusCode::FORBIDDEN));
}

/// Regression: a script of one viewer took all 512 slots.
#[tokio::test(flavor = "multi_thread")]
async fn one_token_has_32_seats_and_leaves_the_others_theirs() {
    let server = Server::start().await;
    let [greedy, other] = [
        server.token(Role::Viewer, None).await.token,
        server.token(Role::Viewer, None).await.token,
    ];
    let open = async |token: &str| Tab::open(&server, &[("authorization", &format!("Bearer {token}"))]).await;
    let mut tabs = Vec::new();
    for n in 0..32 {
        tabs.push(
            open(&greedy)
                .await
                .unwrap_or_else(|status| panic!("tab {n}: {status}")),
        );
    }
    assert_eq!(open(&greedy).await.err(), Some(StatusCode::TOO_MANY_REQUESTS));
    assert!(open(&other).await.is_ok(), "another viewer");
    let explained = server
        .anonymous(Method::GET, "/api/stream")
        .bearer_auth(&greedy)
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let (status, body) = answer(explained).await;
    assert!(is_problem(&body, status), "{body}");
    assert!(body["detail"].as_str().unwrap().contains("32 streams"), "{body}");
    drop(tabs.pop());
    until("the slot to be free", async || open(&greedy).await.ok()).await;
}

/// Regression: a run that wrote its log line by line had its whole view sent with each line.
#[tokio::test(flavor = "multi_thread")]
async fn a_runs_view_is_not_sent_for_its_log_and_four_times_per_second_at_most() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    start_ranks(&server, &mut agent, &run).await;
    let mut tab = Tab::as_admin(&server).await;
    tab.ask(&Request::WatchRun {
        id: 1,
        run: run.clone(),
    })
    .await;
    let source = LogSource {
        attempt: AttemptNo(1),
        node: "n1".into(),
        rank: Some(Rank(0)),
        stream: "stdout".into(),
    };
    tab.ask(&Request::WatchLog {
        id: 2,
        run: run.clone(),
        source,
        tail_bytes: 1 << 20,
    })
    .await;
    let log_to = |length: u64| move |push: &Push| matches!(push, Push::Log { id: 2, piece } if piece.next_offset >= length);
    // Both watches are served, and the changes of the start have been sent: none comes for a second.
    tab.count_views(log_to(0)).await;
    let is_view = |push: &Push| matches!(push, Push::Run { .. });
    let watched = Instant::now();
    while tokio::time::timeout(Duration::from_secs(1), tab.count_views(is_view))
        .await
        .is_ok()
    {
        assert!(watched.elapsed() < DEADLINE, "views are sent without a change");
    }

    const PIECES: u64 = 400;
    const LINE: &[u8] = b"a line of a log\n";
    for n in 0..PIECES {
        let chunk = LogChunk {
            run: run.clone(),
            attempt: 1,
            rank: 0,
            stream: "stdout".into(),
            offset: n * LINE.len() as u64,
            bytes: LINE.into(),
            kept_from: 0,
        };
        let message = control_up::Message::Log(chunk);
        let sent = agent.outgoing.send(ControlUp {
            message: Some(message),
        });
        sent.await.unwrap();
    }
    let views = tab.count_views(log_to(PIECES * LINE.len() as u64)).await;
    assert_eq!(views, 0, "views that were sent with {PIECES} pieces of its log");

    // Each of these changes the view.
    const REPORTS: u32 = 200;
    let begin = Instant::now();
    for n in 0..REPORTS {
        let started = NodeReport::RankStarted {
            rank: Rank(0),
            local_rank: 0,
            pid: 10_000 + n,
        };
        agent.report(&run, 100 + u64::from(n), started).await;
    }
    let last = format!("\"pid\":{}", 10_000 + REPORTS - 1);
    let is_last = |push: &Push| match push {
        Push::Run { run, .. } => serde_json::to_string(run).unwrap().contains(&last),
        _ => false,
    };
    let views = tab.count_views(is_last).await;
    let most = 2 + begin.elapsed().as_millis() / 250;
    let took = begin.elapsed();
    assert!(
        views >= 1 && u128::from(views) <= most,
        "{views} views of {REPORTS} changes in {took:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_collector_closes_its_streams() {
    let server = Server::start().await;
    let mut tab = Tab::as_admin(&server).await;
    assert!(tab.next().await.is_some());
    server.running.shutdown().await;
    while tab.next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tab_that_does_not_read_is_cut_off() {
    let server = Server::start().await;
    let now_ms = collector::clock::now_ms();
    let wide = |n: usize| {
        let labels = [
            ("__name__", "wide"),
            ("n", &n.to_string()),
            ("text", &"x".repeat(1_000)),
        ];
        series(&labels, &[(now_ms, 1.0)])
    };
    assert_eq!(
        push(&server, &(0..2_000).map(wide).collect::<Vec<_>>()).await.0,
        StatusCode::NO_CONTENT
    );
    let mut tab = Tab::as_admin(&server).await;
    // Two megabytes per second for each watch, which no one reads.
    for id in 0..20 {
        tab.ask(&Request::WatchInstant {
            id,
            query: "wide".into(),
        })
        .await;
    }
    until("the tab to be cut off", async || {
        let metrics = server
            .request(Method::GET, "/metrics")
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        metrics
            .contains("\nlockstep_stream_tabs_dropped_total 1\n")
            .then_some(())
    })
    .await;
}
