//! Network namespaces for a test, which runs itself again inside a user namespace and so needs no rights.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::{env, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const INSIDE: &str = "BRAID_LAB_TEST_INSIDE";

/// Whether the test `name` is inside already. If not it runs inside, and has passed when this returns.
pub(crate) fn is_inside(name: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let program = env::current_exe().unwrap();
    let arguments = ["--user", "--map-root-user", "--net", "--"];
    let output = Command::new("unshare")
        .args(arguments)
        .arg(program)
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// Network namespace beside that of the test; it ends when this is dropped.
pub(crate) struct Room {
    process: Child,
    namespace: File,
}

impl Room {
    pub(crate) fn new() -> Self {
        // `cat` ends when its input does, so nothing is left if the test is killed.
        let mut process = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        let namespace = File::open(format!("/proc/{}/ns/net", process.id())).unwrap();
        Self { process, namespace }
    }

    /// Process in the namespace, for `ip link set DEVICE netns ID`.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Runs `work` on a thread in the namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            inside.join().unwrap()
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs `ip` with the words of `arguments` in the namespace of the calling thread.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
