//! Creates a data folder with a long history: `fill FOLDER SERIES DAYS STEP_S`. The last sample is about now.
//!
//! For measuring what depends on the amount of data: start, checks, backups. It uses the public API of the store, with a clock
//! that runs through the days. It appends and seals one hour of every node at a time, and merges everything at the end, as in a
//! store that ran as long. The values look like GPU telemetry: decimals that move a little, counters, constants.
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use domain::series::Labels;
use store::series::{Append, Block, Shape};
use store::{SeriesStore, Store, StoreConfig};

const GPUS: u64 = 8;
const METRICS: u64 = 25;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

struct Plan {
    folder: PathBuf,
    series: u64,
    days: i64,
    step_ms: i64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let plan = plan().ok_or("usage: fill FOLDER SERIES DAYS STEP_S")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(fill(&plan))
}

fn plan() -> Option<Plan> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next()?.into();
    let mut number = || arguments.next()?.parse::<u32>().ok().filter(|number| *number > 0);
    Some(Plan {
        folder,
        series: number()?.into(),
        days: number()?.into(),
        step_ms: i64::from(number()?) * 1_000,
    })
}

async fn fill(plan: &Plan) -> Result<(), Box<dyn Error>> {
    let config = StoreConfig {
        gather_ms: 0,
        retention_ms: 2 * plan.days * DAY_MS,
        ..StoreConfig::new(&plan.folder)
    };
    let store = Store::open(config).await?;
    let mut nodes = nodes(&store.series, plan.series)?;
    let end_ms =
        i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())? / HOUR_MS * HOUR_MS;
    let began = Instant::now();
    for hour in 0..plan.days * 24 {
        let start_ms = end_ms - plan.days * DAY_MS + hour * HOUR_MS;
        let times_ms: Vec<i64> = (0..HOUR_MS / plan.step_ms)
            .map(|n| start_ms + n * plan.step_ms)
            .collect();
        for node in &mut nodes {
            store
                .series
                .append(node.hour(&times_ms), start_ms + HOUR_MS)
                .await?;
        }
        store.series.seal_now().await?;
        if hour % 24 == 23 {
            // What a collector's store does by itself once per day.
            store.series.retain_now(start_ms + HOUR_MS).await?;
            let samples = store.series.stats().samples_total;
            println!(
                "day {} of {}: {samples} samples, {:.0} s",
                hour / 24 + 1,
                plan.days,
                began.elapsed().as_secs_f64()
            );
        }
    }
    // A running store merges each hour after it is complete. Here everything is merged at once.
    store.series.compact_now(end_ms).await?;
    println!("merged: {:.0} s", began.elapsed().as_secs_f64());
    store.close().await;
    Ok(())
}

/// The series of one node, and the state of their values.
struct Node {
    shape: Arc<Shape>,
    walks: Vec<Walk>,
}

struct Walk {
    value: f64,
    /// The smallest change; 0 for a constant.
    step: f64,
    /// True for a counter, which only rises.
    rises: bool,
    random: u64,
}

fn nodes(series: &SeriesStore, count: u64) -> Result<Vec<Node>, Box<dyn Error>> {
    let numbers: Vec<u64> = (0..count).collect();
    let per_node = usize::try_from(GPUS * METRICS)?;
    let node = |of_node: &[u64]| {
        let ids = of_node
            .iter()
            .map(|number| Ok(series.resolve(&labels(*number)?)?));
        Ok(Node {
            shape: series.shape(ids.collect::<Result<_, Box<dyn Error>>>()?)?,
            walks: of_node.iter().map(|number| Walk::new(*number)).collect(),
        })
    };
    numbers.chunks(per_node).map(node).collect()
}

fn labels(number: u64) -> Result<Labels, Box<dyn Error>> {
    let (metric, rest) = (number % METRICS, number / METRICS);
    let (gpu, node) = ((rest % GPUS).to_string(), format!("node-{:04}", rest / GPUS));
    Ok(Labels::new([
        ("__name__", format!("gpu_metric_{metric:02}").as_str()),
        ("gpu", gpu.as_str()),
        ("node", node.as_str()),
    ])?)
}

impl Node {
    fn hour(&mut self, times_ms: &[i64]) -> Append {
        let values = self
            .walks
            .iter_mut()
            .flat_map(|walk| times_ms.iter().map(|_| walk.next()));
        let block = Block {
            shape: Arc::clone(&self.shape),
            values: values.collect(),
            times_ms: times_ms.to_vec(),
        };
        Append {
            source: None,
            blocks: vec![block],
        }
    }
}

impl Walk {
    fn new(number: u64) -> Self {
        let (step, rises) = match number % METRICS {
            0..8 => (0.0, false),
            8..14 => (0.25, false),
            14..19 => (1.0, false),
            19..22 => (0.001, false),
            _ => (4_096.0, true),
        };
        Self {
            value: 300.0,
            step,
            rises,
            random: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn next(&mut self) -> f64 {
        // xorshift64: random enough for a realistic compression ratio.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let change = (self.random >> 40) % 9;
        self.value += self.step
            * if self.rises {
                change as f64
            } else {
                change as f64 - 4.0
            };
        self.value
    }
}
