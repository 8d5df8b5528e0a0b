//! Readiness of programs.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use braid_lab::experiment::wait_until_ready;
use braid_lab::scenario::Ready;
use braid_lab::testbed::{Launch, Namespace, Program, TestbedError};

use crate::testbed_rig::{PATIENCE, inside};

/// Address of the loopback device, like 127.0.0.1.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn shell(end: &Namespace, script: &str) -> Program {
    let launch = Launch {
        name: "server".into(),
        argv: ["sh", "-c", script].map(Into::into).to_vec(),
        env: Vec::new(),
        dir: ".".into(),
        log: "/dev/null".into(),
        echo: false,
    };
    Program::start(end, launch).unwrap()
}

fn wait(end: &Namespace, program: &Program, ready: &str, within: Duration) -> Result<bool, TestbedError> {
    wait_until_ready(program, end, Some(ADDRESS), &ready.parse::<Ready>().unwrap(), within, &mut || false)
}

#[test]
fn a_line_or_an_open_port_makes_a_program_ready() {
    if inside("testbed_ready::a_line_or_an_open_port_makes_a_program_ready") {
        let end = Namespace::create("end").unwrap();
        let program = shell(&end, "echo starting; echo up and well; exec sleep 1000");
        assert!(wait(&end, &program, "line:up and", PATIENCE).unwrap());
        for address in [Ipv4Addr::LOCALHOST, ADDRESS] {
            let listener = end.run(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
            let port = listener.local_addr().unwrap().port();
            assert!(wait(&end, &program, &format!("port:{port}"), PATIENCE).unwrap());
        }
    }
}

#[test]
fn an_ended_program_is_not_waited_for() {
    if inside("testbed_ready::an_ended_program_is_not_waited_for") {
        let end = Namespace::create("end").unwrap();
        for ready in ["line:never", "port:9"] {
            let program = shell(&end, "echo no disk >&2; exit 3");
            let error = wait(&end, &program, ready, PATIENCE).unwrap_err();
            assert!(matches!(error, TestbedError::Ended(_)), "{error}");
            assert!(error.to_string().ends_with(": no disk"), "{error}");
        }
    }
}

#[test]
fn a_late_program_is_reported_with_its_time_limit() {
    if inside("testbed_ready::a_late_program_is_reported_with_its_time_limit") {
        let end = Namespace::create("end").unwrap();
        let program = shell(&end, "exec sleep 1000");
        let said =
            |ready: &str| wait(&end, &program, ready, Duration::from_millis(1)).unwrap_err().to_string();
        assert!(said("line:never").starts_with("server has not written \"never\" within 1ms: "));
        assert_eq!(
            said("port:9").split_once("` ").unwrap().1,
            "does not accept connections at port 9 after 0.001 s"
        );
    }
}

#[test]
fn a_stopped_wait_ends_at_once() {
    if inside("testbed_ready::a_stopped_wait_ends_at_once") {
        let end = Namespace::create("end").unwrap();
        let program = shell(&end, "exec sleep 1000");
        for ready in [Ready::Line("never".into()), Ready::Port(9)] {
            let mut asked = 0;
            let mut is_stopped = || {
                asked += 1;
                asked > 3
            };
            let outcome = wait_until_ready(&program, &end, None, &ready, PATIENCE, &mut is_stopped);
            assert!(matches!(outcome, Ok(false)), "{outcome:?}");
            assert_eq!(asked, 4, "before every look");
        }
    }
}
