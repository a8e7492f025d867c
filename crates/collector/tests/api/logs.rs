//! Logs for agents and readers: chunks over the control stream, read and searched over HTTP.

use domain::api::runs::{LogMatches, LogPiece};
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

fn lines(found: &LogMatches) -> Vec<(Option<u32>, &str)> {
    let line = |found: &'_ domain::api::runs::LogMatch| found.source.rank.map(|rank| rank.0);
    found
        .matches
        .iter()
        .map(|found| (line(found), found.line.as_str()))
        .collect()
}

#[tokio::test]
async fn all_ranks_are_searched_and_no_escape_sequence_is_returned() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    // Only a node that has a part in the run may write its logs.
    agent.command().await;
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
    let credential = credential(&server).await;
    let run = submit(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    // Only a node that has a part in the run may write its logs.
    agent.command().await;
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
