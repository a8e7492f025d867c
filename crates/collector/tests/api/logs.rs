//! Logs for agents and readers: chunks over the control stream, read and searched over HTTP.

use domain::api::runs::{LogLines, LogMatches, LogPiece};
use domain::run::log_level::LogLevel;
use reqwest::{Method, StatusCode};
use wire::proto::{LogChunk, control_down, control_up};

use crate::harness::{Server, answer};
use crate::runs::{Control, credential, submit};

/// Writes a log chunk of a rank as the agent does, and returns how many bytes the collector has.
async fn write(
    agent: &mut Control,
    run: &str,
    rank: i32,
    (offset, kept_from): (u64, u64),
    bytes: &[u8],
) -> u64 {
    let chunk = LogChunk {
        run: run.into(),
        attempt: 1,
        rank,
        stream: "stdout".into(),
        offset,
        bytes: bytes.into(),
        kept_from,
    };
    let message = control_up::Message::Log(chunk);
    let sent = agent.outgoing.send(wire::proto::ControlUp {
        message: Some(message),
    });
    sent.await.unwrap();
    loop {
        if let control_down::Message::LogAck(ack) = agent.next().await {
            return ack.length;
        }
    }
}

async fn search(server: &Server, run: &str, query: &[(&str, &str)]) -> (StatusCode, serde_json::Value) {
    let request = server.request(Method::GET, &format!("/api/runs/{run}/logs/search"));
    answer(request.query(query)).await
}

async fn list(server: &Server, run: &str, query: &[(&str, &str)]) -> LogLines {
    let request = server.request(Method::GET, &format!("/api/runs/{run}/logs/lines"));
    let (status, body) = answer(request.query(query)).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_value(body).unwrap()
}

fn lines(found: &LogMatches) -> Vec<(Option<u32>, &str)> {
    let line = |found: &'_ domain::api::runs::LogMatch| found.source.rank.map(|rank| rank.0);
    found
        .matches
        .iter()
        .map(|found| (line(found), found.line.as_str()))
        .collect()
}

/// Submits a run, and connects the agent of its node. Only a node that has a part in the run may write its logs.
async fn begin(server: &Server) -> (String, Control) {
    let credential = credential(server).await;
    let run = submit(server).await;
    let mut agent = Control::connect(server, &credential, &[]).await;
    agent.command().await;
    (run, agent)
}

#[tokio::test]
async fn all_ranks_are_searched_and_no_escape_sequence_is_returned() {
    let server = Server::start().await;
    let (run, mut agent) = begin(&server).await;
    write(
        &mut agent,
        &run,
        0,
        (0, 0),
        b"step 1\nLoss is \x1b[31mNaN\x1b[0m\n",
    )
    .await;
    write(
        &mut agent,
        &run,
        1,
        (0, 0),
        b"\x1b]52;c;cm0=\x07loss is nan, \xff too\n",
    )
    .await;
    write(&mut agent, &run, -1, (0, 0), b"launcher: nothing\n").await;
    let (status, body) = search(&server, &run, &[("q", "loss is nan"), ("ignore_case", "true")]).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let found: LogMatches = serde_json::from_value(body).unwrap();
    assert_eq!(
        lines(&found),
        [(Some(0), "Loss is NaN"), (Some(1), "loss is nan, \u{fffd} too")]
    );
    assert_eq!(found.matches[0].offset, 7);
    let (_, body) = search(
        &server,
        &run,
        &[("q", "^l.*nan"), ("regex", "true"), ("rank", "1")],
    )
    .await;
    let found: LogMatches = serde_json::from_value(body).unwrap();
    assert_eq!(found.matches.len(), 1);
    let (status, body) = search(&server, &run, &[("q", "("), ("regex", "true")]).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(
        body["detail"].as_str().unwrap().contains("regular expression"),
        "{body}"
    );
    let (status, _) = search(&server, "none", &[("q", "x")]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn missing_bytes_are_marked_in_the_log_after_a_restart_too() {
    let server = Server::start().await;
    let (run, mut agent) = begin(&server).await;
    assert_eq!(write(&mut agent, &run, 0, (0, 0), b"begin\n").await, 6);
    assert_eq!(
        write(&mut agent, &run, 0, (1_006, 0), b"end\n").await,
        6,
        "go back"
    );
    assert_eq!(write(&mut agent, &run, 0, (1_006, 1_006), b"end\n").await, 1_010);
    let server = server.restart().await;
    let piece = async |offset: u64| -> LogPiece {
        let (_, body) = server
            .get(&format!("/api/runs/{run}/logs?rank=0&node=n1&offset={offset}"))
            .await;
        serde_json::from_value(body).unwrap()
    };
    let begin = piece(0).await;
    assert_eq!(
        (begin.text.as_str(), begin.next_offset, begin.length),
        ("begin\n", 6, 1_010)
    );
    let gap = piece(6).await;
    assert_eq!((gap.missing, gap.next_offset), (1_000, 1_006));
    assert!(gap.text.contains("are missing here"), "{gap:?}");
    assert_eq!(piece(1_006).await.text, "end\n");
}

#[tokio::test]
async fn lines_of_all_ranks_are_one_list_that_is_filtered_and_followed() {
    let server = Server::start().await;
    let (run, mut agent) = begin(&server).await;
    write(&mut agent, &run, 1, (0, 0), b"step 1 of \x1b[1mrank 1\x1b[0m\n").await;
    write(
        &mut agent,
        &run,
        -1,
        (0, 0),
        b"W1129 00:17:21.1 7 run.py:766] OMP_NUM_THREADS\n",
    )
    .await;
    write(
        &mut agent,
        &run,
        0,
        (0, 0),
        b"Traceback (most recent call last):\n  File x\nValueError: Bad\nstep 2",
    )
    .await;
    let shown = |page: &LogLines| -> Vec<(Option<u32>, String)> {
        let lines = page.lines.iter();
        lines
            .map(|line| (line.source.rank.map(|rank| rank.0), line.text.clone()))
            .collect()
    };
    let line = |rank: Option<u32>, text: &str| (rank, text.to_owned());
    let warning = line(None, "W1129 00:17:21.1 7 run.py:766] OMP_NUM_THREADS");
    let traceback = [
        line(Some(0), "Traceback (most recent call last):"),
        line(Some(0), "  File x"),
        line(Some(0), "ValueError: Bad"),
    ];
    let all = list(&server, &run, &[]).await;
    let mut expected = vec![line(Some(1), "step 1 of rank 1"), warning.clone()];
    expected.extend(traceback.clone());
    assert_eq!(shown(&all), expected);
    assert!(all.at_end && all.earlier.is_none() && all.attempt.0 == 1);
    assert_eq!(all.lines[0].level, None);
    assert_eq!(all.lines[1].level, Some(LogLevel::Warning));
    assert_eq!(all.lines[4].level, Some(LogLevel::Error));
    assert!(all.lines[0].time_ms > 1_700_000_000_000, "{all:?}");

    assert_eq!(
        shown(&list(&server, &run, &[("level", "error")]).await),
        traceback
    );
    let found = list(&server, &run, &[("q", "bad"), ("ignore_case", "true")]).await;
    assert_eq!(shown(&found), [traceback[2].clone()]);
    let of = list(&server, &run, &[("ranks", "1-7,launcher")]).await;
    assert_eq!(shown(&of), expected[..2]);
    let last = list(&server, &run, &[("limit", "2")]).await;
    assert_eq!(shown(&last), traceback[1..]);
    let earlier = list(
        &server,
        &run,
        &[("limit", "2"), ("before", last.earlier.as_deref().unwrap())],
    )
    .await;
    assert_eq!(shown(&earlier), expected[1..3]);
    let at = all.lines[0].time_ms.to_string();
    assert_eq!(
        shown(&list(&server, &run, &[("at_ms", at.as_str())]).await),
        expected
    );

    assert!(
        list(&server, &run, &[("after", all.later.as_str())])
            .await
            .lines
            .is_empty()
    );
    write(&mut agent, &run, 0, (66, 0), b" ends\n").await;
    let more = list(&server, &run, &[("after", all.later.as_str())]).await;
    assert_eq!(shown(&more), [line(Some(0), "step 2 ends")]);
    assert_eq!(more.lines[0].offset, 60);

    for query in [
        [("ranks", "7,1")],
        [("level", "loud")],
        [("after", "yesterday")],
        [("attempt", "x")],
    ] {
        let request = server.request(Method::GET, &format!("/api/runs/{run}/logs/lines"));
        let (status, body) = answer(request.query(&query)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query:?}: {body}");
    }
    let (status, _) = server.get("/api/runs/none/logs/lines").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = server.get(&format!("/api/runs/{run}/logs/lines?attempt=9")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
