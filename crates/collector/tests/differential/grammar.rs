//! Random queries with a result: expressions are built according to the labels of their series, so that most of them match.
//!
//! ```text
//!  Gpu {node, gpu}   Code {node, gpu, code}   Node {node}   Rack {node, rack}   One {}
//!       └───── sum without (code) ◀──┘  └─ sum by (node) ─▶┘        └─ sum ─▶┘
//! ```
//! All query times end in 337 ms, ranges and offsets are whole seconds, ranges of sub-queries end in 211 ms and their steps are whole
//! seconds. So no sample and no step of a sub-query ever lies on the edge of a window, where 2.42 and 3 differ intentionally. For the same
//! reason these are left out: names that a function keeps (`sum by (__name__) (rate(…))`), statistics of infinite values, experimental
//! features of 3, and what 2.42 does not have.

use std::fmt;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::series::SPAN_MS;

/// A query for one server.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) text: String,
    start_ms: i64,
    end_ms: i64,
    /// 0 for an instant query.
    step_ms: i64,
}

impl Question {
    pub(crate) fn path(&self) -> &'static str {
        if self.step_ms == 0 { "query" } else { "query_range" }
    }

    pub(crate) fn params(&self) -> Vec<(&'static str, String)> {
        let query = ("query", self.text.clone());
        if self.step_ms == 0 {
            return vec![query, ("time", seconds(self.start_ms))];
        }
        let step = seconds(self.step_ms);
        vec![
            query,
            ("start", seconds(self.start_ms)),
            ("end", seconds(self.end_ms)),
            ("step", step),
        ]
    }

    /// Returns true if the order of the result is significant.
    pub(crate) fn is_ordered(&self) -> bool {
        self.step_ms == 0 && self.text.starts_with("sort")
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            text,
            start_ms,
            end_ms,
            step_ms,
        } = self;
        match step_ms {
            0 => write!(f, "{text}   at {}", seconds(*start_ms)),
            _ => write!(
                f,
                "{text}   from {} to {} by {}",
                seconds(*start_ms),
                seconds(*end_ms),
                seconds(*step_ms)
            ),
        }
    }
}

fn seconds(ms: i64) -> String {
    format!("{}.{:03}", ms.div_euclid(1_000), ms.rem_euclid(1_000))
}

/// The labels of an expression's series, apart from the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Gpu,
    Code,
    Node,
    Rack,
    One,
}

const SHAPES: [Shape; 5] = [Shape::Gpu, Shape::Code, Shape::Node, Shape::Rack, Shape::One];
/// Functions of a window of any values.
const OVER: [&str; 16] = [
    "avg_over_time",
    "min_over_time",
    "max_over_time",
    "sum_over_time",
    "count_over_time",
    "last_over_time",
    "present_over_time",
    "stddev_over_time",
    "stdvar_over_time",
    "delta",
    "idelta",
    "deriv",
    "changes",
    "resets",
    "quantile_over_time(0.7, ",
    "quantile_over_time(0.25, ",
];
const COUNTER_OVER: [&str; 4] = ["rate", "increase", "irate", "resets"];
const EACH: [&str; 25] = [
    "abs", "ceil", "floor", "round", "exp", "ln", "log2", "log10", "sqrt", "sgn", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "deg", "rad", "-",
];
const CALENDAR: [&str; 8] = [
    "minute",
    "hour",
    "day_of_week",
    "day_of_month",
    "day_of_year",
    "days_in_month",
    "month",
    "year",
];
const FOLDS: [&str; 9] = [
    "sum", "avg", "min", "max", "count", "group", "stddev", "stdvar", "quantile",
];
const ARITHMETIC: [&str; 7] = ["+", "-", "*", "/", "%", "^", "atan2"];
const COMPARISONS: [&str; 6] = ["==", "!=", "<", "<=", ">", ">="];
const SETS: [&str; 3] = ["and", "or", "unless"];

pub(crate) struct Grammar {
    rng: StdRng,
    base_ms: i64,
}

impl Grammar {
    pub(crate) fn new(seed: u64, base_ms: i64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            base_ms,
        }
    }

    pub(crate) fn question(&mut self) -> Question {
        let text = self.whole();
        let is_instant_only = text.starts_with("sort") || text.starts_with('"') || text.ends_with("]");
        if is_instant_only || self.chance(50) {
            let at = self.time(2);
            return Question {
                text,
                start_ms: at,
                end_ms: at,
                step_ms: 0,
            };
        }
        let (start_ms, step_ms) = (self.time(2), self.pick(&[15_000, 20_000, 60_000, 97_000]));
        let end_ms = start_ms + step_ms * self.number(1, 25) + 5_000;
        Question {
            text,
            start_ms,
            end_ms,
            step_ms,
        }
    }

    // === dice ===

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.random_range(0..of.len())]
    }

    fn number(&mut self, from: i64, to: i64) -> i64 {
        self.rng.random_range(from..to)
    }

    /// A time at least `minutes` after the first sample.
    fn time(&mut self, minutes: i64) -> i64 {
        self.base_ms + self.number(minutes * 60, SPAN_MS / 1_000) * 1_000 + 337
    }

    // === whole queries ===

    fn whole(&mut self) -> String {
        let shape = self.shape();
        match self.number(0, 100) {
            0..4 => self.scalar(2),
            4..6 => "\"a string\"".to_owned(),
            6..9 => self.range_selector(shape),
            9..13 => {
                let (op, inner) = (self.pick(&["sort", "sort_desc"]), self.distinct(shape));
                format!("{op}({inner})")
            }
            13..20 => self.ranked(shape),
            20..24 => self.odd(),
            24..28 => self.absent(),
            28..31 => self.count_values(shape),
            31..37 => self.histogram(),
            37..40 => self.wild(),
            40..44 => self.powers(shape),
            _ => self.vector(shape, 3),
        }
    }

    fn shape(&mut self) -> Shape {
        self.pick(&SHAPES)
    }

    /// Series of which no two have equal values.
    fn distinct(&mut self, shape: Shape) -> String {
        match shape {
            Shape::Code => self.selector("requests_total"),
            Shape::Node | Shape::Rack | Shape::One => self.selector("load"),
            Shape::Gpu => self.selector("power_watts"),
        }
    }

    fn ranked(&mut self, shape: Shape) -> String {
        let (op, limit) = (self.pick(&["topk", "bottomk"]), self.number(0, 5));
        let (grouping, inner) = (
            self.pick(&["", " by (node)", " without (gpu)", " by (gpu, node)"]),
            self.distinct(shape),
        );
        match self.chance(30) {
            true => format!("{op}{grouping} ({limit}, rate(requests_total[5m]))"),
            false => format!("{op}{grouping} ({limit}, {inner})"),
        }
    }

    /// Powers and angles: of small numbers, because the variance of infinities is different in 3; and only at the end, because differences
    /// of almost equal angles depend on rounding.
    fn powers(&mut self, shape: Shape) -> String {
        let (left, right) = (self.vector(shape, 1), self.vector(shape, 1));
        let fold = self.pick(&["max", "max by (node)", "min without (gpu)", "count"]);
        match self.number(0, 5) {
            // Of unchanged samples: a value that is almost a multiple could be one on one server only.
            4 => format!(
                "{} % on (node, gpu) {}",
                self.selector("power_watts"),
                self.pick(&["temp_celsius", "power_watts / 4"])
            ),
            0 => format!("{fold} (({left}) atan2 ({right}))"),
            1 => format!("{fold} (({left}) atan2 {})", self.constant()),
            2 => format!("clamp({left}, 0.5, 50) ^ clamp({right}, -20, 20)"),
            _ => format!("({}) ^ ({left})", self.pick(&["2", "0", "-1", "0.5"])),
        }
    }

    /// NaNs and infinities, where they have the same meaning on both servers.
    fn odd(&mut self) -> String {
        let of = self.pick(&["odd", "odd{is=\"mixed\"}", "odd{is!=\"nan\"}"]);
        let over = self.pick(&[
            "min_over_time",
            "max_over_time",
            "sum_over_time",
            "count_over_time",
            "last_over_time",
            "changes",
        ]);
        let each = self.pick(&EACH);
        match self.number(0, 6) {
            0 => of.to_owned(),
            1 => format!("{over}({of}[{}s])", self.number(30, 400)),
            2 => format!("{each}({of})"),
            3 => format!("{}({of})", self.pick(&["min", "max", "sum", "count", "group"])),
            4 => format!(
                "{of} {} {}",
                self.pick(&COMPARISONS),
                self.pick(&["2", "Inf", "-Inf", "NaN", "0"])
            ),
            _ => format!(
                "{of} {} {}",
                self.pick(&ARITHMETIC),
                self.pick(&["2", "Inf", "0", "-1"])
            ),
        }
    }

    fn absent(&mut self) -> String {
        let of = self.pick(&[
            "nothing",
            "nothing{a=\"b\"}",
            "nothing{a=\"b\", c=~\"d\", e!=\"f\"}",
            "power_watts",
            "power_watts{node=\"z\"}",
            "{a=\"b\"}",
            "job_up{node=\"a\"}",
            "sparse{node=\"b\"}",
            "nothing{a=\"b\", a=\"c\"}",
        ]);
        match self.number(0, 4) {
            0 => format!("absent({of})"),
            1 => format!("absent_over_time({of}[{}s])", self.number(20, 300)),
            2 => format!("absent(sum({of}))"),
            _ => format!("absent_over_time({of}[{}s211ms:20s])", self.number(20, 300)),
        }
    }

    fn count_values(&mut self, shape: Shape) -> String {
        let grouping = self.pick(&["", " by (node)", " without (gpu)"]);
        let inner = self.distinct(shape);
        match self.chance(50) {
            true => format!("count_values{grouping} (\"value\", {inner})"),
            false => format!("count_values{grouping} (\"value\", floor({inner} / 64))"),
        }
    }

    fn histogram(&mut self) -> String {
        let (q, range) = (
            self.pick(&["0.5", "0.9", "0.99", "0", "1", "-0.5", "1.5", "0.001"]),
            self.range(),
        );
        let (function, shift) = (self.pick(&["rate", "increase"]), self.shift());
        match self.number(0, 4) {
            0 => format!("histogram_quantile({q}, latency_seconds_bucket{shift})"),
            1 => format!("histogram_quantile({q}, {function}(latency_seconds_bucket[{range}]{shift}))"),
            2 => format!(
                "histogram_quantile({q}, sum by (le) ({function}(latency_seconds_bucket[{range}]{shift})))"
            ),
            _ => format!(
                "rate(latency_seconds_sum[{range}]{shift}) / rate(latency_seconds_count[{range}]{shift})"
            ),
        }
    }

    /// Vectors that may not match, and labels used where there are none: either both servers fail or neither.
    fn wild(&mut self) -> String {
        let (a, b) = (self.shape(), self.shape());
        let (left, right) = (self.vector(a, 1), self.vector(b, 1));
        let labels = self.pick(&["node", "gpu", "node, gpu", "", "code", "rack"]);
        let word = self.pick(&["on", "ignoring"]);
        let group = self.pick(&[
            "",
            "",
            " group_left ()",
            " group_right ()",
            " group_left (rack)",
            " group_right (rack)",
        ]);
        // Labels on both lists are rejected by the parser.
        let group = if labels == "rack" && word == "on" {
            ""
        } else {
            group
        };
        format!(
            "({left}) {} {word} ({labels}){group} ({right})",
            self.pick(&["+", "-", "*", "/"])
        )
    }

    // === scalars ===

    fn scalar(&mut self, depth: u32) -> String {
        let number = self.pick(&["1", "0", "-2.5", "1e3", "0x1F", "0.5", "Inf", "NaN", "42"]);
        if depth == 0 || self.chance(30) {
            return number.to_owned();
        }
        let shape = self.shape();
        match self.number(0, 7) {
            0 => "time()".to_owned(),
            1 => "pi()".to_owned(),
            2 => format!("scalar({})", self.vector(shape, depth - 1)),
            3 => format!("scalar(sum({}))", self.vector(shape, depth - 1)),
            4 => format!("-({})", self.scalar(depth - 1)),
            5 => format!(
                "({}) {} bool ({})",
                self.scalar(depth - 1),
                self.pick(&COMPARISONS),
                self.scalar(depth - 1)
            ),
            _ => format!(
                "({}) {} ({})",
                self.scalar(depth - 1),
                self.pick(&ARITHMETIC),
                self.scalar(depth - 1)
            ),
        }
    }

    fn constant(&mut self) -> String {
        self.pick(&["0", "1", "2", "0.5", "10", "100", "400", "-3", "time() % 600"])
            .to_owned()
    }

    // === selectors ===

    fn metric(&mut self, shape: Shape) -> &'static str {
        match shape {
            Shape::Gpu => self.pick(&["power_watts", "power_watts", "temp_celsius"]),
            Shape::Code => "requests_total",
            Shape::Node => self.pick(&[
                "load",
                "sparse",
                "job_up",
                "errors_total",
                "latency_seconds_count",
            ]),
            Shape::Rack => "node_info",
            Shape::One => "load{node=\"a\"}",
        }
    }

    fn matchers(&mut self, metric: &str) -> String {
        if metric.contains('{') || self.chance(70) {
            return metric.to_owned();
        }
        let has_gpu = ["power_watts", "temp_celsius", "requests_total"].contains(&metric);
        let matcher = match self.number(0, 10) {
            0..2 if has_gpu => self.pick(&[
                "gpu=~\"[01]\"",
                "gpu!=\"2\"",
                "node=\"b\", gpu=\"1\"",
                "gpu!~\"\"",
            ]),
            2 if metric == "requests_total" => "code=\"500\"",
            3 => self.pick(&["node=\"\"", "node=\"nowhere\"", "node=~\"A\""]),
            _ => self.pick(&[
                "node=\"a\"",
                "node!=\"b\"",
                "node=~\"a|c\"",
                "node!~\"a\"",
                "node=~\".+\"",
                "node=~\"(?i:A)|b\"",
                "job=\"\", node=~\"[a-b]\"",
            ]),
        };
        format!("{metric}{{{matcher}}}")
    }

    fn selector(&mut self, metric: &str) -> String {
        let (selector, shift) = (self.matchers(metric), self.shift());
        format!("{selector}{shift}")
    }

    fn range(&mut self) -> &'static str {
        self.pick(&["40s", "1m", "90s", "2m", "5m", "10m", "437s"])
    }

    fn range_selector(&mut self, shape: Shape) -> String {
        let metric = self.metric(shape);
        let (selector, range) = (self.matchers(metric), self.range());
        format!("{selector}[{range}]")
    }

    /// `@` and `offset`, usually neither.
    fn shift(&mut self) -> String {
        let at = match self.number(0, 20) {
            0 => " @ start()".to_owned(),
            1 => " @ end()".to_owned(),
            2 => format!(" @ {}", seconds(self.time(5))),
            _ => String::new(),
        };
        let offset = match self.number(0, 12) {
            0 => format!(" offset {}s", self.number(1, 600)),
            1 => format!(" offset -{}s", self.number(1, 300)),
            _ => String::new(),
        };
        if self.chance(20) {
            format!("{offset}{at}")
        } else {
            format!("{at}{offset}")
        }
    }

    // === vectors ===

    fn vector(&mut self, shape: Shape, depth: u32) -> String {
        if depth == 0 {
            let metric = self.metric(shape);
            return self.selector(metric);
        }
        match self.number(0, 100) {
            0..8 => {
                let metric = self.metric(shape);
                self.selector(metric)
            }
            8..26 => self.over_samples(shape),
            26..37 => self.over_subquery(shape, depth - 1),
            37..45 => self.each(shape, depth - 1),
            45..63 => self.folded(shape, depth - 1),
            63..70 => self.with_scalar(shape, depth - 1),
            70..82 => self.paired(shape, depth - 1),
            82..90 => self.set(shape, depth - 1),
            _ => self.labelled(shape, depth - 1),
        }
    }

    fn over_samples(&mut self, shape: Shape) -> String {
        let metric = self.metric(shape);
        let is_counter = metric.ends_with("_total") || metric.ends_with("_count");
        let (selector, range, shift) = (self.matchers(metric), self.range(), self.shift());
        let window = format!("{selector}[{range}]{shift}");
        if is_counter && self.chance(70) {
            return format!("{}({window})", self.pick(&COUNTER_OVER));
        }
        match self.number(0, 12) {
            0 => format!("holt_winters({window}, 0.3, 0.6)"),
            // With `@`, 2.42 moves the window of `predict_linear` along with the steps.
            1 => format!(
                "predict_linear({selector}[{range}], {})",
                self.number(-600, 3_600)
            ),
            2 => format!("timestamp({selector}{shift})"),
            _ => over(self.pick(&OVER), &window),
        }
    }

    fn over_subquery(&mut self, shape: Shape, depth: u32) -> String {
        let inner = self.vector(shape, depth);
        let (range_s, step, shift) = (
            self.number(20, 500),
            self.pick(&["10s", "15s", "20s", "30s", "1m", ""]),
            self.shift(),
        );
        let window = format!("({inner})[{range_s}s211ms:{step}]{shift}");
        let function = self.pick(&[
            "avg_over_time",
            "min_over_time",
            "max_over_time",
            "sum_over_time",
            "count_over_time",
            "last_over_time",
            "present_over_time",
            "stddev_over_time",
            "deriv",
            "delta",
            "idelta",
            "quantile_over_time(0.7, ",
        ]);
        over(function, &window)
    }

    fn each(&mut self, shape: Shape, depth: u32) -> String {
        let (function, inner) = (self.pick(&EACH), self.vector(shape, depth));
        if ["exp", "sinh", "cosh"].contains(&function) {
            // Limited, so that the result is not infinite: see `powers`.
            return format!("{function}(clamp({inner}, -20, 20))");
        }
        match self.number(0, 10) {
            0 => format!("clamp({inner}, {}, {})", self.constant(), self.constant()),
            1 => format!("clamp_min({inner}, {})", self.constant()),
            2 => format!("clamp_max({inner}, {})", self.constant()),
            3 => format!("round({inner}, {})", self.pick(&["5", "0.1", "10", "0.25"])),
            // Limited, so that a calendar has the year. The year of NaN is undefined.
            4 => format!("{}(clamp({inner}, -1e10, 1e10) >= -1e10)", self.pick(&CALENDAR)),
            5 => format!("{}(timestamp({inner}))", self.pick(&CALENDAR)),
            6 => format!("timestamp({inner})"),
            _ => format!("{function}({inner})"),
        }
    }

    /// An aggregation that keeps the labels of `shape`.
    fn folded(&mut self, shape: Shape, depth: u32) -> String {
        let fold = self.pick(&FOLDS);
        let (from, grouping) = match shape {
            Shape::Gpu => (
                Shape::Code,
                self.pick(&[" by (node, gpu)", " without (code)", " by (gpu, node, nowhere)"]),
            ),
            Shape::Node => {
                let from = self.pick(&[Shape::Gpu, Shape::Code, Shape::Rack]);
                let without = if from == Shape::Rack {
                    " without (rack)"
                } else {
                    " without (gpu, code)"
                };
                (from, self.pick(&[" by (node)", without]))
            }
            Shape::One => (self.shape(), self.pick(&["", " by ()", " by (nowhere)"])),
            Shape::Code => (Shape::Code, " by (node, gpu, code)"),
            Shape::Rack => (Shape::Rack, self.pick(&[" by (node, rack)", " without ()"])),
        };
        let inner = self.vector(from, depth);
        match fold {
            "quantile" => format!(
                "quantile{grouping} ({}, {inner})",
                self.pick(&["0.5", "0.9", "0", "1", "-1", "2"])
            ),
            _ => format!("{fold}{grouping} ({inner})"),
        }
    }

    fn with_scalar(&mut self, shape: Shape, depth: u32) -> String {
        let inner = self.vector(shape, depth);
        let scalar = match self.chance(70) {
            true => self.constant(),
            false => self.scalar(1),
        };
        // A value that is almost a whole number may be on different sides of it: no equality.
        let op = match self.number(0, 10) {
            0..6 => self.pick(&["+", "-", "*", "/"]).to_owned(),
            6..9 => self.pick(&["<", ">"]).to_owned(),
            _ => format!("{} bool", self.pick(&["<", ">"])),
        };
        match self.chance(70) {
            true => format!("({inner}) {op} ({scalar})"),
            false => format!("({scalar}) {op} ({inner})"),
        }
    }

    fn paired(&mut self, shape: Shape, depth: u32) -> String {
        let left = self.vector(shape, depth);
        let op = match self.number(0, 10) {
            0..7 => self.pick(&["+", "-", "*", "/"]).to_owned(),
            7..9 => self.pick(&["<", ">"]).to_owned(),
            _ => format!("{} bool", self.pick(&["<", ">"])),
        };
        let (matching, right) = match (shape, self.number(0, 3)) {
            (Shape::Gpu, 0) => (
                self.pick(&[" on (node) group_left ()", " on (node) group_left (rack)"]),
                Shape::Rack,
            ),
            (Shape::Code, 0) => (" ignoring (code) group_left ()", Shape::Gpu),
            (Shape::Code, 1) => (" on (node) group_left (rack)", Shape::Rack),
            (Shape::Rack, 0) => (" on (node)", Shape::Node),
            (Shape::Node, 0) => (" ignoring (rack)", Shape::Rack),
            (Shape::Gpu | Shape::Code, _) => (
                self.pick(&["", " on (node, gpu, code)", " ignoring (nowhere)"]),
                shape,
            ),
            (Shape::Node, _) => (self.pick(&["", " on (node)", " ignoring (gpu)"]), shape),
            (Shape::Rack, _) => (self.pick(&["", " on (node, rack)", " on (node)"]), shape),
            (Shape::One, _) => (self.pick(&["", " on ()"]), shape),
        };
        let right = self.vector(right, depth);
        // The many side on the right: the same in reverse.
        match matching.contains("group_left") && self.chance(30) {
            true => format!(
                "({right}) {op}{} ({left})",
                matching.replace("group_left", "group_right")
            ),
            false => format!("({left}) {op}{matching} ({right})"),
        }
    }

    fn set(&mut self, shape: Shape, depth: u32) -> String {
        let (op, left) = (self.pick(&SETS), self.vector(shape, depth));
        let (matching, right) = match self.chance(60) {
            true => ("", shape),
            false => (
                self.pick(&[" on (node)", " on ()", " ignoring (gpu, code, rack)"]),
                self.shape(),
            ),
        };
        // Both sides of an `or` may have one label set, once with its name and once without: use nameless series from the start.
        let right = self.vector(right, depth);
        format!("({left}) {op}{matching} ({right})")
    }

    fn labelled(&mut self, shape: Shape, depth: u32) -> String {
        let inner = self.vector(shape, depth);
        match self.number(0, 4) {
            0 => format!(
                "label_join({inner}, \"joined\", \"{}\", \"node\", \"gpu\")",
                self.pick(&["-", "", "/"])
            ),
            1 => {
                let (text, pattern) = self.pick(&[
                    ("$1", "(.*)"),
                    ("x-$1", "([ab])"),
                    ("${1}0", "(.).*"),
                    ("", ".*"),
                    ("fixed", "a"),
                    ("$2$1", "(.)(.*)"),
                    ("$name", "(?P<name>.+)"),
                ]);
                format!("label_replace({inner}, \"replaced\", \"{text}\", \"node\", \"{pattern}\")")
            }
            2 => format!("label_replace({inner}, \"gpu\", \"\", \"node\", \"nowhere\")"),
            _ => format!("label_replace({inner}, \"place\", \"$1/$2\", \"node\", \"(.*)()\")"),
        }
    }
}

fn over(function: &str, window: &str) -> String {
    if function.ends_with(' ') {
        format!("{function}{window})")
    } else {
        format!("{function}({window})")
    }
}
