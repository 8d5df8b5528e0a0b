//! `braidmq serve --http`: the HTTP front of a broker, from its configuration.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use braid_transport::http::{connect_http, connect_http3};
use braid_transport::quic::QuicOptions;
use braid_transport::{ClientTls, ClientTlsOptions, ConnectOptions};

use crate::broker::braidmq;
use crate::serve::{refusal_of, signal, start_command};

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// `HOST:PORT` in the line of the banner with this scheme.
fn address(banner: &[String], scheme: &str) -> String {
    let line = banner.iter().find(|line| line.contains(scheme)).unwrap();
    line.split_once(scheme).unwrap().1.split('/').next().unwrap().to_owned()
}

#[test]
fn the_front_serves_health_and_files_without_tls() {
    let data = tempfile::tempdir().unwrap();
    let (files, config) = (data.path().join("files"), data.path().join("config.toml"));
    fs::create_dir(&files).unwrap();
    fs::write(files.join("page.html"), "<p>page</p>").unwrap();
    let text = format!("[[http.route]]\npath = \"/pages\"\ndirectory = {files:?}\n");
    fs::write(&config, text).unwrap();
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.arg("--config").arg(&config).arg("--data-dir").arg(data.path().join("data"));
    let (mut broker, banner) = start_command(&mut command);
    let address = address(&banner, "http://");
    let answer = get(&address, "/health/ready");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"clients\":0"), "{answer}");
    let answer = get(&address, "/pages/page.html");
    assert!(answer.contains("text/html") && answer.ends_with("<p>page</p>"), "{answer}");
    signal(&broker, "-TERM");
    assert_eq!(broker.0.wait().unwrap().code(), Some(0));
}

#[test]
fn with_tls_every_version_is_at_one_port() {
    let data = tempfile::tempdir().unwrap();
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.args(["--set", "http.tls=true"]).arg("--data-dir").arg(data.path());
    let (_broker, banner) = start_command(&mut command);
    assert!(banner.iter().any(|line| line.contains("(HTTP/1.1, 2 and 3)")), "{banner:?}");
    let address: SocketAddr = address(&banner, "https://").parse().unwrap();
    let tls = |alpn: &str| {
        let ca_files = vec![data.path().join("cert.pem")];
        ClientTls::new(ClientTlsOptions {
            ca_files,
            alpn: vec![alpn.to_owned()],
            ..ClientTlsOptions::default()
        })
    };
    let options = ConnectOptions { quic: QuicOptions::http3_client(), ..ConnectOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for alpn in ["http/1.1", "h2"] {
            let stream = connect_http("localhost", &[address], Some(&tls(alpn)), &options).await.unwrap();
            assert_eq!(stream.peer.alpn.as_deref(), Some(alpn));
        }
        let connection = connect_http3("localhost", &[address], &tls("h3"), &options).await.unwrap();
        assert_eq!(connection.peer().alpn.as_deref(), Some("h3"));
    });
}

#[test]
fn explain_says_which_protocol_a_network_is_offered() {
    let data = tempfile::tempdir().unwrap();
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.args(["--set", "http.tls=true"]).arg("--data-dir").arg(data.path());
    let (_broker, banner) = start_command(&mut command);
    let url = format!("https://localhost:{}", address(&banner, "https://").rsplit(':').next().unwrap());
    let ask = |arguments: &[&str]| {
        let mut command = braidmq(arguments);
        let output =
            command.args(["--url", &url, "--ca"]).arg(data.path().join("cert.pem")).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let (code, said) = ask(&["http", "explain", "192.0.2.1"]);
    assert!(code == 1 && said.ends_with("no client of the network of 192.0.2.1 has been seen\n"), "{said}");
    // That was a request of this machine.
    let (code, said) = ask(&["http", "explain", "127.0.0.1"]);
    let address = address(&banner, "https://");
    let first = format!("127.0.0.0/24 to {address}: TCP (mode auto), never changed\n");
    assert!(code == 0 && said.starts_with(&first) && said.contains("\n  TCP:  "), "{said}");
    assert_eq!(ask(&["http", "explain", "localhost"]).0, 2);
}

#[test]
fn without_http3_there_is_nothing_to_explain() {
    let data = tempfile::tempdir().unwrap();
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    let (_broker, banner) = start_command(command.arg("--data-dir").arg(data.path()));
    let url = format!("http://{}", address(&banner, "http://"));
    let output = braidmq(&["http", "explain", "127.0.0.1", "--url", &url]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "braidmq: the broker answers 409: there is no HTTP/3 to upgrade to: turn http.tls and http.http3 on\n";
    assert_eq!((output.status.code(), said.as_str()), (Some(1), expected));
}

#[test]
fn without_anonymous_access_all_clients_log_in() {
    for (settings, status, code) in [
        (&[][..], 200, 0),
        (&["http.api.anonymous=false"], 401, 5),
        (&["http.mqtt.anonymous=false"], 200, 5),
        (&["http.api.anonymous=false", "http.mqtt.anonymous=true"], 401, 0),
    ] {
        let data = tempfile::tempdir().unwrap();
        let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        settings.iter().for_each(|setting| _ = command.args(["--set", setting]));
        let (_broker, banner) = start_command(command.arg("--data-dir").arg(data.path()));
        let address = address(&banner, "http://");
        let answer = get(&address, "/api/v1/overview");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{settings:?} {answer}");
        assert_eq!(answer.contains("http.api.anonymous is false"), status == 401, "{answer}");
        let url = format!("ws://{address}/mqtt");
        let output = braidmq(&["pub", "--url", &url, "-t", "a", "-m", "b"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{settings:?} {output:?}");
    }
}

#[test]
fn the_api_has_addresses_of_its_own() {
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("page.html"), "page").unwrap();
    let config = data.path().join("config.toml");
    let route = format!("[[http.route]]\npath = \"/pages\"\ndirectory = {:?}\n", data.path());
    for (own, is_tls) in [(false, false), (true, false), (true, true)] {
        let listen = if own { "[http.api]\nlisten = [\"127.0.0.1:0\"]\n" } else { "" };
        fs::write(&config, format!("[http]\ntls = {is_tls}\n{listen}{route}")).unwrap();
        let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        command.arg("--config").arg(&config).arg("--data-dir").arg(data.path().join("data"));
        let (mut broker, banner) = start_command(&mut command);
        if is_tls {
            let lines = banner.iter().filter(|line| line.contains("HTTP/1.1, 2 and 3)"));
            assert_eq!(lines.count(), 2, "{banner:?}");
            continue;
        }
        let first = address(&banner, "http://");
        let api = banner
            .iter()
            .find(|line| line.contains("(API, "))
            .map(|line| address(std::slice::from_ref(line), "http://"));
        assert_eq!(api.is_some(), own, "{banner:?}");
        let status = |address: &str, path: &str| get(address, path)[9..12].parse::<u16>().unwrap();
        let statuses = |address: &str| {
            ["/", "/api/v1/overview", "/metrics", "/pages/page.html", "/health/live"]
                .map(|path| status(address, path))
        };
        let Some(api) = api else {
            assert_eq!(statuses(&first), [200, 401, 401, 200, 200]);
            assert!(get(&first, "/metrics").contains("http.api.listen"));
            signal(&broker, "-TERM");
            assert_eq!(broker.0.wait().unwrap().code(), Some(0));
            continue;
        };
        assert_eq!(statuses(&first), [404, 404, 404, 200, 200]);
        assert!(get(&first, "/api/v1/overview").contains("http.api.listen"));
        assert_eq!(statuses(&api), [200, 200, 200, 404, 200]);
        for address in [&first, &api] {
            let output =
                braidmq(&["pub", "--url", &format!("ws://{address}/mqtt"), "-t", "a", "-m", "b"]).output();
            assert_eq!(output.unwrap().status.code(), Some(0), "{address}");
        }
        let top = |address: &str| {
            let output = braidmq(&["top", "--once", "--url", &format!("http://{address}")]).output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            (output.status.code().unwrap(), String::from_utf8(said).unwrap())
        };
        assert_eq!(top(&api).0, 0);
        let (code, said) = top(&first);
        assert!(code == 1 && said.contains("http.api.listen"), "{said}");
        signal(&broker, "-TERM");
        assert_eq!(broker.0.wait().unwrap().code(), Some(0));
    }
    fs::write(&config, "[http]\nlisten = [\"127.0.0.1:1\"]\n[http.api]\nlisten = [\"127.0.0.1:1\"]\n")
        .unwrap();
    let (_, said) = refusal_of(braidmq(&["serve", "--config"]).arg(&config));
    assert!(
        said.contains("config.toml:4: http.api.listen: 127.0.0.1:1 is an address of http.listen too"),
        "{said}"
    );
}

#[test]
fn top_ends_with_the_failure_of_its_first_look() {
    let output = braidmq(&["top", "--url", "http://127.0.0.1:1"]).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.code() == Some(1) && said.lines().count() == 1, "{said}");
    assert!(said.ends_with(", or give the address of its API with --url\n"), "{said}");
}

#[test]
fn a_wrong_front_is_refused() {
    let data = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["--http", "0.0.0.0:0"][..], "http.listen: 0.0.0.0:0 is not on loopback, and nothing is encrypted"),
        (&["--http", "127.0.0.1:0", "--set", "http.key=a"], "http.certificate: is missing"),
        (
            &["--http", "127.0.0.1:0", "--set", "http.route=[{path='/a', directory='/no/such'}]"],
            "http.route: the directory /no/such of the route /a cannot be opened",
        ),
        (&["--set", "http.limits.streams=0"], "http.limits.streams: 0 is out of range"),
    ] {
        let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0"]);
        let (code, said) = refusal_of(command.args(arguments).arg("--data-dir").arg(data.path()));
        assert!(code == 2 && said.contains(expected), "{said}");
    }
    let config = data.path().join("config.toml");
    fs::write(&config, "[[http.route]]\npath = \"/a\"\nupstream = \"ftp://b\"\n").unwrap();
    let mut command = braidmq(&["serve", "--config"]);
    let (_, said) = refusal_of(command.arg(&config));
    assert!(said.contains("config.toml:3: \"ftp://b\" is no upstream: write http://HOST:PORT"), "{said}");
}
