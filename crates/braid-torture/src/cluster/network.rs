//! Network of the testbed: a namespace for each server of NATS and each broker, all on one bridge in the namespace of
//! the clients, which is that of this program.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter, Write as _};
use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use braid_torture::Process;

/// Names of the nodes, by their numbers.
pub(crate) const NODES: [&str; 3] = ["a", "b", "c"];
/// Device in the namespace of each process.
const DEVICE: &str = "eth0";
const BRIDGE: &str = "nodes";
/// Time limit for the start of a process that keeps a namespace.
const LIMIT: Duration = Duration::from_secs(10);
/// Latency of a slow link, and its rate.
const DELAY: &str = "40ms";
const RATE: &str = "4mbit";

/// Address of the testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Member {
    /// Server of NATS of a node.
    Server(usize),
    /// Broker of a node.
    Broker(usize),
    /// All clients.
    Clients,
}

impl Member {
    pub(crate) fn address(self) -> Ipv4Addr {
        let last = match self {
            Self::Server(node) => 11 + node,
            Self::Broker(node) => 21 + node,
            Self::Clients => 254,
        };
        Ipv4Addr::new(10, 99, 0, u8::try_from(last).unwrap_or(u8::MAX))
    }

    /// Device on the bridge.
    fn port(self) -> String {
        self.to_string()
    }
}

impl Display for Member {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(node) => write!(out, "nats-{}", NODES[*node]),
            Self::Broker(node) => write!(out, "broker-{}", NODES[*node]),
            Self::Clients => write!(out, "clients"),
        }
    }
}

/// Packets that are dropped on arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Filters {
    /// Pairs of a sender and a receiver.
    pub(crate) cuts: BTreeSet<(Member, Member)>,
    /// Share of packets that a receiver loses.
    pub(crate) loss: BTreeMap<Member, f64>,
}

impl Filters {
    /// Filters between each of `some` and each of `others`, in both directions.
    pub(crate) fn between(some: &[Member], others: &[Member]) -> Self {
        let mut filters = Self::default();
        for (one, other) in pairs(some, others) {
            filters.cuts.extend([(one, other), (other, one)]);
        }
        filters
    }

    /// Filters from each of `some` to each of `others`.
    pub(crate) fn from_to(some: &[Member], others: &[Member]) -> Self {
        Self { cuts: pairs(some, others).collect(), ..Self::default() }
    }

    /// Input of `iptables-restore` in the namespace of the receiver, which replaces all earlier rules.
    fn rules(&self, receiver: Member) -> String {
        let mut rules = "*filter\n:INPUT ACCEPT [0:0]\n".to_owned();
        for (sender, _) in self.cuts.iter().filter(|(_, to)| *to == receiver) {
            // Writing to a String does not fail.
            let _ = writeln!(rules, "-A INPUT -s {} -j DROP", sender.address());
        }
        if let Some(share) = self.loss.get(&receiver) {
            let _ = writeln!(rules, "-A INPUT -m statistic --mode random --probability {share} -j DROP");
        }
        rules + "COMMIT\n"
    }
}

fn pairs(some: &[Member], others: &[Member]) -> impl Iterator<Item = (Member, Member)> {
    some.iter().flat_map(|one| others.iter().filter(move |other| *other != one).map(|other| (*one, *other)))
}

/// The namespaces. Dropping it removes the devices; the kernel removes a namespace with the last process in it.
pub(crate) struct Network {
    /// Processes that keep the namespaces.
    sleepers: BTreeMap<Member, Process>,
    filters: Filters,
    /// Link whose queues are slow.
    slow: Option<Member>,
}

impl Network {
    /// Makes a namespace for each of `members` and connects all of them.
    pub(crate) fn build(members: impl IntoIterator<Item = Member>) -> Result<Self, String> {
        let own = Member::Clients.address();
        ip(&format!(
            "link set lo up\nlink add {BRIDGE} type bridge\naddress add {own}/24 dev {BRIDGE}\nlink set {BRIDGE} up\n"
        ))?;
        let mut network = Self { sleepers: BTreeMap::new(), filters: Filters::default(), slow: None };
        for member in members {
            let sleeper = sleeper()?;
            let (id, port, address) = (sleeper.id(), member.port(), member.address());
            network.sleepers.insert(member, sleeper);
            ip(&format!(
                "link add {port} type veth peer name {DEVICE} netns {id}\nlink set {port} master {BRIDGE} up\n"
            ))?;
            run(
                network.within(member, "ip").args(["-batch", "-"]),
                &format!("link set lo up\naddress add {address}/24 dev {DEVICE}\nlink set {DEVICE} up\n"),
            )?;
        }
        Ok(network)
    }

    fn members(&self) -> impl Iterator<Item = Member> + use<'_> {
        self.sleepers.keys().copied().chain([Member::Clients])
    }

    /// Command whose first argument is a program that it starts in the namespace of `member`, under its own process ID.
    pub(crate) fn entry(&self, member: Member) -> Command {
        let id = self.sleepers.get(&member).map_or(std::process::id(), Process::id);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", namespace_of(id).display()));
        command
    }

    fn within(&self, member: Member, program: &str) -> Command {
        let mut command = self.entry(member);
        command.arg(program);
        command
    }

    /// Drops these packets from now on, and no others.
    pub(crate) fn filter(&mut self, filters: Filters) -> Result<(), String> {
        for member in self.members() {
            let rules = filters.rules(member);
            if rules != self.filters.rules(member) {
                // The lock guards against concurrent changes, which do not happen here.
                let mut command = self.within(member, "iptables-restore");
                run(command.env("XTABLES_LOCKFILE", "/dev/null"), &rules)?;
            }
        }
        self.filters = filters;
        Ok(())
    }

    /// Makes the link of `member` slow in both directions: by latency and rate, or by rate alone where the kernel has
    /// no `netem`.
    pub(crate) fn slow_down(&mut self, member: Member) -> Result<(), String> {
        let latency = format!("netem delay {DELAY} rate {RATE}");
        let rate = format!("tbf rate {RATE} burst 3000 latency 400ms");
        self.slow = Some(member);
        self.shape(member, "replace", &latency).or_else(|_| self.shape(member, "replace", &rate))
    }

    fn shape(&self, member: Member, verb: &str, queue: &str) -> Result<(), String> {
        let devices = [(member, DEVICE.to_owned()), (Member::Clients, member.port())];
        for (namespace, device) in devices {
            let arguments = format!("qdisc {verb} dev {device} root {queue}");
            run(self.within(namespace, "tc").args(arguments.split_whitespace()), "")?;
        }
        Ok(())
    }

    /// Ends all faults of the network; returns the number of packets that were dropped.
    pub(crate) fn heal(&mut self) -> Result<u64, String> {
        let none = Filters::default();
        let mut packets = 0;
        for member in self.members() {
            if self.filters.rules(member) != none.rules(member) {
                packets += dropped(&run(self.within(member, "iptables-save").arg("-c"), "")?);
            }
        }
        self.filter(none)?;
        if let Some(member) = self.slow.take() {
            self.shape(member, "del", "")?;
        }
        Ok(packets)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let ports = self.sleepers.keys().map(|member| member.port()).chain([BRIDGE.to_owned()]);
        let commands: String = ports.map(|device| format!("link delete {device}\n")).collect();
        // The namespace of the clients ends with this program, if a device remains.
        let _ = ip(&commands);
    }
}

/// Packets dropped by the rules in the output of `iptables-save -c`, in lines such as
/// `[12:720] -A INPUT -s 10.99.0.11/32 -j DROP`.
fn dropped(saved: &str) -> u64 {
    let packets = |line: &str| {
        let (packets, _) = line.strip_prefix('[')?.split_once(':')?;
        packets.parse::<u64>().ok().filter(|_| line.ends_with("-j DROP"))
    };
    saved.lines().filter_map(packets).sum()
}

fn namespace_of(process_id: u32) -> PathBuf {
    Path::new("/proc").join(process_id.to_string()).join("ns/net")
}

/// Starts a process in a namespace of its own.
fn sleeper() -> Result<Process, String> {
    let mut command = Command::new("unshare");
    command.args(["--net", "sleep", "infinity"]).stdin(Stdio::null());
    let process: Process =
        command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?.into();
    let namespace = |id| fs::read_link(namespace_of(id)).ok();
    let (own, began) = (namespace(std::process::id()), Instant::now());
    while namespace(process.id()).is_none_or(|other| Some(other) == own) {
        if began.elapsed() > LIMIT {
            return Err(format!("{command:?} has no namespace of its own after {LIMIT:?}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(process)
}

/// Runs commands of `ip` in the namespace of the clients.
fn ip(commands: &str) -> Result<(), String> {
    run(Command::new("ip").args(["-batch", "-"]), commands).map(drop)
}

/// Runs a program of the system with this standard input; returns its output.
fn run(command: &mut Command, input: &str) -> Result<String, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // The program may end before it has read everything; its exit code says whether that is an error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}: {}", output.status, said.trim().replace('\n', "; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Member::{Broker, Clients, Server};

    #[test]
    fn each_member_has_an_address_and_a_short_name_of_a_device() {
        let members: Vec<_> = (0..3).flat_map(|node| [Server(node), Broker(node)]).chain([Clients]).collect();
        let addresses: BTreeSet<_> = members.iter().map(|member| member.address()).collect();
        assert_eq!(addresses.len(), members.len());
        // The kernel's limit, IFNAMSIZ, counts the zero at the end.
        assert!(members.iter().all(|member| member.port().len() < 16));
    }

    #[test]
    fn a_receiver_drops_what_is_cut_from_it_and_its_share_of_the_rest() {
        let mut filters = Filters::from_to(&[Server(0), Broker(0)], &[Server(1)]);
        filters.loss.insert(Broker(2), 0.05);
        assert_eq!(filters.rules(Server(0)), "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n");
        assert_eq!(
            filters.rules(Server(1)),
            "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -s 10.99.0.11 -j DROP\n-A INPUT -s 10.99.0.21 -j DROP\nCOMMIT\n"
        );
        assert!(filters.rules(Broker(2)).contains("--probability 0.05 -j DROP"));
    }

    #[test]
    fn dropped_packets_are_counted_over_all_rules() {
        let saved = "*filter\n:INPUT ACCEPT [900:80000]\n[12:720] -A INPUT -s 10.99.0.11/32 -j DROP\n\
                     [3:180] -A INPUT -m statistic --mode random --probability 0.05 -j DROP\n\
                     [7:70] -A INPUT -j ACCEPT\nCOMMIT\n";
        assert_eq!((dropped(saved), dropped("")), (15, 0));
    }

    #[test]
    fn cuts_between_groups_go_both_ways_and_leave_each_group_whole() {
        let filters = Filters::between(&[Server(0), Broker(0)], &[Server(1), Server(2)]);
        assert_eq!(filters.cuts.len(), 8);
        assert!(
            filters.cuts.contains(&(Server(2), Broker(0))) && filters.cuts.contains(&(Broker(0), Server(2)))
        );
        assert!(!filters.cuts.contains(&(Server(1), Server(2))));
        let all = [Server(0), Server(1), Server(2)];
        assert_eq!(Filters::between(&all, &all).cuts.len(), 6);
    }
}
