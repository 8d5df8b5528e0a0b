//! `braidmq cluster status` from outside.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use braid_cluster::{Dimensions, Login, Node, Risk};
use serde_json::{Value, json};

use crate::broker::braidmq;
use crate::nats::{Servers, Settings};

fn status(arguments: &[&str]) -> Command {
    let mut command = braidmq(&["cluster", "status"]);
    command.args(arguments).env_remove("BRAIDMQ_CONFIG");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn output(arguments: &[&str]) -> Output {
    status(arguments).output().unwrap()
}

#[test]
fn without_a_connection_nothing_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let config = |name: &str, text: &str| {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let alone = config("alone", "[log]\nlevel = 'info'\n");
    let half = config("half", "[cluster]\nnats = ['tls://127.0.0.1:1']\nkey = 'k'\n");
    let unknown = config("unknown", "[cluster]\nnatz = []\n");
    let password = "[cluster]\nnats = ['nats://127.0.0.1:1']\nuser = 'u'\npassword_file = '/none'\n";
    let password = config("password", password);
    for (arguments, expected) in [
        (
            &[][..],
            "there is no cluster: name a configuration with cluster.nats by --config, or a server by --nats",
        ),
        (&["--config", &alone], "there is no cluster"),
        (&["--config", &half], "half:3: cluster.key: is half a pair: cluster.certificate is missing"),
        (&["--config", &unknown], "unknown:2: unknown key `natz`; did you mean `nats`?"),
        (&["--config", &password], "cluster.password_file: "),
        (&["--config", "/none"], "cannot read /none"),
        (&["--set", "cluster.name=a.b"], "\"a.b\" cannot be a name in a cluster"),
        (&["--nats", "nats://127.0.0.1:1"], "no NATS server answers at nats://127.0.0.1:1: "),
        (&["--nats", "127.0.0.1:1"], "does not begin with tls:// or nats://"),
    ] {
        let output = output(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && output.stdout.is_empty(), "{said}");
        let lines = said.lines().filter(|line| !line.trim().is_empty()).count();
        assert!(lines == 1 || said.starts_with("error: "), "{said}");
    }
}

#[test]
fn the_exit_code_says_whether_all_is_well() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let servers = Servers::start(1, &Settings::default()).await;
        let (url, monitor) = (servers.url(0), format!("cluster.monitor=[{:?}]", servers.monitor(0)));
        let accept = "cluster.accept_risks=['replicas']";
        let arguments = ["--nats", &url, "--set", "cluster.name=test", "--set", &monitor, "--set", accept];
        let degraded = output(&arguments);
        let said = text(&degraded.stdout);
        assert_eq!(degraded.status.code(), Some(1), "{said}");
        assert!(said.starts_with("cluster test: degraded, 2 problems\n"), "{said}");
        assert!(
            said.contains("\nproblems\n  no node is running\n  the cluster test has no streams: "),
            "{said}"
        );

        let mut options = servers.options("a", "1");
        options.accepted = vec![Risk::Replicas];
        options.dimensions.replicas = 1;
        let node = Node::join(&options, "1.0").await.unwrap();
        let well = output(&arguments);
        let said = text(&well.stdout);
        assert_eq!((well.status.code(), text(&well.stderr)), (Some(0), String::new()), "{said}");
        assert!(said.starts_with("cluster test: all is well\n\nnode"), "{said}");
        let arguments = [&arguments[..], &["--json"]].concat();
        let json: Value = serde_json::from_slice(&output(&arguments).stdout).unwrap();
        assert_eq!((&json["is_healthy"], &json["nodes"][0]["name"]), (&json!(true), &json!("a")));
        assert_eq!(json["streams"].as_array().unwrap().len(), 6, "two shards");

        // The replicas of one server are not accepted.
        let arguments = &arguments[..6];
        let degraded = output(arguments);
        let said = text(&degraded.stdout);
        assert_eq!(degraded.status.code(), Some(1), "{said}");
        assert!(said.contains("n0 is one of 1 servers: run three"), "{said}");
        node.lease.give_back().await;
    });
}

/// Starts a broker as a node, which must not start: its one line.
fn refused(directory: &Path, arguments: &[&str]) -> String {
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--data-dir"]);
    command.arg(directory).args(arguments).env_remove("BRAIDMQ_CONFIG");
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let errors: Vec<_> = said.lines().filter(|line| line.starts_with("braidmq: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    errors[0].to_owned()
}

#[test]
fn a_node_that_cannot_join_says_why_on_one_line() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let settings = Settings {
            sync_interval: "always",
            more: "max_payload: 8MB\nauthorization { user: u, password: p }",
        };
        let servers = Servers::start(1, &settings).await;
        let directory = tempfile::tempdir().unwrap();
        let (right, wrong) = (directory.path().join("right"), directory.path().join("wrong"));
        fs::write(&right, "p\n").unwrap();
        fs::write(&wrong, "q\n").unwrap();
        let mut options = servers.options("a", "1");
        options.accepted = vec![Risk::Replicas];
        options.dimensions = Dimensions { replicas: 1, shards: 1, log_bytes: 100 << 20 };
        options.login = Login::Password { user: "u".to_owned(), password: "p".to_owned() };
        // Makes the streams.
        Node::join(&options, "1.0").await.unwrap().lease.give_back().await;

        let nats = format!("cluster.nats=[{:?}]", servers.url(0));
        let monitor = format!("cluster.monitor=[{:?}]", servers.monitor(0));
        let password = |file: &Path| format!("cluster.password_file={:?}", file.display().to_string());
        let [right, wrong] = [&right, &wrong].map(|file| password(file));
        let accept = "cluster.accept_risks=['replicas']";
        let base = [&*nats, &*monitor, "cluster.user='u'", &*right, accept, "cluster.name='test'"];
        let own = [
            "cluster.replicas=1",
            "cluster.shards=1",
            "cluster.log_bytes=104857600",
            "mqtt.maximum_packet_size=1000000",
        ];
        for (changes, expected) in [
            (&["cluster.nats=['nats://127.0.0.1:1']"][..], "no NATS server answers at nats://127.0.0.1:1: "),
            (&[&*wrong], "refuses this node: "),
            (&["cluster.monitor=['http://127.0.0.1:1']"], "cluster.monitor: "),
            (&["cluster.monitor=[]"], "name their monitoring ports in cluster.monitor"),
            (&["cluster.accept_risks=[]"], "n0 is one of 1 servers: run three"),
            (&["mqtt.maximum_packet_size=9000000"], "too few for mqtt.maximum_packet_size = 9000000: "),
            (&["cluster.log_bytes=104857601"], "has max_bytes 104857600, and this node wants 104857601"),
            (&["cluster.log_bytes=2000000000000"], "or lower cluster.log_bytes to "),
            (&["cluster.shards=2"], "has cluster.shards 1, and this node wants 2"),
        ] {
            let all = base.iter().chain(&own).chain(changes);
            let arguments: Vec<_> = all.flat_map(|setting| ["--set", setting]).collect();
            let said = refused(&directory.path().join("data"), &arguments);
            assert!(said.contains(expected), "{said}");
        }
    });
}
