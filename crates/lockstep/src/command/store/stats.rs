//! `lockstep store stats`

use clap::Args;
use domain::api::store::StoreStats;
use domain::bytes::DisplayBytes;

use crate::client::Target;
use crate::failure::Failure;
use crate::table;

/// Show how much is stored, and how much disk space is free.
#[derive(Args)]
pub(super) struct Stats {
    /// Print the API's response as JSON.
    #[arg(long)]
    json: bool,
}

impl Stats {
    pub(super) async fn execute(self, target: &Target) -> Result<(), Failure> {
        let stats: serde_json::Value = target.client()?.get("/api/store/stats", &[]).await?;
        if self.json {
            say!("{stats}");
            return Ok(());
        }
        let stats: StoreStats = serde_json::from_value(stats).map_err(anyhow::Error::new)?;
        table::print(&["STATISTIC", "VALUE"], &rows(&stats));
        Ok(())
    }
}

fn rows(stats: &StoreStats) -> Vec<Vec<String>> {
    let bytes = |bytes: u64| DisplayBytes(bytes).to_string();
    let time = |ms: Option<i64>| {
        let time = ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        time.map_or("-".to_owned(), |time| time.to_string())
    };
    let each = stats.bytes_per_sample;
    let disk = &stats.disk;
    let state = match disk.blocked {
        None => "accepted".to_owned(),
        Some(reason) => format!("REFUSED: {}", reason.word().replace('_', " ")),
    };
    [
        ("series", stats.series.to_string()),
        ("samples in chunks", stats.chunk_samples.to_string()),
        (
            "chunks",
            format!("{}, {}", stats.chunks, bytes(stats.chunk_bytes)),
        ),
        (
            "roll-ups",
            format!("{} buckets, {}", stats.rollup_buckets, bytes(stats.rollup_bytes)),
        ),
        (
            "bytes per sample",
            each.map_or("-".to_owned(), |each| format!("{each:.2}")),
        ),
        ("memory of new samples", bytes(stats.head_bytes)),
        ("memory of recent chunks", bytes(stats.recent_chunk_bytes)),
        ("memory of chunks read", bytes(stats.cached_chunk_bytes)),
        ("write-ahead", bytes(stats.wal_bytes)),
        ("all files", bytes(stats.file_bytes)),
        ("oldest sample", time(stats.oldest_ms)),
        ("newest sample", time(stats.newest_ms)),
        (
            "disk",
            format!("{} free of {}", bytes(disk.free_bytes), bytes(disk.total_bytes)),
        ),
        ("minimum free space", bytes(disk.floor_bytes)),
        ("new samples are", state),
    ]
    .into_iter()
    .map(|(what, how_much)| vec![what.to_owned(), how_much])
    .collect()
}
