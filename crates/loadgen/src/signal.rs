//! The values of an exporter's GPU metrics over time, as a pure function of (key, tick), so that a check computes the same values.
//!
//! Walks are sums of noise on lattices of different widths (slow drift, load phases, jitter), rounded as exporters round.
//! Counters are a line plus noise smaller than the growth of one tick, so they fall only when they restart, as after a reload
//! of the driver. Each restarts after its own number of hours.

use domain::noise::{mix, unit};

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Never changes. A few of them have values that are hard for codecs.
    Constant,
    /// °C, whole numbers that drift.
    Temperature,
    /// W with three decimals, noisy.
    Power,
    /// Whole per cent, noisy, sometimes exactly 0 or 100.
    Percent,
    /// 0 to 1 with this many decimals.
    Ratio(i32),
    /// MHz in steps of 15, mostly at the maximum.
    Clock,
    /// MiB in use, with plateaus.
    Plateau,
    /// Whole numbers that grow by about this much per tick at a noisy rate, and restart every 5 to 16 hours.
    Counter(u64),
    /// Whole numbers that grow rarely.
    RareCounter,
}

/// Valid values that a store may nevertheless lose: large, tiny, negative zero, 64-bit "blank" marks, binary fractions.
const EDGES: [f64; 8] = [
    -0.0,
    9_223_372_036_854_775_794.0,
    1.797_693_134_862_315_7e308,
    5e-324,
    -273.15,
    0.1 + 0.2,
    4_503_599_627_370_497.5,
    1e-9,
];
/// One constant series in this many has such a value.
const EDGE_EVERY: u64 = 24;

/// The minimum number of ticks after which a counter restarts.
const LIFE_MIN: u64 = 20_000;
/// The range of the ticks that are added to [`LIFE_MIN`], different for each counter.
const LIFE_SPREAD: u64 = 40_000;

/// The values of one series.
#[derive(Debug, Clone, Copy)]
pub struct Signal {
    key: u64,
    shape: Shape,
}

impl Signal {
    /// Creates the signal of a series; `key` is unique to the series.
    #[must_use]
    pub fn new(key: u64, shape: Shape) -> Self {
        Self { key: mix(key), shape }
    }

    /// Returns the value at a tick.
    #[must_use]
    pub fn at(&self, tick: u64) -> f64 {
        match self.shape {
            Shape::Constant => self.constant(),
            Shape::Temperature => {
                (34.0 + 40.0 * self.own(1) + 8.0 * self.drift(2, tick, 600) + 3.0 * self.drift(3, tick, 45))
                    .round()
            }
            Shape::Power => self.power(tick),
            Shape::Percent => self.percent(tick),
            Shape::Ratio(decimals) => self.ratio(tick, decimals),
            Shape::Clock => 1_980.0 - 15.0 * (self.drift(1, tick, 20) * 18.0 - 14.0).max(0.0).floor(),
            Shape::Plateau => (600.0 + 79_000.0 * self.noise(1, tick / 240)).floor(),
            Shape::Counter(rate) => self.counter(tick, rate),
            Shape::RareCounter => ((tick + self.key % 997) / (300 + self.key % 400)) as f64,
        }
    }

    fn constant(&self) -> f64 {
        if self.key.is_multiple_of(EDGE_EVERY) {
            return EDGES[(self.key / EDGE_EVERY % EDGES.len() as u64) as usize];
        }
        [0.0, 1.0, 700.0, 81_559.0, 1_593.0, 5.0][(self.key >> 8) as usize % 6]
    }

    fn power(&self, tick: u64) -> f64 {
        let watts = 90.0
            + 300.0 * self.own(1)
            + 180.0 * self.drift(2, tick, 300)
            + 40.0 * self.drift(3, tick, 12)
            + 4.0 * self.noise(4, tick);
        (watts * 1_000.0).round() / 1_000.0
    }

    fn percent(&self, tick: u64) -> f64 {
        let load = 160.0 * self.drift(1, tick, 90) - 20.0 + 9.0 * self.noise(2, tick);
        load.clamp(0.0, 100.0).round()
    }

    fn ratio(&self, tick: u64, decimals: i32) -> f64 {
        let scale = 10_f64.powi(decimals);
        let share = 0.1 + 0.55 * self.own(1) + 0.2 * self.drift(2, tick, 120) + 0.1 * self.noise(3, tick);
        (share * scale).round() / scale
    }

    /// The jitter is below half of the growth of one tick, so the counter does not fall.
    fn counter(&self, tick: u64, rate: u64) -> f64 {
        let own_rate = rate / 2 + (self.own(1) * rate as f64) as u64;
        let jitter = (self.noise(2, tick) * own_rate as f64 * 0.2) as u64;
        let life = LIFE_MIN + self.key % LIFE_SPREAD;
        let age = (tick + (self.own(3) * life as f64) as u64) % life;
        (own_rate * age + jitter) as f64
    }

    /// Returns a number from 0 to 1 that depends only on the series.
    fn own(&self, lane: u64) -> f64 {
        own(self.key, lane)
    }

    fn drift(&self, lane: u64, tick: u64, width: u64) -> f64 {
        drift(self.key, lane, tick, width)
    }

    fn noise(&self, lane: u64, at: u64) -> f64 {
        noise(self.key, lane, at)
    }
}

/// Returns a number from 0 to 1 that depends only on the key.
pub(crate) fn own(key: u64, lane: u64) -> f64 {
    noise(key, lane ^ 0x5bd1, u64::MAX)
}

/// Interpolates linearly between random points `width` ticks apart; 0 to 1.
pub(crate) fn drift(key: u64, lane: u64, tick: u64, width: u64) -> f64 {
    let (from, to) = (noise(key, lane, tick / width), noise(key, lane, tick / width + 1));
    from + (to - from) * (tick % width) as f64 / width as f64
}

/// Returns uniform noise, 0 to 1.
pub(crate) fn noise(key: u64, lane: u64, at: u64) -> f64 {
    unit(mix(key ^ spread(at.wrapping_add(lane << 48))))
}

/// Spreads small numbers before [`mix`] does the rest.
fn spread(bits: u64) -> u64 {
    bits.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Shape; 9] = [
        Shape::Constant,
        Shape::Temperature,
        Shape::Power,
        Shape::Percent,
        Shape::Ratio(4),
        Shape::Clock,
        Shape::Plateau,
        Shape::Counter(1_000_000),
        Shape::RareCounter,
    ];

    #[test]
    fn a_value_depends_on_key_and_tick_alone_and_is_finite() {
        for shape in ALL {
            for key in 0..500 {
                let signal = Signal::new(key, shape);
                assert!(signal.at(7).is_finite());
                assert_eq!(signal.at(7).to_bits(), Signal::new(key, shape).at(7).to_bits());
            }
        }
    }

    #[test]
    fn walks_walk_and_series_differ() {
        for shape in [Shape::Power, Shape::Percent, Shape::Ratio(4), Shape::Counter(900)] {
            let column = |key| {
                (0..600)
                    .map(|tick| Signal::new(key, shape).at(tick).to_bits())
                    .collect::<Vec<_>>()
            };
            let mut values = column(1);
            assert_ne!(values, column(2));
            values.sort_unstable();
            values.dedup();
            assert!(values.len() > 20, "{shape:?} has {} values", values.len());
        }
    }

    #[test]
    fn counters_fall_only_when_they_begin_anew() {
        for shape in [
            Shape::Counter(700_000),
            Shape::Counter(2_000_000_000),
            Shape::RareCounter,
        ] {
            for key in 0..20 {
                let signal = Signal::new(key, shape);
                let values: Vec<_> = (0..LIFE_MIN + LIFE_SPREAD).map(|tick| signal.at(tick)).collect();
                let falls: Vec<_> = values.windows(2).filter(|pair| pair[1] < pair[0]).collect();
                let expected = if shape == Shape::RareCounter { 0..=0 } else { 1..=3 };
                assert!(expected.contains(&falls.len()), "{shape:?}: {falls:?}");
                assert!(
                    falls.iter().all(|pair| pair[1] * 1_000.0 < pair[0]),
                    "{shape:?}: {falls:?}"
                );
            }
        }
    }

    #[test]
    fn decimals_are_decimals() {
        for tick in 0..500 {
            let watts = Signal::new(3, Shape::Power).at(tick);
            assert_eq!(format!("{watts:.3}").parse(), Ok(watts));
        }
    }

    #[test]
    fn some_constants_are_edges() {
        let edges = (0..2_000).filter(|key| EDGES.contains(&Signal::new(*key, Shape::Constant).at(0)));
        assert!(edges.count() > 30);
    }
}
