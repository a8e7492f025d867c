//! Tests with folders as each version wrote them, including the current one: a living shim of an older version is adopted, and a dead one
//! is cleaned up.

use super::*;

/// The last reports of a shim of folder format 1.
const LAST_WORDS_V1: &str = r#"{"id":1000005,"at_ms":1795308500000,"report":{"report":"rank_exited","rank":0,"code":0,"out_of_memory":false,"at_ns":1795308500000000000}}
{"id":1000006,"at_ms":1795308500000,"report":{"report":"rank_exited","rank":1,"code":0,"out_of_memory":false,"at_ns":1795308500000000000}}
{"id":1000007,"at_ms":1795308500001,"report":{"report":"ended","code":0,"cause":"stopped","message":""}}
"#;

/// The folder of run `golden`, attempt 1, below a new data folder.
fn golden(version: &str) -> (Arc<tempfile::TempDir>, Folder) {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let folder = Folder::of(data.path(), &RunId::new("golden").unwrap(), AttemptNo(1));
    folder.create().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/folder")
        .join(version)
        .join("golden.1");
    let here = data.path().display().to_string();
    for name in [".", "probe"] {
        let files = std::fs::read_dir(from.join(name)).unwrap().flatten();
        for file in files.filter(|file| file.path().is_file()) {
            let text = std::fs::read_to_string(file.path()).unwrap();
            let text = text.replace("\"/data/", &format!("\"{here}/"));
            std::fs::write(folder.path().join(name).join(file.file_name()), text).unwrap();
        }
    }
    (data, folder)
}

fn adopt(data: &Arc<tempfile::TempDir>) -> Agent {
    Agent::start(data.clone(), RunId::new("golden").unwrap())
}

#[tokio::test]
async fn a_living_shim_of_the_first_version_is_adopted_stopped_and_believed() {
    let (data, folder) = golden("v1");
    let lives = folder.lock().unwrap().unwrap();
    let agent = adopt(&data);
    assert_eq!(agent.supervisor.attempts().len(), 1);
    for rank in ["0", "1"] {
        agent.value("train_step", rank).await;
    }
    agent.command(4, NodeCommand::Stop { grace_ms: 1_500 }).unwrap();
    let order = std::fs::read_to_string(folder.file(files::STOP)).unwrap();
    assert_eq!(order, "1500", "a shim of that version reads nothing else");
    let mut reports = std::fs::read_to_string(folder.file(files::SHIM_REPORTS)).unwrap();
    reports.push_str(LAST_WORDS_V1);
    std::fs::write(folder.file(files::SHIM_REPORTS), reports).unwrap();
    drop(lives);
    let end = agent.end().await;
    assert_eq!((end.cause, end.code), (EndCause::Stopped, Some(0)));
    let ends = agent
        .reports()
        .into_iter()
        .filter(|report| matches!(report, NodeReport::Ended(_)));
    assert_eq!(ends.count(), 1);
}

#[tokio::test]
async fn leftovers_of_a_dead_shim_of_the_first_version_are_ended_and_no_other_processes() {
    let (data, _folder) = golden("v1");
    let agent = adopt(&data);
    let end = agent.end().await;
    assert_eq!((end.cause, end.code), (EndCause::ShimDied, None));
    assert!(!end.message.is_empty());
}

/// The process ids in the current file (torchrun has id 1) are those of before a restart of the machine.
#[tokio::test]
async fn after_a_restart_of_the_machine_no_process_is_signalled_and_known_exits_are_kept() {
    let (data, _folder) = golden("v2");
    let agent = adopt(&data);
    let end = agent.end().await;
    assert_eq!(end.cause, EndCause::ShimDied);
    assert!(end.message.contains("restarted"), "{}", end.message);
    let reports = agent.reports();
    let stalled = |report: &NodeReport| {
        matches!(
            report,
            NodeReport::RankStalled {
                rank: Rank(1),
                step: Some(2),
                ..
            }
        )
    };
    let exited =
        |report: &NodeReport| matches!(report, NodeReport::RankExited(exit) if exit.last_step == Some(2));
    assert!(
        reports.iter().any(stalled) && reports.iter().any(exited),
        "{reports:#?}"
    );
}
