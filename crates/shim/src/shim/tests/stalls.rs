//! Tests of ranks that stall: stopped, blocked in the kernel, or at an earlier step than the others.

use domain::run::state::StallCause;

use super::*;

/// Ranks that make 10 steps per second up to the number in the file `RANK.upto`, and save at SIGTERM.
const STEPPING: &str = r#"
import json, os, signal, socket, sys, time
rank = int(os.environ["RANK"])
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(os.environ["SOCKET"])
def stop(*_):
    open(f"saved{rank}", "w")
    os._exit(0)  # Python drops a SystemExit that is raised while it closes a file
signal.signal(signal.SIGTERM, stop)
step = 0
while True:
    limit = int(open(f"{rank}.upto").read() or 0) if os.path.exists(f"{rank}.upto") else 10**9
    if step < limit:
        step += 1
        s.send(json.dumps(dict(v=1, rank=rank, kind="step", step=step), separators=(",", ":")).encode())
    time.sleep(0.1)
"#;

fn stalls(case: &Case) -> Vec<NodeReport> {
    let reports = case.reports().into_iter().map(|entry| entry.report);
    reports
        .filter(|report| {
            matches!(
                report,
                NodeReport::RankStalled { .. } | NodeReport::RankRecovered { .. }
            )
        })
        .collect()
}

fn first_steps(case: &Case) {
    for rank in [0, 1] {
        case.wait_for(|report| matches!(report, NodeReport::FirstStep { rank: Rank(r), .. } if *r == rank));
    }
}

/// Returns the last step that a rank has sent, according to the messages that the shim keeps.
fn last_sent_step(case: &Case, rank: u64) -> Option<u64> {
    let paths = segments(&case.folder)
        .into_iter()
        .map(|segment| segment_path(&case.folder, segment));
    let text: String = paths
        .map(|path| std::fs::read_to_string(path).unwrap_or_default())
        .collect();
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    messages
        .filter(|message| message["kind"] == "step" && message["rank"] == rank)
        .filter_map(|message| message["step"].as_u64())
        .max()
}

/// Waits until rank 1 is some steps ahead of rank 0, which has stopped.
fn wait_until_rank_1_is_ahead(case: &Case) {
    let deadline = Instant::now() + WAIT_MAX;
    let is_ahead = || {
        let steps = [0, 1].map(|rank| last_sent_step(case, rank));
        matches!(steps, [Some(of_0), Some(of_1)] if of_1 > of_0 + 2)
    };
    while !is_ahead() {
        assert!(Instant::now() < deadline, "rank 1 is not ahead");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_stopped_rank_is_named_continues_and_still_gets_its_sigterm() {
    // A rank that makes ten steps per second on an idle machine may get no core for two seconds on a busy one.
    let case = Case::start_with(
        STEPPING,
        &[("TEST_STOPPED_MS", "1000"), ("TEST_NO_STEP_MS", "4000")],
        &[],
    );
    first_steps(&case);
    let stopped = case.pid_of(1);
    signal(stopped, rustix::process::Signal::STOP);
    // The other rank waits for it, as in a collective.
    std::fs::write(case.workdir().join("0.upto"), "1").unwrap();
    case.wait_for(|report| {
        matches!(report, NodeReport::RankStalled { rank: Rank(1), step: Some(_), for_ms, cause: StallCause::Stopped } if *for_ms >= 1_000)
    });
    // Long enough for a wrong report about the waiting rank.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(stalls(&case).len(), 1, "{:#?}", stalls(&case));
    signal(stopped, rustix::process::Signal::CONT);
    case.wait_for(|report| matches!(report, NodeReport::RankRecovered { rank: Rank(1) }));

    signal(stopped, rustix::process::Signal::STOP);
    case.folder.write(files::STOP, b"10000").unwrap();
    case.wait_for_file("saved1");
    let (end, exits) = case.end();
    assert_eq!(
        (end.cause, codes(&exits)),
        (EndCause::Stopped, vec![(Some(0), None); 2])
    );
    assert!(exits.iter().all(|exit| exit.last_step >= Some(1)), "{exits:?}");
}

#[test]
fn of_two_stalled_ranks_the_one_at_the_earlier_step_is_named() {
    let case = Case::start_with(STEPPING, &[("TEST_NO_STEP_MS", "4000")], &[]);
    first_steps(&case);
    std::fs::write(case.workdir().join("0.upto"), "0").unwrap();
    // Rank 0 may have begun long before rank 1.
    wait_until_rank_1_is_ahead(&case);
    std::fs::write(case.workdir().join("1.upto"), "0").unwrap();
    case.wait_for(|report| {
        matches!(
            report,
            NodeReport::RankStalled {
                rank: Rank(0),
                cause: StallCause::NoStep,
                ..
            }
        )
    });
    let named: Vec<_> = stalls(&case)
        .into_iter()
        .filter(|report| matches!(report, NodeReport::RankStalled { rank: Rank(1), .. }))
        .collect();
    assert_eq!(named, [], "rank 1 waited for rank 0");
    std::fs::remove_file(case.workdir().join("0.upto")).unwrap();
    case.wait_for(|report| matches!(report, NodeReport::RankRecovered { rank: Rank(0) }));
    case.folder.write(files::STOP, b"5000").unwrap();
    assert_eq!(case.end().0.cause, EndCause::Stopped);
}

#[test]
fn a_rank_that_hangs_in_the_kernel_is_named_and_ended() {
    // A process waits in state D for the child that it made with vfork(2), until the child has left its memory.
    let script = "import ctypes, os, time\n\
                  if os.environ['RANK'] == '1' and ctypes.PyDLL(None).vfork() == 0:\n\
                  \x20   time.sleep(600)\n\
                  time.sleep(600)";
    let case = Case::start_with(script, &[("TEST_UNINTERRUPTIBLE_MS", "1000")], &[]);
    case.wait_for(|report| {
        matches!(
            report,
            NodeReport::RankStalled {
                rank: Rank(1),
                step: None,
                cause: StallCause::Uninterruptible,
                ..
            }
        )
    });
    case.folder.write(files::STOP, b"500").unwrap();
    let began = Instant::now();
    let (end, exits) = case.end();
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert_eq!((end.cause, exits.len()), (EndCause::Stopped, 2));
}
