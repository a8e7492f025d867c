//! Lists of lines of several logs.

use domain::ident::NodeName;

use super::*;
use crate::runs::logs::{LISTS_MAX, pattern, source};

struct Written {
    folder: tempfile::TempDir,
    logs: Logs,
    run: RunId,
}

impl Written {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            logs: Logs::new(folder.path().to_owned()),
            folder,
            run: RunId::new("r").expect("a name"),
        }
    }

    /// Appends to a log; rank -1 is the launcher.
    async fn write(&self, rank: i32, stream: &str, text: &str) {
        let source = log(rank, stream);
        let read = self.logs.read(&self.run, &source, 0, 0).await;
        let end = read.expect("reads").length;
        let written = self
            .logs
            .write(&self.run, &source, (end, 0), text.as_bytes())
            .await;
        written.expect("writes");
    }

    async fn read(&self, query: LineQuery) -> LogLines {
        self.logs.lines(&self.run, query).await.expect("reads")
    }

    /// Checks the lines of a query, with pages of different sizes in both directions.
    async fn check(&self, change: fn(&mut LineQuery), expected: &[&str]) {
        for limit in [1, 100] {
            let make = || {
                let mut changed = query(limit);
                change(&mut changed);
                changed
            };
            assert_eq!(texts(&self.all_on(make).await), expected, "{limit}");
            assert_eq!(texts(&self.all_back(make).await), expected, "{limit}");
        }
    }

    /// Reads all lines forwards, page by page.
    async fn all_on(&self, make: impl Fn() -> LineQuery) -> Vec<LogLine> {
        let (mut all, mut cursor) = (Vec::new(), Cursor::at_ms(0));
        loop {
            let mut query = make();
            query.position = LinePosition::After(cursor);
            let page = self.read(query).await;
            all.extend(page.lines);
            cursor = page.later.parse().expect("a cursor");
            if page.at_end {
                return all;
            }
        }
    }

    /// Reads all lines backwards, page by page.
    async fn all_back(&self, make: impl Fn() -> LineQuery) -> Vec<LogLine> {
        let mut all = Vec::new();
        let mut position = LinePosition::End;
        loop {
            let mut query = make();
            query.position = position;
            let page = self.read(query).await;
            let mut lines = page.lines;
            lines.append(&mut all);
            all = lines;
            match page.earlier {
                Some(earlier) => position = LinePosition::Before(earlier.parse().expect("a cursor")),
                None => return all,
            }
        }
    }
}

fn log(rank: i32, stream: &str) -> LogSource {
    let node = NodeName::new("n1").expect("a name");
    source(AttemptNo(1), &node, rank, stream)
}

fn query(limit: usize) -> LineQuery {
    LineQuery::new(AttemptNo(1), false, Some(limit))
}

fn texts(lines: &[LogLine]) -> Vec<&str> {
    lines.iter().map(|line| line.text.as_str()).collect()
}

#[tokio::test]
async fn lines_of_all_logs_are_in_the_order_in_which_their_ends_arrived() {
    let written = Written::new();
    written.write(1, "stdout", "a\nb").await;
    written.write(0, "stderr", "c\n").await;
    written.write(-1, "stdout", "\x1b[31md\x1b[0m\n").await;
    written.write(1, "stdout", "b ends\ne").await;
    let page = written.read(query(100)).await;
    assert_eq!(texts(&page.lines), ["a", "c", "d", "bb ends"]);
    assert!(page.at_end && page.earlier.is_none() && page.untimed_logs == 0);
    let last = &page.lines[3];
    assert_eq!((&last.source, last.offset), (&log(1, "stdout"), 2));
    // What follows is found from the position that was reached.
    written.write(0, "stderr", "f\n").await;
    written.write(1, "stdout", " ends\n").await;
    let mut later = query(100);
    later.position = LinePosition::After(page.later.parse().expect("a cursor"));
    assert_eq!(texts(&written.read(later).await.lines), ["f", "e ends"]);
    // At the end of an attempt, a line without an end is complete.
    written.write(0, "stdout", "killed her").await;
    let mut ended = LineQuery::new(AttemptNo(1), true, None);
    ended.ranks = Some(RankSet::try_from("0".to_owned()).expect("ranks"));
    assert_eq!(texts(&written.read(ended).await.lines), ["c", "f", "killed her"]);
}

#[tokio::test]
async fn pages_in_both_directions_have_each_line_once() {
    let written = Written::new();
    let mut expected = Vec::new();
    for n in 0..60 {
        let lines: String = (0..n % 4).map(|k| format!("line {n}.{k}\n")).collect();
        expected.extend((0..n % 4).map(|k| format!("line {n}.{k}")));
        written.write(n % 3, "stdout", &lines).await;
    }
    for limit in [1, 2, 7, 1_000] {
        assert_eq!(texts(&written.all_on(|| query(limit)).await), expected, "{limit}");
        assert_eq!(
            texts(&written.all_back(|| query(limit)).await),
            expected,
            "{limit}"
        );
    }
    let all = written.read(query(1_000)).await;
    let mut from = query(1_000);
    from.position = LinePosition::After(Cursor::at_ms(all.lines[0].time_ms));
    assert_eq!(texts(&written.read(from).await.lines), expected, "from a time");
}

#[tokio::test]
async fn a_position_far_before_its_write_is_not_searched_from_there() {
    let written = Written::new();
    for text in ["a\nb\n", "c", "c ends\n", "d\n"] {
        written.write(0, "stdout", text).await;
    }
    let all = written.read(query(100)).await;
    assert_eq!(texts(&all.lines), ["a", "b", "cc ends", "d"]);
    let file = LogFile::open(&written.folder.path().join("r/1/n1/rank-0.stdout")).expect("opens");
    let marks = file.marks(0).expect("reads");
    let from = Cursor {
        time_us: marks[3].time_us,
        offset: 0,
    };
    let timed = TimedLog {
        file,
        source: log(0, "stdout"),
    };
    let reader = LogReader::seek(&timed, from).expect("reads").expect("lines");
    assert_eq!(reader.read_to(), marks[3].offset);
    // The position before a line that began in an earlier write.
    let last = written.read(query(2)).await;
    let mut on = query(100);
    on.position = LinePosition::After(last.earlier.expect("lines before").parse().expect("a cursor"));
    assert_eq!(texts(&written.read(on).await.lines), ["cc ends", "d"]);
}

#[tokio::test]
async fn long_logs_are_read_across_their_segments() {
    let written = Written::new();
    let mut expected = Vec::new();
    for n in 0..60 {
        let text: String = (0..1_000)
            .map(|k| format!("line {n}.{k} of a log that is longer than a segment\n"))
            .collect();
        expected.extend(text.lines().map(str::to_owned));
        written.write(n % 2, "stdout", &text).await;
    }
    assert_eq!(texts(&written.all_on(|| query(2_000)).await), expected);
    assert_eq!(texts(&written.all_back(|| query(2_000)).await), expected);
    let bounded = || {
        let mut query = query(10);
        query.pattern = Some(pattern("LINE 30.999 ", false, true).expect("a pattern"));
        query.searched_bytes_max = 300_000;
        query
    };
    let page = written.read(bounded()).await;
    assert!(
        page.lines.is_empty() && page.earlier.is_some(),
        "one request is bounded"
    );
    assert!(page.searched_from_ms <= page.searched_to_ms);
    for found in [written.all_on(bounded).await, written.all_back(bounded).await] {
        assert_eq!(
            texts(&found),
            ["line 30.999 of a log that is longer than a segment"]
        );
    }
}

#[tokio::test]
async fn lines_are_filtered_by_rank_stream_text_and_level() {
    let written = Written::new();
    written.write(0, "stdout", "step 1\nINFO:root:fine\n").await;
    written
        .write(1, "stderr", "W1129 00:17:21.1 1 a.py:1] slow\n")
        .await;
    written
        .write(2, "stderr", "Traceback (most recent call last):\n  File x\n")
        .await;
    written
        .write(-1, "stderr", "E1129 00:17:21.1 1 a.py:1] rank 2 failed\n")
        .await;
    written.write(2, "stderr", "ValueError: Slow\nstep 2\n").await;
    let traceback = "Traceback (most recent call last):";
    let failed = "E1129 00:17:21.1 1 a.py:1] rank 2 failed";
    let slow = "W1129 00:17:21.1 1 a.py:1] slow";
    written
        .check(
            |query| query.level = Some(LogLevel::Error),
            &[traceback, "  File x", failed, "ValueError: Slow"],
        )
        .await;
    written
        .check(
            |query| query.level = Some(LogLevel::Warning),
            &[slow, traceback, "  File x", failed, "ValueError: Slow"],
        )
        .await;
    written
        .check(
            |query| query.pattern = Some(pattern("slow", false, true).expect("a pattern")),
            &[slow, "ValueError: Slow"],
        )
        .await;
    written
        .check(
            |query| query.ranks = Some(RankSet::try_from("0-1,7".to_owned()).expect("ranks")),
            &["step 1", "INFO:root:fine", slow],
        )
        .await;
    written
        .check(
            |query| {
                query.ranks = Some(RankSet::default());
                query.launchers = true;
            },
            &[failed],
        )
        .await;
    written
        .check(
            |query| query.stream = Some("stdout".to_owned()),
            &["step 1", "INFO:root:fine"],
        )
        .await;
    written.check(|query| query.attempt = AttemptNo(2), &[]).await;
}

#[tokio::test]
async fn missing_bytes_are_a_line_of_their_own() {
    let written = Written::new();
    written.write(0, "stdout", "begin\nhal").await;
    let source = log(0, "stdout");
    let end = written
        .logs
        .write(&written.run, &source, (1_000, 1_000), b"f\nend\n")
        .await;
    assert_eq!(end.expect("writes"), 1_006);
    for limit in [1, 100] {
        for lines in [
            written.all_on(|| query(limit)).await,
            written.all_back(|| query(limit)).await,
        ] {
            assert_eq!(lines.len(), 5, "{limit}: {lines:?}");
            assert_eq!((lines[1].text.as_str(), lines[3].text.as_str()), ("hal", "f"));
            assert!(lines[2].text.contains("are missing here"), "{lines:?}");
            assert_eq!(lines[2].offset, 9);
        }
    }
}

#[tokio::test]
async fn a_log_of_an_earlier_version_is_counted_and_its_new_lines_are_listed() {
    let written = Written::new();
    written.write(0, "stdout", "old\n").await;
    let folder = written.folder.path().join("r/1/n1/rank-0.stdout");
    std::fs::remove_file(folder.join("00000000000000000000.times")).expect("it exists");
    // As after a restart.
    let again = Written {
        logs: Logs::new(written.folder.path().to_owned()),
        ..written
    };
    let page = again.read(query(100)).await;
    assert_eq!((page.lines.len(), page.untimed_logs), (0, 1));
    again.write(0, "stdout", "new\n").await;
    let page = again.read(query(100)).await;
    assert_eq!((texts(&page.lines), page.untimed_logs), (vec!["new"], 1));
}

#[tokio::test]
async fn zeros_that_a_crash_left_as_times_do_not_hang_a_list() {
    let written = Written::new();
    written.write(0, "stdout", "old\n").await;
    let folder = written.folder.path().join("r/1/n1/rank-0.stdout");
    std::fs::write(folder.join("00000000000000000000.times"), [0; 64]).expect("writes");
    let page = written.read(query(100)).await;
    assert_eq!((page.lines.len(), page.untimed_logs), (0, 1));
    assert!(page.earlier.is_none());
}

#[tokio::test]
async fn a_reader_that_follows_gets_each_line_after_the_clock_was_set_back_and_a_restart() {
    let written = Written::new();
    written.write(0, "stdout", "a\n").await;
    let ahead_us = now_us() + 86_400_000_000;
    if let Some(open) = written.logs.room(&written.run).lock().await.as_mut() {
        open.last_us = ahead_us;
    }
    written.write(0, "stdout", "b\n").await;
    let page = written.read(query(100)).await;
    assert_eq!(texts(&page.lines), ["a", "b"]);
    let again = Written {
        logs: Logs::new(written.folder.path().to_owned()),
        ..written
    };
    again.write(1, "stdout", "c\n").await;
    let mut later = query(100);
    later.position = LinePosition::After(page.later.parse().expect("a cursor"));
    assert_eq!(texts(&again.read(later).await.lines), ["c"]);
}

#[tokio::test]
async fn a_very_long_line_is_listed_in_parts_and_a_progress_bar_as_its_last_drawing() {
    let written = Written::new();
    let bar: String = (0..40_000).map(|n| format!("\r{n}/40000 [####]")).collect();
    written.write(0, "stderr", &bar).await;
    written.write(0, "stderr", "\r40000/40000 [####]\nafter\n").await;
    let page = written.read(query(10)).await;
    assert_eq!(texts(&page.lines), ["40000/40000 [####]", "after"]);
    written.write(1, "stdout", &"x".repeat(2_500_000)).await;
    written.write(1, "stdout", "\nshort\n").await;
    for lines in [
        written.all_on(|| query(1)).await,
        written.all_back(|| query(10)).await,
    ] {
        let long = lines.iter().filter(|line| line.text.starts_with("xxx")).count();
        assert_eq!(
            (long, lines.last().map(|line| line.text.as_str())),
            (3, Some("short"))
        );
    }
}

#[test]
fn a_list_without_a_client_keeps_its_turn_until_its_work_ends() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let written = Written::new();
        // The only thread is busy.
        let (release, released) = std::sync::mpsc::sync_channel::<()>(1);
        let busy = tokio::task::spawn_blocking(move || released.recv());
        let list = written.logs.lines(&written.run, query(1));
        let list = tokio::time::timeout(Duration::from_millis(1), list).await;
        assert!(list.is_err(), "the client goes away");
        let lists = &written.logs.lists;
        assert_eq!(lists.available_permits(), LISTS_MAX - 1);
        release.send(()).expect("the thread waits");
        busy.await.expect("ends").expect("is released");
        let all = lists.acquire_many(u32::try_from(LISTS_MAX).expect("small"));
        let all = tokio::time::timeout(Duration::from_secs(10), all).await;
        assert!(all.is_ok_and(|all| all.is_ok()), "the work has ended");
    });
}

#[test]
fn a_cursor_is_read_back() {
    let cursor = Cursor {
        time_us: 1_764_375_441_000_123,
        offset: u64::MAX,
    };
    assert_eq!(cursor.to_string().parse::<Cursor>().expect("a cursor"), cursor);
    for text in ["", "1", "1.", ".1", "-1.0", "1.2.3", "a.b"] {
        assert!(text.parse::<Cursor>().is_err(), "{text}");
    }
}
