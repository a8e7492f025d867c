//! The functions of PromQL, by name.

macro_rules! functions {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// A function of PromQL.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Function {
            $($variant,)*
        }

        impl Function {
            /// Returns the function with this name; `None` if the engine does not support it.
            pub(crate) fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name of the function in queries.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

functions! {
    // Of a range: differences.
    Rate = "rate", Increase = "increase", Delta = "delta", Irate = "irate", Idelta = "idelta",
    Deriv = "deriv", PredictLinear = "predict_linear", Changes = "changes", Resets = "resets",
    DoubleExponentialSmoothing = "double_exponential_smoothing",
    // Of a range: statistics.
    AvgOverTime = "avg_over_time", SumOverTime = "sum_over_time", MinOverTime = "min_over_time",
    MaxOverTime = "max_over_time", CountOverTime = "count_over_time", LastOverTime = "last_over_time",
    FirstOverTime = "first_over_time", PresentOverTime = "present_over_time", AbsentOverTime = "absent_over_time",
    StddevOverTime = "stddev_over_time", StdvarOverTime = "stdvar_over_time",
    QuantileOverTime = "quantile_over_time", MadOverTime = "mad_over_time",
    TsOfFirstOverTime = "ts_of_first_over_time", TsOfLastOverTime = "ts_of_last_over_time",
    TsOfMaxOverTime = "ts_of_max_over_time", TsOfMinOverTime = "ts_of_min_over_time",
    // Of each value.
    Abs = "abs", Ceil = "ceil", Floor = "floor", Round = "round", Exp = "exp", Ln = "ln", Log2 = "log2",
    Log10 = "log10", Sqrt = "sqrt", Sgn = "sgn", Clamp = "clamp", ClampMin = "clamp_min", ClampMax = "clamp_max",
    Sin = "sin", Cos = "cos", Tan = "tan", Asin = "asin", Acos = "acos", Atan = "atan", Sinh = "sinh",
    Cosh = "cosh", Tanh = "tanh", Asinh = "asinh", Acosh = "acosh", Atanh = "atanh", Deg = "deg", Rad = "rad",
    // Calendar, in UTC.
    Minute = "minute", Hour = "hour", DayOfWeek = "day_of_week", DayOfMonth = "day_of_month",
    DayOfYear = "day_of_year", DaysInMonth = "days_in_month", Month = "month", Year = "year",
    // Conversions between types.
    Start = "start", End = "end", Step = "step", Range = "range", MinOf = "min_of", MaxOf = "max_of",
    Pi = "pi", Time = "time", Timestamp = "timestamp", Vector = "vector", Scalar = "scalar",
    // Labels and order.
    LabelReplace = "label_replace", LabelJoin = "label_join", Sort = "sort", SortDesc = "sort_desc",
    SortByLabel = "sort_by_label", SortByLabelDesc = "sort_by_label_desc",
    // Missing series, and histograms.
    Absent = "absent", HistogramQuantile = "histogram_quantile", HistogramFraction = "histogram_fraction",
    // Native histograms, which this engine does not support.
    HistogramCount = "histogram_count", HistogramSum = "histogram_sum", HistogramAvg = "histogram_avg",
    HistogramStddev = "histogram_stddev", HistogramStdvar = "histogram_stdvar",
}

impl Function {
    /// Returns true if the function sorts the samples of each window.
    pub(crate) fn sorts_samples(self) -> bool {
        matches!(self, Self::QuantileOverTime | Self::MadOverTime)
    }

    /// Returns true if the result is a scalar.
    pub(crate) fn is_scalar(self) -> bool {
        matches!(
            self,
            Self::Start
                | Self::End
                | Self::Step
                | Self::Range
                | Self::MinOf
                | Self::MaxOf
                | Self::Pi
                | Self::Time
                | Self::Scalar
        )
    }
}
