//! Tests the client with a server that answers as NCCL does. The status has the format that NVIDIA's guide shows for 2.29.1.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::TcpListener;
use std::thread::JoinHandle;

use super::*;

const STATUS: &str = include_str!("status.json");

/// Answers one client: one line for each line, and `status` at the end in small pieces.
fn serve(
    answers: &'static [(&'static str, &'static str)],
    status: String,
) -> (SocketAddr, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let (mut heard, mut stream) = (Vec::new(), stream);
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).unwrap_or(0) == 0 {
                return heard;
            }
            heard.push(line.trim_end().to_owned());
            if line == "status\n" {
                for part in status.as_bytes().chunks(777) {
                    if stream.write_all(part).is_err() {
                        return heard;
                    }
                }
                return heard;
            }
            let answer = answers.iter().find(|(asked, _)| line.starts_with(asked));
            let answer = answer.map_or("ERROR: Unknown command", |(_, answer)| *answer);
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    };
    (address, std::thread::spawn(serve))
}

const NCCL_2_29: &[(&str, &str)] = &[
    ("client protocol ", "SERVER PROTOCOL 2"),
    ("timeout ", "OK"),
    ("set format json", "OK"),
];

#[test]
fn a_job_with_a_missing_a_slow_and_a_failed_rank() {
    let (address, server) = serve(NCCL_2_29, STATUS.to_owned());
    let status = query(address).unwrap();
    assert_eq!(
        server.join().unwrap(),
        ["client protocol 2", "timeout 5", "set format json", "status"]
    );
    assert_eq!(status.nccl_version, "2.29.1");
    let sizes: Vec<u32> = status.communicators.iter().map(|comm| comm.size).collect();
    assert_eq!(sizes, [4, 2]);
    let samples = Samples::new();
    status.write("ddp-1", 1_000, &samples);
    let mut figures: Vec<String> = samples
        .latest()
        .iter()
        .map(|sample| format!("{} {}", sample.series, sample.value))
        .collect();
    figures.sort();
    assert_eq!(
        figures,
        [
            r#"nccl_ras_communicators{run="ddp-1"} 2"#,
            r#"nccl_ras_failed_ranks{run="ddp-1"} 1"#,
            r#"nccl_ras_missing_ranks{run="ddp-1"} 1"#,
            r#"nccl_ras_ranks{run="ddp-1"} 5"#,
            r#"nccl_ras_sequence_spread{run="ddp-1"} 7"#,
        ]
    );
    assert_eq!(
        status.complaints(),
        [
            "rank 3 of communicator 0xae94423cfbb2ef4a (process 201 on 10.0.0.2) does not answer",
            "rank 1 of communicator 0x1 (process 200 on 10.0.0.2) has failed (NCCL error 6)",
        ]
    );
}

#[test]
fn an_older_nccl_and_another_service_are_distinguished() {
    let old = &[("client protocol ", "SERVER PROTOCOL 2"), ("timeout ", "OK")];
    let (address, server) = serve(old, String::new());
    let error = query(address).unwrap_err();
    assert!(matches!(error, RasError::NoJson { .. }), "{error}");
    server.join().unwrap();
    let (address, server) = serve(&[("client", "HTTP/1.1 400 Bad Request")], String::new());
    let error = query(address).unwrap_err();
    assert!(matches!(error, RasError::Stranger { .. }), "{error}");
    server.join().unwrap();
}

#[test]
fn an_answer_that_breaks_off_or_does_not_end_is_an_error() {
    let (address, server) = serve(NCCL_2_29, STATUS[..STATUS.len() / 2].to_owned());
    assert!(matches!(query(address), Err(RasError::Answer { .. })));
    server.join().unwrap();
    let endless = " ".repeat(ANSWER_BYTES_MAX as usize + 65_536);
    let (address, server) = serve(NCCL_2_29, endless);
    match query(address) {
        Err(RasError::Answer { bytes, .. }) => assert!(bytes < ANSWER_BYTES_MAX as usize + 65_536, "{bytes}"),
        other => panic!("{other:?}"),
    }
    server.join().unwrap();
}

#[test]
fn the_error_for_a_closed_port_says_what_to_check() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = query(address).unwrap_err();
    assert!(error.to_string().contains("NCCL_RAS_ENABLE"), "{error}");
}
