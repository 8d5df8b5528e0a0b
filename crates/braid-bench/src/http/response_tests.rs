use super::*;

/// Parts of a stream that arrives in pieces of `size` bytes; adjacent pieces of a body are joined.
fn parts(stream: &[u8], size: usize, is_head: bool) -> Result<Vec<String>, ResponseError> {
    let mut parser = ResponseParser::new(is_head);
    let (mut found, mut body) = (Vec::new(), Vec::new());
    let mut take = |part: Part<'_>, found: &mut Vec<String>| match part {
        Part::Head { status, header_bytes } => found.push(format!("{status} {header_bytes}")),
        Part::Body(bytes) => body.extend_from_slice(bytes),
        Part::End { keeps_alive } => {
            found.push(format!("{} {keeps_alive}", String::from_utf8(std::mem::take(&mut body)).unwrap()));
        }
    };
    for mut piece in stream.chunks(size) {
        while let Some(part) = parser.next(&mut piece)? {
            take(part, &mut found);
        }
        assert!(piece.is_empty(), "a parser that asks for more has taken all");
    }
    if let Some(part) = parser.finish()? {
        take(part, &mut found);
    }
    Ok(found)
}

fn in_any_pieces(stream: &str, expected: &Result<Vec<String>, ResponseError>) {
    for size in [1, 2, 3, 7, 30, stream.len().max(1)] {
        assert_eq!(&parts(stream.as_bytes(), size, false), expected, "{size} bytes at once of {stream:?}");
    }
}

#[test]
fn responses_end_where_their_framing_says() {
    let cases: &[(&str, &[&str])] = &[
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", &["200 15", "abc true"]),
        (
            "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 304 x\r\nContent-Length: 9\r\n\r\n",
            &["204 0", " true", "304 15", " true"],
        ),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\na: b\r\n\r\nHTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n",
            &["500 15", " true"],
        ),
        ("HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 1\r\n\r\na", &["200 33", "a false"]),
        ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", &["200 15", "a false"]),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na", &["200 35", "a true"]),
        ("HTTP/1.1 200 OK\r\n\r\nabc", &["200 0", "abc false"]),
        ("HTTP/1.1 200 OK\r\n\r\n", &["200 0", " false"]),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", &["200 30", "a true"]),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1;x=y\r\na\r\n00A\r\n0123456789\r\n0\r\nt: u\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            &["200 24", "a0123456789 true", "200 15", " true"],
        ),
        ("", &[]),
    ];
    for (stream, expected) in cases {
        in_any_pieces(stream, &Ok(expected.iter().map(|&part| part.to_owned()).collect()));
    }
}

#[test]
fn responses_to_head_have_no_body() {
    let stream = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
    assert_eq!(parts(stream, 5, true).unwrap(), ["200 15", " true", "200 0", " true"]);
}

#[test]
fn violations_end_the_connection() {
    let of = |head: &str| format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n");
    let chunked = |body: &str| of("Transfer-Encoding: chunked") + body;
    let cases = [
        (of("Content-Length: x"), ResponseError::Length),
        (of("Content-Length: +1"), ResponseError::Length),
        (of("Content-Length:"), ResponseError::Length),
        (of("Content-Length: 99999999999999999999"), ResponseError::Length),
        (of("Content-Length: 1\r\nContent-Length: 2"), ResponseError::Length),
        (of("Content-Length: 1\r\nTransfer-Encoding: chunked"), ResponseError::Length),
        (of("Transfer-Encoding: gzip, chunked"), ResponseError::Coding),
        (of("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), ResponseError::Coding),
        ("HTTP/1.1 101 Switching\r\n\r\n".to_owned(), ResponseError::Switching),
        ("nonsense\r\n\r\n".to_owned(), ResponseError::Syntax(httparse::Error::Version)),
        (of("Content-Length: 3") + "ab", ResponseError::Truncated),
        ("HTTP/1.1 200 OK\r\n".to_owned(), ResponseError::Truncated),
        (chunked("3\r\nab"), ResponseError::Truncated),
        (chunked("0\r\n"), ResponseError::Truncated),
        (chunked("x\r\n"), ResponseError::Chunk),
        (chunked("\r\n"), ResponseError::Chunk),
        (chunked("+1\r\na\r\n"), ResponseError::Chunk),
        (chunked("11111111111111111\r\n"), ResponseError::Chunk),
        (chunked("1\r\nab\r\n"), ResponseError::Chunk),
        (chunked(&format!("1;{}\r\n", "x".repeat(CHUNK_LINE_LIMIT))), ResponseError::Chunk),
        (chunked("0\r\n") + &format!("{}\r\n", "x".repeat(1000)).repeat(80), ResponseError::Chunk),
        (of(&format!("a: {}", "x".repeat(HEAD_LIMIT))), ResponseError::LongHead),
        (of(&"a: b\r\n".repeat(HEADERS + 1)), ResponseError::Syntax(httparse::Error::TooManyHeaders)),
    ];
    for (stream, expected) in cases {
        let sizes = if stream.len() > 1000 { vec![4096] } else { vec![1, 7, stream.len()] };
        for size in sizes {
            let found = parts(stream.as_bytes(), size, false);
            assert_eq!(found, Err(expected.clone()), "{:?}", &stream[..stream.len().min(80)]);
        }
    }
}
