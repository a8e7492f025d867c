//! Senders and their acknowledgements: the expected content of a store that is killed, has no disk space or loses power.
//!
//! ```text
//! sender n = session n = node n, three metrics × two GPUs
//! append seq                times seq and sometimes an earlier one; a value is a function of series and time
//! acknowledged 1..=a        stored once and unchanged, after any failure
//! sent         a+1..=s      each stored completely or not at all, none without the ones before
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::task::Poll;

use domain::series::{ABSENT, Labels, STALE, is_absent};
use store::series::{Append, AppendError, Appended};
use store::{SeriesStore, Store};

use crate::harness::{
    NOW_MS, Read, append, chain, everything, gpu, samples_in_chunks, try_read, without_roll_ups,
};
use crate::vfs::Rng;

pub(crate) const SENDERS: usize = 4;
const METRICS: [&str; 3] = ["power", "temperature", "link_errors"];
const GPUS: usize = 2;
/// How long samples are kept. Short, so that retention has work to do.
pub(crate) const RETENTION_MS: i64 = 90_000;
/// The time between two appends of a sender.
const TICK_MS: i64 = 1_000;

/// The state of one sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sender {
    /// All appends up to this number were acknowledged.
    pub(crate) acknowledged: u64,
    /// The highest number that was ever sent.
    pub(crate) sent: u64,
}

pub(crate) type Senders = [Sender; SENDERS];

fn name(sender: usize, row: usize) -> Labels {
    gpu(
        METRICS[row % METRICS.len()],
        &format!("node-{sender}"),
        row / METRICS.len(),
    )
}

const ROWS: usize = METRICS.len() * GPUS;

/// Returns the value of a series at a time: mostly ordinary, sometimes absent, stale or an unusual NaN.
fn value(sender: usize, row: usize, time_ms: i64) -> f64 {
    let mut rng = Rng::new((sender * ROWS + row) as u64 ^ (time_ms as u64).rotate_left(20));
    match rng.below(40) {
        0 => ABSENT,
        1 => STALE,
        2 => f64::NAN,
        3 => f64::from_bits(rng.next()),
        4 => -0.0,
        n => n as f64,
    }
}

/// Returns the times in append number `seq`: its own time, which is late in every eighth append; every fifth has two old times
/// as well, and every seventh one time of the append before it.
fn times(sender: usize, seq: u64) -> Vec<i64> {
    let at = |seq: u64| NOW_MS + seq as i64 * TICK_MS + sender as i64;
    let mut times = match seq % 8 {
        3 => vec![at(seq) - TICK_MS / 2 - 5 * TICK_MS],
        _ => vec![at(seq)],
    };
    if seq % 5 == 4 {
        times.push(at(seq - 1) + 1);
        times.push(at(seq.saturating_sub(4)) + 2);
    }
    if seq % 7 == 6 && seq % 8 != 4 {
        times.push(at(seq - 1));
    }
    times.sort_unstable();
    times
}

/// Returns append number `seq` of a sender.
fn numbered(series: &SeriesStore, sender: usize, seq: u64) -> Append {
    let ids: Vec<_> = (0..ROWS)
        .map(|row| series.resolve(&name(sender, row)).unwrap())
        .collect();
    let times = times(sender, seq);
    let values: Vec<f64> = (0..ROWS)
        .flat_map(|row| times.iter().map(move |time_ms| (row, *time_ms)))
        .map(|(row, time_ms)| value(sender, row, time_ms))
        .collect();
    Append {
        source: Some((format!("session-{sender}"), seq)),
        ..append(series, &ids, &times, &values)
    }
}

/// Returns the clock when a sender is at a number.
fn now_ms(seq: u64) -> i64 {
    NOW_MS + seq as i64 * TICK_MS
}

/// Lets every sender send a few appends, all at the same time.
pub(crate) async fn send_all(store: &Store, senders: &mut Senders, rng: &mut Rng) -> Option<AppendError> {
    let [a, b, c, d] = senders;
    let more: [u64; SENDERS] = std::array::from_fn(|_| rng.below(4));
    let send = |sender, state, more| send(&store.series, sender, state, more);
    let (a, b, c, d) = tokio::join!(
        send(0, a, more[0]),
        send(1, b, more[1]),
        send(2, c, more[2]),
        send(3, d, more[3])
    );
    a.or(b).or(c).or(d)
}

/// Sends the unacknowledged appends of a sender, `more` new ones, and its last two again, like a sender that missed the
/// answers. All are in flight at once. Records the answers and returns the first error.
pub(crate) async fn send(
    series: &SeriesStore,
    sender: usize,
    state: &mut Sender,
    more: u64,
) -> Option<AppendError> {
    let first = state.acknowledged.saturating_sub(2) + 1;
    state.sent = state.sent.max(state.acknowledged + more);
    let appends = (first..=state.sent).map(|seq| {
        let sent = numbered(series, sender, seq);
        async move { series.append(sent, now_ms(seq)).await }
    });
    let mut failed = None;
    for (answer, seq) in in_order(appends).await.into_iter().zip(first..) {
        match answer {
            // An append that was stored before is acknowledged even if the repetition of an earlier one fails with its
            // neighbours.
            Ok(_) => state.acknowledged = state.acknowledged.max(seq),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed
}

type Answer = Result<Appended, AppendError>;

/// Runs appends concurrently, started in their order, which is the order in which a session must send.
async fn in_order<F: Future<Output = Answer>>(appends: impl Iterator<Item = F>) -> Vec<Answer> {
    let mut under_way: Vec<_> = appends.map(|append| (Box::pin(append), None)).collect();
    std::future::poll_fn(|context| {
        for (append, answer) in under_way.iter_mut().filter(|(_, answer)| answer.is_none()) {
            if let Poll::Ready(ready) = append.as_mut().poll(context) {
                *answer = Some(ready);
            }
        }
        let done = under_way.iter().all(|(_, answer)| answer.is_some());
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    under_way.into_iter().filter_map(|(_, answer)| answer).collect()
}

/// Returns the samples of a series when the appends up to a number are stored.
fn expected_samples(sender: usize, row: usize, upto: u64, from_ms: i64) -> BTreeMap<i64, u64> {
    let times = (1..=upto).flat_map(|seq| times(sender, seq));
    times
        .filter(|time_ms| *time_ms >= from_ms)
        .map(|time_ms| (time_ms, value(sender, row, time_ms)))
        .filter(|(_, value)| !is_absent(*value))
        .map(|(time_ms, value)| (time_ms, value.to_bits()))
        .collect()
}

/// Compares all samples in the store with the acknowledgements of the senders; the error says what is wrong. Samples before
/// `from_ms` may be missing. Returns for each sender how many of its appends are stored.
pub(crate) async fn check(store: &Store, senders: &Senders, from_ms: i64) -> Result<[u64; SENDERS], String> {
    let read = try_read(&store.series, &everything()).await;
    compare(
        &read.map_err(|error| format!("cannot be read: {error:?}"))?,
        senders,
        from_ms,
    )
}

fn compare(read: &[Read], senders: &Senders, from_ms: i64) -> Result<[u64; SENDERS], String> {
    let mut found: BTreeMap<&Labels, &Vec<(i64, u64)>> = BTreeMap::new();
    for (labels, samples) in read {
        if found.insert(labels, samples).is_some() {
            return Err(format!("{labels} is there twice"));
        }
        if let Some(pair) = samples.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(format!("{labels}: two samples at {} ms", pair[1].0 - NOW_MS));
        }
    }
    let mut there = [0; SENDERS];
    let mut known = 0;
    for (sender, state) in senders.iter().enumerate() {
        let none = Vec::new();
        let series: Vec<_> = (0..ROWS)
            .map(|row| {
                let samples = found.get(&name(sender, row)).copied();
                known += usize::from(samples.is_some());
                let samples = samples.unwrap_or(&none).iter().copied();
                samples
                    .filter(|(time_ms, _)| *time_ms >= from_ms)
                    .collect::<BTreeMap<_, _>>()
            })
            .collect();
        let fits =
            |upto: u64| (0..ROWS).all(|row| series[row] == expected_samples(sender, row, upto, from_ms));
        let Some(upto) = (state.acknowledged..=state.sent).rev().find(|upto| fits(*upto)) else {
            return Err(difference(sender, state, &series, from_ms));
        };
        there[sender] = upto;
    }
    if known < found.len() {
        return Err(format!("{} series nobody sent", found.len() - known));
    }
    Ok(there)
}

fn difference(sender: usize, state: &Sender, series: &[BTreeMap<i64, u64>], from_ms: i64) -> String {
    let mut wrong = format!("sender {sender}, {state:?}:");
    for (row, samples) in series.iter().enumerate() {
        let least = expected_samples(sender, row, state.acknowledged, from_ms);
        let most = expected_samples(sender, row, state.sent, from_ms);
        let lost: Vec<i64> = least
            .keys()
            .filter(|time| !samples.contains_key(time))
            .map(|time| time - NOW_MS)
            .collect();
        let odd = samples.iter().filter(|(time, bits)| most.get(time) != Some(bits));
        let odd: Vec<i64> = odd.map(|(time, _)| time - NOW_MS).collect();
        let beyond = samples.keys().filter(|time| !least.contains_key(time)).count();
        wrong += &format!(
            "\n  {}: {} samples, lost {lost:?}, changed or never sent {odd:?}, {beyond} not acknowledged",
            name(sender, row),
            samples.len()
        );
    }
    wrong
}

/// Returns the number of samples if each is stored once.
pub(crate) fn samples_of(there: [u64; SENDERS], from_ms: i64) -> i64 {
    let count = |sender: usize, row| expected_samples(sender, row, there[sender], from_ms).len() as i64;
    (0..SENDERS)
        .flat_map(|sender| (0..ROWS).map(move |row| (sender, row)))
        .map(|(sender, row)| count(sender, row))
        .sum()
}

/// Opens a folder on a healthy disk and checks that all samples are there, that each is in one chunk, and that no write-ahead
/// file is left after sealing.
pub(crate) async fn check_at_rest(folder: &Path, senders: &Senders) -> Result<(), String> {
    let store = open_at_rest(folder).await?;
    let there = check(&store, senders, latest_ms(senders) - RETENTION_MS).await?;
    store.series.seal_now().await.map_err(|error| chain(&error))?;
    let merged = store.series.compact_now(latest_ms(senders)).await;
    merged.map_err(|error| chain(&error))?;
    let again = check(&store, senders, latest_ms(senders) - RETENTION_MS).await?;
    if again != there {
        return Err(format!(
            "{there:?} appends were there, and {again:?} after merging"
        ));
    }
    let wal_bytes = store.series.stats().wal_bytes;
    store.close().await;
    if wal_bytes > 0 {
        return Err(format!(
            "all is sealed, and {wal_bytes} bytes of write-ahead files are left"
        ));
    }
    let (in_chunks, all) = (samples_in_chunks(folder).await, samples_of(there, i64::MIN));
    // Retention may have dropped some samples.
    let kept = samples_of(there, latest_ms(senders) - RETENTION_MS);
    if !(kept..=all).contains(&in_chunks) {
        return Err(format!(
            "{in_chunks} samples in chunks, of {kept} to {all}: some are stored twice or lost"
        ));
    }
    Ok(())
}

async fn open_at_rest(folder: &Path) -> Result<Store, String> {
    let config = without_roll_ups(RETENTION_MS, folder);
    Store::open(config)
        .await
        .map_err(|error| format!("cannot be opened: {}", chain(&error)))
}

/// Returns the clock of the sender that is furthest ahead.
pub(crate) fn latest_ms(senders: &Senders) -> i64 {
    now_ms(senders.iter().map(|sender| sender.sent).max().unwrap_or(0))
}
