//! Tests with agents that end and shims that are killed at any moment of an attempt: its end is reported once and correctly, and no process
//! is left.
//!
//! The moments are random; the seed is printed. `LOCKSTEP_CHAOS_POINTS` sets a larger number of attempts than the default, and
//! `LOCKSTEP_CHAOS_SEED` repeats a sequence.

use shim::Owner;

use super::*;

/// Five quick steps, then success.
const SHORT: &str = r#"
import json, os, socket, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect(os.environ["LOCKSTEP_PROBE_SOCKET"])
for step in range(1, 6):
    s.send(json.dumps(dict(v=1, rank=int(os.environ["RANK"]), wall_ns=time.time_ns(), kind="step", step=step), separators=(",", ":")).encode())
    time.sleep(0.1)
"#;
const POINTS: u64 = 12;
/// Attempts at the same time. More would mainly wait for the processors.
const TOGETHER: u64 = 4;
/// Longer than anything takes on two busy cores.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// A pseudo-random number generator (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn moment(&mut self, within_ms: u64) -> Duration {
        Duration::from_millis(self.below(within_ms))
    }
}

/// What happens to one attempt, and when.
#[derive(Debug)]
struct Point {
    /// Since the start of the attempt.
    agent_ends: Vec<Duration>,
    /// Since the start of the shim.
    shim_is_killed: Option<Duration>,
    /// Since the start of the attempt, with this grace period in ms.
    stop: Option<(Duration, u64)>,
}

impl Point {
    fn draw(draw: &mut Draw) -> Self {
        let ends = draw.below(3);
        let mut agent_ends: Vec<Duration> = (0..ends).map(|_| draw.moment(3_000)).collect();
        agent_ends.sort_unstable();
        Self {
            agent_ends,
            shim_is_killed: (draw.below(3) > 0).then(|| draw.moment(1_800)),
            stop: (draw.below(4) == 0).then(|| (draw.moment(3_000), draw.below(500))),
        }
    }

    async fn play(&self) {
        let mut agent = Agent::new();
        std::fs::write(agent.data.path().join("train.py"), SHORT).unwrap();
        let folder = Folder::of(agent.data.path(), &agent.run, AttemptNo(1));
        let began = Instant::now();
        let (mut restarts, mut shim_since, mut killed) = (self.agent_ends.iter().peekable(), None, false);
        loop {
            let reports = agent.reports();
            if reports
                .iter()
                .any(|report| matches!(report, NodeReport::Ended(_)))
            {
                break;
            }
            assert!(
                began.elapsed() < ENDS_WITHIN,
                "{self:?} does not end: {reports:#?}"
            );
            self.command(&agent, &reports, began.elapsed());
            if restarts.next_if(|at| began.elapsed() >= **at).is_some() {
                agent = agent.restarted().await;
            }
            let owner = Owner::read(&folder);
            if shim_since.is_none() && owner.format > 0 {
                shim_since = Some(Instant::now());
            }
            if let (Some(at), Some(since), false) = (self.shim_is_killed, shim_since, killed)
                && since.elapsed() >= at
            {
                owner.shim.signal(Signal::KILL);
                killed = true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.judge(&agent, killed);
    }

    /// Repeats a collector's command until it is accepted and has its effect.
    fn command(&self, agent: &Agent, reports: &[NodeReport], at: Duration) {
        let accepted = |id| reports.contains(&NodeReport::Accepted { command: id });
        if let Some((after, grace_ms)) = self.stop
            && at >= after
            && !accepted(4)
        {
            agent.command(4, NodeCommand::Stop { grace_ms });
        }
        let prepared = reports.iter().find_map(|report| match report {
            NodeReport::Prepared(prepared) => Some(prepared),
            _ => None,
        });
        match prepared {
            None if !accepted(2) => {
                let spec = Box::new(agent.spec());
                let prepare = NodeCommand::Prepare {
                    resume_from: None,
                    spec,
                    node_rank: 0,
                    nnodes: 1,
                };
                agent.command(2, prepare);
            }
            Some(prepared) if !accepted(3) => {
                let start = Start {
                    spec: agent.spec(),
                    nnodes: 1,
                    nproc: 2,
                    master_addr: "127.0.0.1".into(),
                    master_port: prepared.port,
                    ..Start::default()
                };
                agent.command(3, NodeCommand::Start(Box::new(start)));
            }
            _ => {}
        }
    }

    fn judge(&self, agent: &Agent, killed: bool) {
        assert_eq!(marked(&[agent.mark()]), [], "{self:?} left processes behind");
        let reports = agent.reports();
        let count = |what: fn(&NodeReport) -> bool| reports.iter().filter(|report| what(report)).count();
        let told = format!("{self:?}: {reports:#?}");
        assert_eq!(
            count(|report| matches!(report, NodeReport::Ended(_))),
            1,
            "{told}"
        );
        assert!(
            count(|report| matches!(report, NodeReport::ShimStarted { .. })) <= 1,
            "{told}"
        );
        assert!(
            count(|report| matches!(report, NodeReport::Prepared(_))) <= 1,
            "{told}"
        );
        for rank in [0, 1].map(Rank) {
            let of = |report: &&NodeReport| matches!(report, NodeReport::RankStarted { rank: r, .. } if *r == rank);
            assert!(
                reports.iter().filter(of).count() <= 1,
                "rank {rank} was there twice. {told}"
            );
        }
        let well =
            |report: &&NodeReport| matches!(report, NodeReport::RankExited(exit) if exit.code == Some(0));
        let ended_well = reports.iter().filter(well).count() == 2;
        let ends = reports.iter().find_map(|report| match report {
            NodeReport::Ended(end) => Some(end),
            _ => None,
        });
        let true_end = match ends.unwrap().cause {
            EndCause::Finished => ended_well && ends.unwrap().code == Some(0),
            EndCause::Stopped | EndCause::NeverStarted => self.stop.is_some(),
            EndCause::ShimDied => killed && !ended_well,
            EndCause::Other(_) => false,
        };
        assert!(true_end, "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_is_reported_once_and_correctly_after_any_kill() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let points = number("LOCKSTEP_CHAOS_POINTS").unwrap_or(POINTS);
    let seed = number("LOCKSTEP_CHAOS_SEED").unwrap_or_else(rand::random);
    eprintln!("LOCKSTEP_CHAOS_SEED={seed}");
    let mut draw = Draw(seed);
    let mut left = points;
    while left > 0 {
        let together = left.min(TOGETHER);
        let mut playing = tokio::task::JoinSet::new();
        for _ in 0..together {
            let point = Point::draw(&mut draw);
            playing.spawn(async move { point.play().await });
        }
        while let Some(played) = playing.join_next().await {
            played.unwrap();
        }
        left -= together;
    }
}
