//! Entry into the testbed and its end, with real processes.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use braid_lab::testbed::{Launch, LinkPlan, Namespace, Program, Topology, WireChoice, enter, privileges};
use braid_lab::wire;
use rustix::process::{Signal, geteuid};

use crate::testbed_rig::{
    Entrance, PATIENCE, Running, User, children, code, holders, is_inside, namespace, open, run_test,
    signal_process, status_field, users, wait_for_end,
};

/// Counts SIGINT until SIGTERM ends it.
const COUNTING: &str = r#"
n=0
trap 'n=$((n+1)); echo "INT $n"' INT
trap 'echo "TERM after $n"; exit 9' TERM
echo ready
while :; do sleep 1000 & wait $!; kill $!; done
"#;

#[test]
fn entry_makes_the_program_root_of_new_namespaces() {
    for who in users() {
        let entrance = Entrance::new(who);
        let script = r#"
            echo "user=$(id -u) pid=$$ parent=$PPID"
            readlink /proc/self/ns/net /proc/self/ns/pid /proc/self/ns/mnt
            ip -o link show
            ls -d /proc/[0-9]*
        "#;
        let output = entrance.script(script).output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{out}");
        assert!(out.contains("user=0 pid=2 parent=1"), "{out}");
        for kind in ["net", "pid", "mnt"] {
            let own = namespace(std::process::id(), kind).unwrap();
            assert!(out.contains(&format!("{kind}:[")) && !out.contains(&own), "{own} of outside: {out}");
        }
        let devices: Vec<&str> = out.lines().filter(|line| line.contains("<")).collect();
        assert!(devices.len() == 1 && devices[0].contains("lo: <LOOPBACK,UP"), "{out}");
        assert!(out.contains("/proc/1\n/proc/2\n"), "it sees its own processes: {out}");
    }
}

#[test]
fn privileges_are_those_of_the_outer_process() {
    const NAME: &str = "testbed_entry::privileges_are_those_of_the_outer_process";
    if is_inside(NAME) {
        println!("as {}.", privileges());
        return;
    }
    for who in users() {
        let is_root = who == User::Same && geteuid().is_root();
        let expected = if is_root { "as root." } else { "as user namespace." };
        assert!(run_test(who, NAME, "").contains(expected), "{who:?}");
    }
}

#[test]
fn the_exit_code_is_that_of_the_program() {
    for who in users() {
        let entrance = Entrance::new(who);
        for (script, expected) in
            [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
        {
            assert_eq!(code(entrance.script(script).status().unwrap()), expected, "{script} as {who:?}");
        }
    }
}

#[test]
fn orphans_are_reaped() {
    let script = r#"
        n=0
        trap 'n=$((n+1)); echo "TERM $n"' TERM
        # The orphan has its arguments, and its parent is gone, before the script says that it is ready.
        : $( (sh -c 'exec >&-; kill -STOP $$' orphan &) )
        echo ready
        while :; do sleep 2000 & wait $!; kill $!; done
    "#;
    let entrance = Entrance::new(User::Same);
    let mut running = Running::start(entrance.script(script));
    running.read_until("ready");
    let first = children(running.pid())[0];
    let is_orphan = |id: &u32| fs::read(format!("/proc/{id}/cmdline")).unwrap().ends_with(b"\0orphan\0");
    let orphan = children(first).into_iter().find(is_orphan).unwrap();
    let process = open(orphan);
    signal_process(orphan, Signal::KILL);
    wait_for_end(&[process]);
    // The first process reaps its children before it reads a signal: at the second one it has done so.
    for number in 1..=2 {
        running.signal(Signal::TERM);
        running.read_until(&format!("TERM {number}"));
    }
    assert!(!Path::new(&format!("/proc/{orphan}")).exists(), "the orphan is not reaped");
}

#[test]
fn a_terminal_interrupts_once_and_a_signal_is_forwarded() {
    let entrance = Entrance::new(User::Same);
    let mut running = Running::on_terminal(&entrance.script(COUNTING));
    running.read_until("ready");
    let first = children(running.pid())[0];
    // Two pending signals count as one, so the forwarded one must come later.
    stop(first);
    running.press(b"\x03");
    running.read_until("INT 1");
    signal_process(first, Signal::CONT);
    running.signal(Signal::TERM);
    assert_eq!(running.read_until("TERM"), "TERM after 1");
    assert_eq!(code(running.wait()), 9);
}

/// Stops a process, and returns once it is stopped.
fn stop(id: u32) {
    signal_process(id, Signal::STOP);
    let deadline = Instant::now() + PATIENCE;
    while status_field(id, "State").is_some_and(|state| !state.starts_with('T')) {
        assert!(Instant::now() < deadline, "it does not stop");
        thread::yield_now();
    }
}

#[test]
fn a_signal_to_the_outer_process_alone_reaches_the_program() {
    for who in users() {
        let entrance = Entrance::new(who);
        let mut running = Running::start(entrance.script(COUNTING));
        running.read_until("ready");
        running.signal(Signal::INT);
        running.read_until("INT 1");
        running.signal(Signal::TERM);
        assert_eq!(running.read_until("TERM"), "TERM after 1");
        assert_eq!(code(running.wait()), 9);
    }
}

/// Test that runs until it is killed.
const HOLDING: &str = "testbed_entry::killing_the_outer_process_ends_everything";

#[test]
fn killing_the_outer_process_ends_everything() {
    if is_inside(HOLDING) {
        return hold();
    }
    for who in users() {
        for end in [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP] {
            let entrance = Entrance::new(who);
            let mut running = Running::start(entrance.test(HOLDING, ""));
            let held = running.read_until("holds");
            let namespaces: Vec<String> =
                held.split_whitespace().filter(|word| word.contains(":[")).map(str::to_owned).collect();
            assert_eq!(namespaces.len(), 4, "{held}");
            let inside = holders(&namespaces[..1]);
            // The first process, the test, its program and the orphan.
            assert!(inside.len() >= 4, "{inside:?}");
            let inside: Vec<_> = inside.into_iter().map(open).collect();
            signal_process(running.pid(), end);
            running.wait();
            wait_for_end(&inside);
            assert_eq!(holders(&namespaces), Vec::<u32>::new(), "{end:?} as {who:?}");
        }
    }
}

/// Holds a network, a program in it and an orphan in a session of its own, until killed.
fn hold() {
    let topology = plain_topology();
    let net = |end: &Namespace| end.run(|| fs::read_link("/proc/thread-self/ns/net").unwrap()).unwrap();
    let end = topology.end("a").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch {
        name: "sleeper".into(),
        argv: ["sh", "-c", "(setsid sleep 1000 &); echo asleep; exec sleep 1000"].map(Into::into).to_vec(),
        env: Vec::new(),
        dir: "/".into(),
        log: folder.path().join("log"),
        echo: false,
    };
    let program = Program::start(end, launch).unwrap();
    program.wait_for("asleep", PATIENCE).unwrap();
    let own = |kind: &str| namespace(std::process::id(), kind).unwrap();
    let [a, b] = ["a", "b"].map(|name| net(topology.end(name).unwrap()));
    println!("holds {} {} {} {}", own("pid"), own("net"), a.display(), b.display());
    program.wait(Duration::MAX);
}

#[test]
fn where_no_proc_can_be_mounted_everything_else_works() {
    const NAME: &str = "testbed_entry::where_no_proc_can_be_mounted_everything_else_works";
    if is_inside(NAME) {
        assert_ne!(
            fs::read_link("/proc/self").unwrap().to_str(),
            Some(std::process::id().to_string().as_str())
        );
        let topology = plain_topology();
        assert_eq!(topology.offloads(), Vec::<String>::new());
        return;
    }
    // The /proc of a container has covered files, which a new one would show; the kernel refuses that.
    let entrance = Entrance::new(User::Same);
    let test = entrance.test(NAME, "");
    let mut command = entrance.command("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    // In a nested user namespace the covering mounts cannot be removed.
    command.args([
        "mount --bind /dev/null /proc/version && exec unshare --user --map-root-user --mount \"$@\"",
        "sh",
    ]);
    command.arg(test.get_program()).args(test.get_args());
    command.envs(test.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

#[test]
fn a_refusal_is_one_line_with_the_setting() {
    let settings = [
        // Root without capabilities, as in a container, where users may have no namespaces either.
        ("user.max_user_namespaces", "setpriv --bounding-set=-all --inh-caps=-all"),
        ("user.max_net_namespaces", ""),
        ("user.max_pid_namespaces", ""),
    ];
    for (name, lessened) in settings {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        // The limits are those of the user namespace, so that no other process is affected.
        let script = format!("exec unshare -Ur sh -c 'echo 0 > {path} && exec {lessened} $ENTRY true'");
        let output = Entrance::new(User::Same).script_outside(&script).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(&format!("sudo sysctl -w {name}=10000")) && said.contains("sudo"), "{said}");
    }
}

#[test]
fn a_process_with_threads_cannot_enter() {
    // The test harness has started threads.
    let error = enter().unwrap_err();
    assert_eq!(error.to_string(), "this program has started threads: call testbed::enter before that");
}

fn plain_topology() -> Topology {
    let ends = ["a".to_owned(), "b".to_owned()];
    let link = LinkPlan {
        name: "link".into(),
        left: "a".into(),
        right: "b".into(),
        shape: Some("delay=1ms".parse().unwrap()),
        seed: 1,
        options: wire::Options::default(),
        rule: None,
        tcp: None,
        mtu: 1500,
        keep_offloads: false,
    };
    Topology::build(&ends, vec![link], WireChoice::Auto).unwrap()
}
