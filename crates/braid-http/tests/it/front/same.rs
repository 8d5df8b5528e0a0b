//! One request has one answer over all versions.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use braid_http::{Limits, Route, RouteTarget, Server, ServerOptions, router};

use super::support::{ANY, Ask, Front, Upstream, VERSIONS, block_on};

/// Sends a request over each version, and checks that the answers are the same.
pub(super) async fn same(front: &Front, ask: &Ask) -> super::support::Answer {
    let mut answers = Vec::new();
    for version in VERSIONS {
        let mut answer =
            front.send(version, ask).await.unwrap_or_else(|error| panic!("{version} {ask:?}: {error}"));
        assert!(answer.headers.remove("date").is_some(), "{version} {ask:?}");
        // Concern one connection.
        answer.headers.remove("connection");
        answer.headers.remove("transfer-encoding");
        // A report has the time.
        if ask.path.starts_with("/health") {
            answer.body.clear();
        }
        answers.push(answer);
    }
    assert_eq!(answers[0], answers[1], "{ask:?}");
    assert_eq!(answers[0], answers[2], "{ask:?}");
    if answers[0].status.as_u16() >= 400 && ask.method != "HEAD" && !ask.path.starts_with("/health") {
        let answer = &answers[0];
        assert_eq!(answer.header("content-type"), "application/problem+json", "{ask:?}");
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["status"], answer.status.as_u16(), "{ask:?}");
        assert!(body["title"].is_string() && body["detail"].is_string(), "{body}");
    }
    answers.remove(0)
}

/// RFC 9110, 13.2.2
#[test]
fn preconditions_are_checked_in_their_order() {
    const EARLY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATE: &str = "Sun, 06 Nov 2089 08:49:37 GMT";
    let front = Front::start(Limits::default(), None);
    fs::write(front.file("a"), "0123456789").unwrap();
    block_on(async {
        let get = || Ask::get("/files/a");
        let tag = same(&front, &get()).await.header("etag").to_owned();
        let weak = format!("W/{tag}");
        for (ask, status, body) in [
            (get().header("if-match", &tag), 200, "0123456789"),
            (get().header("if-match", "*"), 200, "0123456789"),
            (get().header("if-match", &format!("\"x\", {tag}")), 200, "0123456789"),
            (get().header("if-match", "\"x\""), 412, "*"),
            (get().header("if-match", &weak), 412, "*"),
            (Ask::new("HEAD", "/files/a").header("if-match", "\"x\""), 412, ""),
            (Ask::new("HEAD", "/files/none"), 404, ""),
            (Ask::new("HEAD", "/nothing"), 404, ""),
            (Ask { host: "evil.example", ..Ask::new("HEAD", "/files/a") }, 421, ""),
            // The rest of another version would not fit the beginning.
            (get().header("if-match", "\"x\"").header("range", "bytes=5-"), 412, "*"),
            (get().header("if-match", &tag).header("range", "bytes=5-"), 206, "56789"),
            (get().header("if-unmodified-since", EARLY).header("range", "bytes=5-"), 412, "*"),
            (get().header("if-unmodified-since", LATE).header("range", "bytes=5-"), 206, "56789"),
            (get().header("if-unmodified-since", "yesterday"), 200, "0123456789"),
            (get().header("if-unmodified-since", EARLY).header("if-match", &tag), 200, "0123456789"),
            (get().header("if-match", &tag).header("if-none-match", &tag), 304, ""),
            (get().header("if-match", "\"x\"").header("if-none-match", &tag), 412, "*"),
        ] {
            let answer = same(&front, &ask).await;
            assert_eq!(answer.status.as_u16(), status, "{ask:?} {answer:?}");
            assert!(body == "*" || answer.body == body, "{ask:?} {answer:?}");
        }
    });
}

#[test]
fn files_and_errors_are_the_same_over_all_versions() {
    let front = Front::start(Limits { body_bytes: 1000, ..Limits::default() }, None);
    let large: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    for (name, content) in [
        ("index.html", &b"<p>index</p>"[..]),
        ("sub/index.html", b"sub"),
        ("a b.txt", b"0123456789"),
        ("large", &large),
    ] {
        fs::write(front.file(name), content).unwrap();
    }
    fs::write(front.dir.path().join("secret"), "secret").unwrap();
    symlink("../secret", front.file("out")).unwrap();
    symlink(front.dir.path(), front.file("parent")).unwrap();
    symlink("index.html", front.file("in")).unwrap();
    symlink(front.dir.path().join("secret"), front.file("absolute")).unwrap();
    symlink("loop", front.file("loop")).unwrap();
    assert!(Command::new("mkfifo").arg(front.file("pipe")).status().unwrap().success());
    block_on(async {
        let get = Ask::get;
        let tag = same(&front, &get("/files/a%20b.txt")).await.header("etag").to_owned();
        let long = format!("/files/{}", "a".repeat(8200));
        for (ask, status, body) in [
            (get("/files/"), 200, "<p>index</p>"),
            (get("/files/in"), 200, "<p>index</p>"),
            (get("/files/sub/"), 200, "sub"),
            (get("/files/a%20b.txt?query"), 200, "0123456789"),
            (Ask::new("HEAD", "/files/a%20b.txt"), 200, ""),
            (get("/files/a%20b.txt").header("range", "bytes=2-4"), 206, "234"),
            (get("/files/a%20b.txt").header("range", "bytes=-2"), 206, "89"),
            (
                get("/files/a%20b.txt").header("range", "bytes=2-4").header("if-range", "\"other\""),
                200,
                "0123456789",
            ),
            (get("/files/a%20b.txt").header("if-none-match", &format!("\"x\", W/{tag}")), 304, ""),
            (get("/files/a%20b.txt").header("if-none-match", "*"), 304, ""),
            (get("/files/a%20b.txt").header("if-none-match", "\"x\""), 200, "0123456789"),
            (get("/files/a%20b.txt").header("if-modified-since", "Sun, 06 Nov 2089 08:49:37 GMT"), 304, ""),
            (
                get("/files/a%20b.txt").header("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT"),
                200,
                "0123456789",
            ),
            (get("/files/a%20b.txt").header("range", "bytes=10-"), 416, "*"),
            (get("/files"), 301, "*"),
            (get("/files/sub"), 301, "*"),
            (get("/files/none"), 404, "*"),
            (get("/files/out"), 404, "*"),
            (get("/files/parent/secret"), 404, "*"),
            (get("/files/pipe"), 404, "*"),
            (get("/files/%2e%2e/secret"), 404, "*"),
            (get("/files/..%2fsecret"), 404, "*"),
            (get("/files/../secret"), 404, "*"),
            (get("/files/sub/../../secret"), 404, "*"),
            (get("/files/sub/%2e%2e/%2e%2e/secret"), 404, "*"),
            (get("/files/%252e%252e/secret"), 404, "*"),
            (get("/files/..%252fsecret"), 404, "*"),
            (get("/files/..%5csecret"), 404, "*"),
            (get("/files/%c0%ae%c0%ae/secret"), 404, "*"),
            (get("/files/in%00"), 404, "*"),
            (get("/files/%00/../secret"), 404, "*"),
            (get("/files//etc/passwd"), 404, "*"),
            (get("/files/%2fetc/passwd"), 404, "*"),
            (get("/files/%2fproc/self/root/etc/passwd"), 404, "*"),
            (get("/files/absolute"), 404, "*"),
            (get("/files/loop"), 404, "*"),
            (get("/files/in/"), 404, "*"),
            (get("/files/%ff"), 404, "*"),
            (get("/files/%"), 404, "*"),
            (get(&format!("/files/{}", "n".repeat(300))), 404, "*"),
            (get(&format!("/files{}", "/a".repeat(3000))), 404, "*"),
            (get("/nothing"), 404, "*"),
            (get(&long), 414, "*"),
            (Ask::new("POST", "/files/in"), 405, "*"),
            (Ask::new("POST", "/files/in").header("origin", "https://evil.example"), 403, "*"),
            (Ask::new("POST", "/files/in").header("content-length", "1001").body(vec![0; 1001]), 413, "*"),
            (Ask { host: "evil.example", ..get("/files/in") }, 421, "*"),
            (get("/health/live"), 200, "*"),
            (get("/health/ready"), 503, "*"),
            (Ask::new("POST", "/live"), 405, "*"),
        ] {
            let answer = same(&front, &ask).await;
            assert_eq!(answer.status.as_u16(), status, "{ask:?} {answer:?}");
            if body != "*" {
                assert_eq!(answer.body, body, "{ask:?}");
            }
            assert!(!answer.body.windows(6).any(|part| part == b"secret"), "{ask:?}");
        }
        let answer = same(&front, &get("/files/large")).await;
        assert_eq!((answer.body.len(), answer.body == large), (large.len(), true));
        let answer = same(&front, &get("/files/large").header("range", "bytes=65530-200000")).await;
        assert_eq!(answer.body, large[65530..=200_000]);
        assert_eq!(answer.header("content-range"), "bytes 65530-200000/300000");
        let head = same(&front, &Ask::new("HEAD", "/files/large")).await;
        assert_eq!(head.header("content-length"), "300000");
        assert_eq!(same(&front, &get("/files/sub")).await.header("location"), "./sub/");
    });
}

#[test]
fn a_proxy_is_the_same_over_all_versions() {
    let upstream = Upstream::start(|line| {
        match line.split(' ').nth(1).unwrap() {
        "/app/short" => b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort".to_vec(),
        "/app/garbage" => b"nonsense\r\n\r\n".to_vec(),
        "/app/none" => Vec::new(),
        // To HEAD: the length is not known.
        "/app/page" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 201 Created\r\nx-mine: 1\r\nconnection: x-hop\r\nx-hop: 1\r\ncontent-length: 5\r\n\r\nhello".to_vec(),
    }
    });
    let front = Front::start(Limits { body_bytes: 1000, ..Limits::default() }, Some(upstream.address));
    block_on(async {
        let ask = Ask::new("POST", "/app/a%20b?c=d")
            .header("x-forwarded-for", "1.2.3.4")
            .header("x-kept", "yes")
            .header("te", "trailers")
            .body("body");
        let answer = same(&front, &ask).await;
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (201, &b"hello"[..]));
        assert_eq!((answer.header("x-mine"), answer.header("x-hop")), ("1", ""));
        for version in ["1.1", "2.0", "3.0"] {
            let request = upstream.request();
            assert!(request.starts_with("post /app/a%20b?c=d http/1.1\r\n"), "{request}");
            assert!(request.ends_with("\r\n\r\nbody"), "{request}");
            for line in [
                "host: localhost",
                "x-kept: yes",
                "x-forwarded-for: 127.0.0.1",
                "x-forwarded-proto: https",
                "x-forwarded-host: localhost",
                "forwarded: for=127.0.0.1;host=\"localhost\";proto=https",
                &format!("via: {version} braidmq"),
            ] {
                assert_eq!(request.lines().filter(|found| *found == line).count(), 1, "{line}\n{request}");
            }
            assert!(!request.contains("1.2.3.4") && !request.contains("\r\nte:"), "{request}");
        }
        let head = same(&front, &Ask::new("HEAD", "/app/page")).await;
        assert_eq!((head.status.as_u16(), head.header("content-length")), (200, ""));
        for path in ["/app/garbage", "/app/none"] {
            assert_eq!(same(&front, &Ask::get(path)).await.status.as_u16(), 502, "{path}");
        }
        for version in VERSIONS {
            let error = front.send(version, &Ask::get("/app/short")).await.unwrap_err();
            assert!(!error.is_empty(), "{version}");
        }
        // On HTTP/3 without Content-Length.
        let refused = same(&front, &Ask::new("POST", "/app").body(vec![0; 1001])).await;
        assert_eq!(refused.status.as_u16(), 413);
    });
}

#[test]
fn wrong_options_are_refused_at_the_start() {
    let refused = |change: fn(&mut ServerOptions)| {
        let mut options = ServerOptions::new(vec![ANY]);
        change(&mut options);
        let router = router(Default::default(), &[], &options.limits).unwrap();
        Server::start(&options, router).unwrap_err().to_string()
    };
    let error = refused(|options| options.listen = vec!["0.0.0.0:0".parse().unwrap()]);
    assert!(error.starts_with("HTTP without TLS listens on loopback addresses only"), "{error}");
    let error = refused(|options| options.http3 = true);
    assert!(error.contains("needs TLS"), "{error}");
    let taken = std::net::TcpListener::bind(ANY).unwrap();
    let mut options = ServerOptions::new(vec![taken.local_addr().unwrap()]);
    options.threads = 2;
    let error =
        Server::start(&options, router(Default::default(), &[], &options.limits).unwrap()).unwrap_err();
    assert!(error.to_string().contains("is in use"), "{error}");
    for (routes, expected) in [
        (
            vec![Route::new("/a", RouteTarget::Directory("/no/such".into()))],
            "the directory /no/such of the route /a",
        ),
        (
            vec![
                Route::new("/a", RouteTarget::Directory("/".into())),
                Route::new("/a/", RouteTarget::Directory("/".into())),
            ],
            "is there twice",
        ),
    ] {
        let error = router(Default::default(), &routes, &Limits::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
