//! Draws the lines: over the previous ones on a terminal, below them elsewhere.

use super::row::Row;
use crate::failure::Failure;
use crate::table;

const HEADER: [&str; 15] = [
    "NODE", "GPU", "NAME", "SM%", "TENSOR%", "DRAM%", "MEM GiB", "MEM%", "POWER W", "TEMP C", "SM MHz",
    "NVLINK%", "PCIE%", "THROTTLE", "RUN/RANK",
];
const GIB: f64 = 1_073_741_824.0;
/// Height in lines if the terminal does not report it.
const LINES: usize = 24;
/// The line above the table, its header, the line below, and the line with the cursor.
const OTHER_LINES: usize = 4;

/// The output that lines are drawn to.
pub(super) struct Screen {
    is_terminal: bool,
    drawn: bool,
}

impl Screen {
    pub(super) fn new(is_terminal: bool) -> Self {
        Self {
            is_terminal,
            drawn: false,
        }
    }

    /// Draws the rows of one read.
    pub(super) fn show(&mut self, rows: &[Row], simulated: Option<&str>) {
        let room = if self.is_terminal {
            height().saturating_sub(OTHER_LINES).max(1)
        } else {
            usize::MAX
        };
        let time = jiff::Zoned::now().strftime("%H:%M:%S").to_string();
        let text = text(rows, simulated, &time, room);
        if self.is_terminal {
            // Start at the first line, and clear the rest of each line and the screen below after writing: this avoids flicker.
            let clear = if self.drawn {
                "\u{1b}[H"
            } else {
                "\u{1b}[2J\u{1b}[H"
            };
            crate::say::write(&format!("{clear}{}\u{1b}[J", text.replace('\n', "\u{1b}[K\n")));
        } else {
            let gap = if self.drawn { "\n" } else { "" };
            crate::say::write(&format!("{gap}{text}"));
        }
        self.drawn = true;
    }

    /// Reports a failed read on stderr. The last lines stay.
    pub(super) fn show_error(&self, failure: &Failure) {
        eprintln!("{}", table::printable(&failure.message()));
    }
}

fn height() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(LINES, |size| usize::from(size.ws_row))
}

fn text(rows: &[Row], simulated: Option<&str>, time: &str, room: usize) -> String {
    let mut nodes: Vec<&str> = rows.iter().map(|row| row.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let watts: f64 = rows.iter().filter_map(|row| row.power_watts).sum();
    let mut text = format!(
        "{time}  {}, {}, {watts:.0} W",
        count(rows.len(), "GPU"),
        count(nodes.len(), "node")
    );
    if let Some(simulated) = simulated {
        text.push_str(&format!("  SIMULATED: {}", table::printable(simulated)));
    }
    text.push('\n');
    if rows.is_empty() {
        text.push_str("no GPUs found; `lockstep doctor` shows why\n");
        return text;
    }
    let shown: Vec<_> = rows.iter().take(room).map(cells).collect();
    text.push_str(&table::render(&HEADER, &shown));
    if rows.len() > room {
        text.push_str(&format!(
            "… and {} more; --sort and --node choose others\n",
            rows.len() - room
        ));
    }
    text
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn cells(row: &Row) -> Vec<String> {
    let percent = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{:.0}", ratio * 100.0));
    let whole = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
    let of = |value: Option<f64>, most: Option<f64>| match most {
        Some(most) => format!("{}/{most:.0}", whole(value)),
        None => whole(value),
    };
    let gib = |bytes: Option<f64>| bytes.map(|bytes| bytes / GIB);
    let (busy, coarse) = row.busy();
    let state = if row.up {
        row.throttle.join(",")
    } else {
        "DOWN".to_owned()
    };
    vec![
        row.node.clone(),
        row.gpu.to_string(),
        short_name(&row.name).to_owned(),
        format!("{}{}", if coarse { "~" } else { "" }, percent(busy)),
        percent(row.tensor_active_ratio),
        percent(row.dram_active_ratio),
        of(gib(row.memory_used_bytes), gib(row.memory_total_bytes)),
        percent(row.memory_ratio()),
        of(row.power_watts, row.power_limit_watts),
        of(row.temperature_celsius, row.memory_temperature_celsius),
        whole(row.sm_clock_hertz.map(|hertz| hertz / 1e6)),
        percent(row.nvlink_utilization_ratio),
        percent(row.pcie_utilization_ratio),
        if state.is_empty() { "-".to_owned() } else { state },
        if row.runs.is_empty() {
            "-".to_owned()
        } else {
            row.runs.join(",")
        },
    ]
}

/// Removes the prefix "NVIDIA ", which all names have.
fn short_name(name: &str) -> &str {
    name.strip_prefix("NVIDIA ").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gpu: u32) -> Row {
        Row {
            node: "n1".into(),
            gpu,
            name: "NVIDIA H100 80GB HBM3".into(),
            up: true,
            utilization_ratio: Some(0.5),
            memory_used_bytes: Some(40.0 * GIB),
            memory_total_bytes: Some(80.0 * GIB),
            power_watts: Some(350.4),
            power_limit_watts: Some(700.0),
            ..Row::default()
        }
    }

    #[test]
    fn a_line_holds_a_gpu_and_what_is_unknown_is_a_dash() {
        let text = text(&[row(0), Row { up: false, ..row(1) }], None, "12:00:00", 50);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "12:00:00  2 GPUs, 1 node, 701 W");
        let words: Vec<&str> = lines[2].split_ascii_whitespace().collect();
        let expected = [
            "n1", "0", "H100", "80GB", "HBM3", "~50", "-", "-", "40/80", "50", "350/700", "-", "-", "-", "-",
            "-", "-",
        ];
        assert_eq!(words, expected);
        assert!(lines[3].contains(" DOWN "), "{text}");
    }

    #[test]
    fn a_screen_that_is_too_small_says_how_many_are_left_out() {
        let rows: Vec<Row> = (0..8).map(row).collect();
        let text = text(&rows, Some("h100x8\u{1b}"), "12:00:00", 3);
        assert!(
            text.ends_with("… and 5 more; --sort and --node choose others\n"),
            "{text}"
        );
        assert!(text.contains("SIMULATED: h100x8\u{fffd}\n"), "{text}");
        assert_eq!(text.lines().count(), 6);
    }

    #[test]
    fn without_gpus_the_text_names_doctor() {
        assert!(text(&[], None, "12:00:00", 3).contains("lockstep doctor"));
    }
}
