//! Options of `braidmq lab run`: a scenario, or any program behind a link.

use std::ffi::OsString;
use std::path::PathBuf;

use braid_emulator::LinkSpec;
use braid_lab::scenario::{Ready, Span};
use braid_lab::testbed::WireChoice;
use clap::ValueEnum;

/// Run a scenario and write its report, or run any program behind a link
///
/// A scenario is one of `braidmq lab list`, or a TOML file given by its path. With --link and a command after `--`,
/// that command runs at the left end of the link, 192.168.200.2; the right end is 192.168.200.1.
#[derive(clap::Args, Debug)]
#[command(after_help = "Links (see docs/lab.md): words for both directions, or `up:` and `down:` ones
  delay=50ms jitter=10ms loss=1% dup=2% corrupt=0.1% reorder=25% rate=10mbit limit=100p mtu=1400
  policer=29pps/5 nat=rebind:30s seed=7; later changes after `;`: policer=29pps/5 ; t=60s policer=10pps/5

Exit codes of scenarios: 0 done; 1 --check found a bound that does not hold; 2 invalid input; 3 the machine, or a
run that a bound needs, could not be trusted; 130 stopped. With --link: that of the command.")]
pub(crate) struct Args {
    /// A scenario's name, or the path of its TOML file
    #[arg(value_name = "SCENARIO", required_unless_present = "link", conflicts_with = "link")]
    pub(super) scenario: Option<String>,

    /// Write the report here [default: braidmq-lab/SCENARIO-TIME]
    #[arg(long, value_name = "DIR", conflicts_with = "link")]
    pub(super) out: Option<PathBuf>,
    /// Continue the report in --out: do the runs that are missing or were refused
    #[arg(long, requires = "out", conflicts_with = "link")]
    pub(super) resume: bool,
    /// The short form of the scenario
    #[arg(long, conflicts_with = "link")]
    pub(super) quick: bool,
    /// Only this variant; repeatable
    #[arg(long, value_name = "NAME", conflicts_with = "link")]
    pub(super) variant: Vec<String>,
    /// Only this profile; repeatable
    #[arg(long, value_name = "NAME", conflicts_with = "link")]
    pub(super) profile: Vec<String>,
    /// Seeds instead of the scenario's
    #[arg(long, value_name = "N,N...", value_delimiter = ',', conflicts_with = "link")]
    pub(super) seeds: Option<Vec<u64>>,
    /// Number of runs per seed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000), conflicts_with = "link")]
    pub(super) repetitions: Option<u64>,
    /// Duration of the workload, for example 60s
    #[arg(long, value_name = "TIME", value_parser = some_time, conflicts_with = "link")]
    pub(super) duration: Option<Span>,
    /// Another command for one of the scenario's programs, for example broker="mosquitto -c {dir}/m.conf"; repeatable
    #[arg(long, value_name = "PROGRAM=COMMAND", conflicts_with = "link")]
    pub(super) replace: Vec<String>,
    /// End with 1 if a bound of the scenario does not hold
    #[arg(long, conflicts_with = "link")]
    pub(super) check: bool,
    /// Repeat a run, or the selftest, at most N times if only a busy machine invalidated it
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(..=100), conflicts_with = "link")]
    pub(super) again: u64,
    /// Do not test the machine first
    #[arg(long, conflicts_with = "link")]
    pub(super) no_selftest: bool,

    /// Link between the command and the right end
    #[arg(long, value_name = "LINK")]
    pub(super) link: Option<LinkSpec>,
    /// Another command, at the right end of the link, for as long as the first one runs
    #[arg(long, value_name = "COMMAND", requires = "link", conflicts_with = "scenario")]
    pub(super) right: Option<String>,
    /// Start the first command once the one at the right end is ready: it accepts TCP connections at a port
    /// (port:1883), or has printed a line with a text (line:TEXT)
    #[arg(long, value_name = "port:NUMBER|line:TEXT", requires = "right", conflicts_with = "scenario")]
    pub(super) ready: Option<Ready>,
    /// The seed of the link's decisions
    #[arg(long, value_name = "N", default_value_t = 1, requires = "link", conflicts_with = "scenario")]
    pub(super) seed: u64,
    /// Write the logs of --logs into this directory [default: .]
    #[arg(long, value_name = "DIR", requires = "link", conflicts_with = "scenario")]
    pub(super) logs_dir: Option<PathBuf>,
    /// The command at the left end [default: a shell]; here and in --right the word `braidmq` is this program
    #[arg(value_name = "COMMAND", last = true, requires = "link", conflicts_with = "scenario")]
    pub(super) command: Vec<OsString>,

    /// Devices of emulated links
    #[arg(long, value_enum, default_value_t = WireOption::Auto)]
    pub(super) wire: WireOption,
    /// Refuse a run only if 99 % of an emulated link's packets were later than this [default: 1ms, or 5 % of the delay]
    #[arg(long, value_name = "TIME")]
    pub(super) lateness: Option<Span>,
    /// Log the fate of each packet, as text and as pcapng; for a scenario in the directories of its runs
    #[arg(long)]
    pub(super) logs: bool,
}

/// Parses a time span above zero.
pub(super) fn some_time(text: &str) -> Result<Span, String> {
    let span: Span = text.parse()?;
    if span.0.is_zero() { Err("must be longer than 0, for example 10s".into()) } else { Ok(span) }
}

/// [`WireChoice`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WireOption {
    /// TUN devices where they can be opened, else packet sockets
    Auto,
    /// TUN devices
    Tun,
    /// Packet sockets on virtual Ethernet
    Packet,
}

impl From<WireOption> for WireChoice {
    fn from(option: WireOption) -> Self {
        match option {
            WireOption::Auto => Self::Auto,
            WireOption::Tun => Self::Tun,
            WireOption::Packet => Self::Packet,
        }
    }
}
