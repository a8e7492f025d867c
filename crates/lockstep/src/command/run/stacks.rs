//! `lockstep run stacks`: shows where each rank is in its code now.

use clap::Args;
use domain::api::inspect::{AskRanks, RankStacks, StacksView};
use domain::ident::Rank;
use domain::run::inspect::{Frame, ProcessState, StackGroup, rank_list};

use super::run_path;
use crate::client::Client;
use crate::failure::Failure;
use crate::table::printable;

/// Arguments of `stacks`.
#[derive(Args)]
#[command(
    after_help = "Each rank answers through PyTorch's own worker server (torch 2.6 or later, for stacks), with the stacks of its Python \
threads. Ranks whose main threads are in the same place are grouped, the smallest group last. A rank that does not answer within \
5 s, because its process is stopped or holds the GIL, is shown with what the kernel reports about it.

Examples:
  lockstep run stacks RUN
  lockstep run stacks RUN --rank 3 --threads
  lockstep run stacks RUN --json"
)]
pub(super) struct Stacks {
    /// ID of the run.
    run: String,
    /// Show only this rank.
    #[arg(long)]
    rank: Option<u32>,
    /// Show all Python threads of each rank, not only the main thread.
    #[arg(long)]
    threads: bool,
    /// Print the collector's response as JSON.
    #[arg(long)]
    json: bool,
}

impl Stacks {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let path = format!("{}/stacks", run_path(&self.run)?);
        let asked = AskRanks {
            rank: self.rank.map(Rank),
        };
        if self.json {
            let answer: serde_json::Value = client.post(&path, &asked).await?;
            say!("{answer:#}");
            return Ok(());
        }
        let view: StacksView = client.post(&path, &asked).await?;
        if self.threads {
            view.ranks.iter().for_each(print_rank);
        } else {
            for group in &view.groups {
                print_group(group, &view.ranks);
            }
        }
        Ok(())
    }
}

fn print_group(group: &StackGroup, ranks: &[RankStacks]) {
    say!("{}: {}", rank_list(&group.ranks), printable(&group.doing));
    print_frames(&group.frames);
    if group.frames.is_empty() {
        for of in ranks.iter().filter(|of| group.ranks.contains(&of.rank)) {
            print_process(of);
        }
    }
}

fn print_rank(of: &RankStacks) {
    let pid = of.pid.map_or(String::new(), |pid| format!(", process {pid}"));
    let problem = if of.problem.is_empty() {
        String::new()
    } else {
        format!(": {}", of.problem)
    };
    say!(
        "rank {} on {}{pid}{}",
        of.rank.0,
        printable(&of.node),
        printable(&problem)
    );
    if of.cut {
        say!("  (more threads are not shown)");
    }
    for (n, thread) in of.threads.iter().rev().enumerate() {
        let name = match (n, thread.name.is_empty()) {
            (0, _) if of.problem.is_empty() => "main thread",
            (_, true) => thread.id.as_str(),
            (_, false) => thread.name.as_str(),
        };
        say!("  {}", printable(name));
        print_frames(&thread.frames);
    }
    print_process(of);
}

fn print_frames(frames: &[Frame]) {
    for frame in frames {
        say!("    {}", printable(&frame.to_string()));
    }
}

/// Prints the kernel's data about a rank that did not answer.
fn print_process(of: &RankStacks) {
    let Some(process) = &of.process else { return };
    say!("    rank {}: {}", of.rank.0, printable(&kernel_line(process)));
    for line in process.kernel_stack.lines() {
        say!("      {}", printable(line));
    }
}

/// Formats the kernel's data: `state S (sleeping), in futex_wait, system call 202 …`.
pub(super) fn kernel_line(process: &ProcessState) -> String {
    let mut line = format!("state {}", process.state);
    if !process.wchan.is_empty() {
        line += &format!(", in {}", process.wchan);
    }
    if !process.syscall.is_empty() {
        line += &format!(", system call {}", process.syscall);
    }
    line
}
